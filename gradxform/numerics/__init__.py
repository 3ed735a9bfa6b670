"""The mathematics: formulas over the functions of an array namespace, of arrays of any framework."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = Any
"""An array of some framework, traced or concrete."""

DOUBLE = frozenset({"float64", "complex128"})
"""Dtypes whose norms and sums are pairs of float64 numbers."""


def dtype_name(x: Array) -> str:
    """The name of a dtype, as NumPy has it: "float32", "bfloat16", "complex64"."""
    dtype = x.dtype
    return _name(dtype) if isinstance(dtype, np.dtype) else str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@functools.cache  # NumPy takes three microseconds to name one; torch.compile, which warns of caches, never comes here
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def is_complex(x: Array) -> bool:
    """Whether an array is of complex numbers."""
    return dtype_name(x).startswith("complex")
