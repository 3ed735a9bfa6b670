"""Distances in ULP (units in the last place)."""

from __future__ import annotations

from typing import Any

import numpy as np

_INTEGERS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}


def ulps(a: Any, b: Any) -> Any:
    """The distance of each pair of elements, as float64; infinite where only one is NaN or their infinities differ."""
    a, b = _native(np.asarray(a)), _native(np.asarray(b))
    if a.dtype != b.dtype or a.shape != b.shape:
        raise TypeError(
            f"max_ulp: two arrays of one dtype and shape are compared, got {a.dtype} {a.shape} and {b.dtype} {b.shape}"
        )
    if a.dtype.kind == "c":
        return np.maximum(ulps(a.real, b.real), ulps(a.imag, b.imag))
    if a.dtype.kind in "iub":
        return np.where(a == b, 0.0, np.inf)
    distance = _distance(_ordinal(a), _ordinal(b))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lost = np.isnan(wide_a) != np.isnan(wide_b)
    apart = (np.isinf(wide_a) | np.isinf(wide_b)) & (wide_a != wide_b)
    return np.where(np.isnan(wide_a) & np.isnan(wide_b), 0.0, np.where(lost | apart, np.inf, distance))


def _native(x: Any) -> Any:
    """Convert to this machine's byte order."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _ordinal(x: Any) -> Any:
    """Return the rank of each number among all numbers of its dtype; both zeros have rank 0."""
    integer = _INTEGERS[x.dtype.itemsize]
    bits = np.ascontiguousarray(x).view(integer).reshape(x.shape).astype(np.int64)
    return np.where(bits < 0, np.int64(np.iinfo(integer).min) - bits, bits)


def _distance(first: Any, second: Any) -> Any:
    """Return the distance of two ranks; across zero in float64, since it may overflow an integer."""
    apart = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return np.where((first < 0) == (second < 0), np.abs(first - second).astype(np.float64), apart)
