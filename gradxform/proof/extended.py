"""The number format of the references: IEEE quadruple precision, or NumPy's longdouble, which may be float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradxform.backend.errors import install


@dataclass(frozen=True)
class Complex:
    """Complex numbers as two parts, since there is no wider complex dtype."""

    real: Any
    imag: Any


@functools.cache
def kind() -> Any:
    """Return the dtype."""
    try:
        from numpy_quaddtype import QuadPrecDType
    except ImportError:
        return np.dtype(np.longdouble)
    return QuadPrecDType()


def bits() -> int:
    """The bits of a mantissa."""
    return int(np.finfo(kind()).nmant) + 1


def described() -> str:
    """Say how exact the reference is here, and what would make it more exact."""
    if kind() != np.longdouble:
        return f"{bits()} bits (numpy-quaddtype)"
    caveat = "" if bits() > 53 else ", too few for float64 gradients and for sums"
    return f"{bits()} bits (NumPy's longdouble){caveat}; for 113 bits {install('exact')}"


def number(x: Any) -> Any:
    """Convert numbers of any dtype, or a Python number, without loss."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return Complex(number(x.real), number(x.imag))
    if x.dtype == kind():
        return x
    with np.errstate(all="ignore"):
        return (x.astype(np.float32) if x.dtype.kind == "V" else x).astype(kind())


def narrowed(value: Any, dtype: Any) -> Any:
    """Round once to another dtype; plain casts would round through float64."""
    if isinstance(value, Complex):
        whole = np.empty(np.shape(value.real), dtype)
        whole.real, whole.imag = (narrowed(part, whole.real.dtype) for part in (value.real, value.imag))
        return whole
    value, dtype = np.asarray(value), np.dtype(dtype)
    if dtype.kind in "iub":
        return value.astype(dtype)
    with np.errstate(all="ignore"):
        wide = value.astype(np.float64)
        if dtype == "bfloat16":
            wide = wide.astype(np.float32)  # as casts to bfloat16 do
        near = wide.astype(dtype)
        if value.dtype == wide.dtype:
            return near
        opposite = 2 * wide - near  # the other neighbour if the wider number is halfway
        if dtype != wide.dtype and not np.any((opposite != near) & (opposite.astype(dtype) == opposite)):
            return near
        error = value - number(near)
        beside = np.nextafter(near, np.where(error > 0, math.inf, -math.inf).astype(dtype))
        return np.where(np.isfinite(near) & (np.abs(value - number(beside)) < np.abs(error)), beside, near)


def each(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function of real numbers, to each part if some are complex."""
    if not any(isinstance(value, Complex) for value in values):
        return function(*values)
    real = [value.real if isinstance(value, Complex) else value for value in values]
    imag = [value.imag if isinstance(value, Complex) else value for value in values]
    return Complex(function(*real), function(*imag))


def size(value: Any) -> Any:
    """Absolute values."""
    return np.hypot(value.real, value.imag) if isinstance(value, Complex) else np.abs(value)


def where(condition: Any, one: Any, other: Any) -> Any:
    """Select elementwise."""
    return each(lambda one, other: np.where(condition, one, other), one, other)


def zeros(value: Any) -> Any:
    """Zeros like a value."""
    return each(np.zeros_like, value)
