"""What TensorFlow's and Keras's variables have in common."""

from __future__ import annotations

from typing import Any


def path_of(variable: Any) -> str:
    """The path of a variable: a Keras variable's own, or the name without its output number."""
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else str(getattr(variable, "name", "variable")).partition(":")[0]
