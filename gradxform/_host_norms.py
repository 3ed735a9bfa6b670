"""Norms that are right to the last bit of float32 at any size, in one read of the memory.

A float32 array is seen as rows of 256: NumPy sums each row's squares in float32, where the rounding is small, and the
rows are added in float64. The few rows that hold much of the sum are summed again in float64, so that one heavy row
does not put its rounding into the result. If the sum left the range of float32, the array is summed again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

_ROW = 256
_SHORT_ROW = 16
_BLOCK = 1 << 16
_SMALL = 1 << 13
_HEAVY = 1 / 64
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def leaf_norm(leaf: Any, ord: float) -> Any:
    """The norm of one array: a float64 number, or longdouble for a float64 array."""
    flat = _real(leaf, ord)
    if flat.size == 0:
        return 0.0
    if ord == 2:
        if flat.dtype == np.float64:
            return _norm64(flat)
        if flat.dtype == np.float32 and flat.size > _SMALL:
            return math.sqrt(_squares32(flat))
        return math.sqrt(sum(_dot64(block) for block in _blocks(flat)))
    return _other_norm(flat, ord)


def _real(leaf: Any, ord: float) -> Any:
    """The elements in a row; those of a complex array as pairs for the 2-norm, else their absolute values."""
    flat = np.asarray(leaf).ravel(order="K")
    if flat.dtype.kind != "c":
        return flat
    return flat.view(flat.real.dtype) if ord == 2 else np.abs(flat.astype(np.clongdouble)).astype(np.float64)


def _blocks(flat: Any) -> Iterator[Any]:
    """The array in float64, a block that fits the cache at a time."""
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK].astype(np.float64)


def _dot64(block: Any) -> float:
    return float(np.dot(block, block))


def _squares32(flat: Any) -> float:
    cut = flat.size // _ROW * _ROW
    rows = flat[:cut].reshape(-1, _ROW)
    sums = np.vecdot(rows, rows).astype(np.float64)
    total = float(sums.sum())
    if math.isnan(total):
        return total
    if not flat.size * _ONLY_ROUNDING_LOST < total < math.inf:
        return sum(_dot64(block) for block in _blocks(flat))
    heavy = np.flatnonzero(sums > total * _HEAVY)
    if heavy.size:
        exact = rows[heavy].astype(np.float64)
        total += float((np.vecdot(exact, exact) - sums[heavy]).sum())
    return total + _dot64(flat[cut:].astype(np.float64))


def _norm64(flat: Any) -> Any:
    """The 2-norm of float64 numbers, in longdouble."""
    total = _squares64(flat)
    if flat.size * 2.0**-960 < total < math.inf or math.isnan(total):
        return np.sqrt(total)
    largest = float(np.max(np.abs(flat)))
    if not 0 < largest < math.inf:
        return largest
    exponent = math.frexp(largest)[1]
    return np.ldexp(np.sqrt(_squares64(np.ldexp(flat, -exponent))), exponent)


def _squares64(flat: Any) -> Any:
    width = _ROW if flat.size > _SMALL else _SHORT_ROW
    cut = flat.size // width * width
    rows = flat[:cut].reshape(-1, width)
    return np.sum(np.vecdot(rows, rows), dtype=np.longdouble) + _dot64(flat[cut:])


def _other_norm(flat: Any, ord: float) -> Any:
    largest = np.max(np.abs(flat)).astype(np.float64)
    if ord == math.inf or not 0 < largest < math.inf:
        return largest
    if ord == 1:
        return sum(np.sum(np.abs(block).reshape(-1), dtype=np.longdouble) for block in _blocks(flat))
    powers = (np.sum((np.abs(block) / largest) ** ord, dtype=np.longdouble) for block in _blocks(flat))
    return largest * sum(powers) ** (1 / np.longdouble(ord))


def norm_over(leaf: Any, axes: tuple[int, ...], ord: float) -> Any:
    """Norms over some axes, the axes kept as ones: in float64, or longdouble for a float64 array."""
    array = np.asarray(leaf)
    wide = np.longdouble if array.dtype.name in ("float64", "complex128") else np.float64
    with np.errstate(all="ignore"):
        size = np.abs(array.astype(np.clongdouble) if array.dtype.kind == "c" else array).astype(wide)
        if ord == 1:
            return size.sum(axis=axes, keepdims=True)
        largest = size.max(axis=axes, keepdims=True, initial=0.0)
        if ord == math.inf:
            return largest
        unit = np.where((largest > 0) & np.isfinite(largest), largest, wide(1))
        return unit * ((size / unit) ** ord).sum(axis=axes, keepdims=True) ** (1 / wide(ord))
