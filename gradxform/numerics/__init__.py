"""The mathematics: formulas over the functions of an array namespace, of arrays of any framework."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

Array = Any
"""An array of some framework, traced or concrete."""

DOUBLE = frozenset({"float64", "complex128"})
"""Dtypes whose norms and sums are pairs of float64 numbers."""


def dtype_name(x: Array) -> str:
    """The name of a dtype, as NumPy has it: "float32", "bfloat16", "complex64"."""
    return _name(x.dtype)


@functools.lru_cache(maxsize=256, typed=True)  # NumPy takes three microseconds to name one
def _name(dtype: Hashable) -> str:
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def is_complex(x: Array) -> bool:
    """Whether an array is of complex numbers."""
    return dtype_name(x).startswith("complex")
