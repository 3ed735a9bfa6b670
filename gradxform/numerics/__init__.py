"""The mathematics: formulas over the functions of an array namespace, of arrays of any framework."""

from __future__ import annotations

from typing import Any

Array = Any
"""An array of some framework, traced or concrete."""
