"""Distances in ULP (units in the last place), and how large they may be."""

from __future__ import annotations

from typing import Any

import numpy as np

_INTEGERS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_HALF = {"float16": (11, -24), "bfloat16": (8, -133)}
"""Bits of a mantissa, and the exponent of the smallest subnormal number."""
SUMS, DOUBLE = 4, 16
"""The budgets of sums, in ULP of the largest term, and of everything in float64."""


def budget(dtype: Any, ulp: float, summed: Any = False) -> Any:
    """The budget of results, and of those that were summed, where rescaling float32 has `ulp`; 0 means bit-identical.

    Half precision has 1: arithmetic is float32, and the result is rounded once.
    """
    name = np.dtype(dtype).name
    if not ulp:
        return 0.0
    if name in ("float64", "complex128"):
        return max(ulp, DOUBLE)
    return np.where(summed, max(ulp, SUMS), min(ulp, 1) if name in _HALF else ulp)


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
    first, second = _ordinal(a), _ordinal(b)
    distance = _distance(first, second) if a.itemsize == 8 else np.abs(first - second).astype(np.float64)
    if np.isfinite(a).all() and np.isfinite(b).all():
        return distance
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lost = np.isnan(wide_a) != np.isnan(wide_b)
    apart = (np.isinf(wide_a) | np.isinf(wide_b)) & (wide_a != wide_b)
    return np.where(np.isnan(wide_a) & np.isnan(wide_b), 0.0, np.where(lost | apart, np.inf, distance))


def apart(got: Any, wanted: Any, term: Any) -> Any:
    """The distance where results are sums, in ULP of the largest term if that is larger than the result.

    Terms are of float32, or of float64 for float64 results. Half precision is rounded once more: up to 1 ULP of the
    result counts as such, and only what is beyond counts in the terms' ULP. Without a term it is `ulps`.
    """
    plain = ulps(got, wanted)
    if not np.any(term):
        return plain
    if wanted.dtype.kind == "c":
        parts = ((got.real, wanted.real, term.real), (got.imag, wanted.imag, term.imag))
        return np.maximum(*(apart(*part) for part in parts))
    found, near = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = _unit(np.maximum(np.abs(near), term), *((53, -1074) if wanted.dtype == np.float64 else (24, -149)))
        distance = np.abs(found - near) / unit
        if half := _HALF.get(wanted.dtype.name):
            own = _unit(np.maximum(np.abs(near), np.abs(found)), *half)
            distance = np.where(plain <= 1, plain, np.maximum(distance - own / unit, 1.0))
    return np.where((term > 0) & (plain > 0) & np.isfinite(plain), distance, plain)


def _unit(size: Any, bits: int, least: int) -> Any:
    """One ULP of a float64 number in a format with so many bits and such a smallest exponent."""
    return np.ldexp(1.0, np.maximum(np.frexp(size)[1] - bits, least))


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
