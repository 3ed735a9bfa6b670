"""Numerical kernels and formulas over an array namespace, for arrays of any framework."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = Any
"""An array of some framework, traced or concrete."""

DOUBLE = frozenset({"float64", "complex128"})
"""Dtypes whose sums are float64; those of the others are float32."""


def dtype_name(x: Array) -> str:
    """Return NumPy's name of a dtype: "float32", "bfloat16", "complex64"."""
    dtype = x.dtype
    return _name(dtype) if isinstance(dtype, np.dtype) else str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@functools.cache  # NumPy takes 3 us per name; torch.compile, which warns about caches, never gets here
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def is_complex(x: Array) -> bool:
    """Whether an array is complex."""
    return dtype_name(x).startswith("complex")


def sums_dtype(x: Array) -> str:
    """Return the dtype of sums of a leaf's elements, real parts of complex ones: float64 for 64 bits, else float32."""
    return "float64" if dtype_name(x) in DOUBLE else "float32"


def widest(xp: Any) -> str:
    """Return the dtype of norms and factors: float64, or float32 in the namespace of a device without it."""
    return getattr(xp, "widest", "float64")
