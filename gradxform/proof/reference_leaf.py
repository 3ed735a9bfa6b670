"""What the references of transforms share: a leaf in extended precision, its norm, its limit, its rounding."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_SINGLE = ("float16", "bfloat16", "float32", "complex64")


@dataclass
class Leaf:
    """One gradient on its way through a chain."""

    path: str
    dtype: Any
    value: Any
    stopped: bool = False
    param: Any = None
    """The parameter, in extended precision."""


def extended(leaf: Any) -> Any:
    """A leaf's numbers in extended precision; integers as they are."""
    array = np.asarray(leaf)
    if array.dtype.kind in "iub":
        return array
    array = _flushed(array)
    if array.dtype.kind == "c":
        return array.astype(np.clongdouble)
    return (array.astype(np.float32) if array.dtype.name == "bfloat16" else array).astype(np.longdouble)


def rounded(leaf: Leaf) -> Any:
    """The value in the leaf's own dtype; bfloat16 by way of float64, and flushed as float32, whose range it has."""
    if leaf.dtype.name != "bfloat16":
        return _flushed(np.asarray(leaf.value).astype(leaf.dtype))
    narrow = np.asarray(leaf.value.astype(np.float64))
    flushing = _SHAKING and _SHAKING[-1][1]
    return (np.where(np.abs(narrow) < 2.0**-126, 0.0 * narrow, narrow) if flushing else narrow).astype(leaf.dtype)


def norm_of(values: Sequence[Any], ord: float) -> Any:
    """The norm of several arrays together."""
    sizes = np.concatenate([np.abs(np.asarray(value)).ravel() for value in values] or [np.zeros(0, np.longdouble)])
    if sizes.size == 0:
        return np.longdouble(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** np.longdouble(ord)).sum() ** (1 / np.longdouble(ord))


def limited(value: Any, norm: Any, max_norm: float, single: bool, changes: Leaf | None = None) -> Any:
    """Times min(1, c / n), with n and c compared in the accumulation dtype.

    A leaf that changes, because slices of it have factors of their own, leaves what its dtype for sums cannot hold.
    """
    number: Any = (
        np.float32 if single and np.all((0 < np.float32(max_norm)) & (np.float32(max_norm) < math.inf)) else np.float64
    )
    factor = np.where(np.isfinite(norm), np.longdouble(max_norm) / np.where(norm == 0, 1, norm), np.nan)
    within = (number(norm) <= number(max_norm)) | (max_norm == math.inf)
    found = np.where(within, value, times(value, factor))
    if changes is None or np.all(within):
        return found
    held = kept(found, changes)
    least = np.finfo(np.float32 if is_single(changes) else np.float64).smallest_normal
    return np.where(np.isfinite(held) & (np.abs(held) >= least) & (not _SHAKING), found, held)


def times(value: Any, factor: Any) -> Any:
    """A value times a real factor; a complex one by its parts, so that infinity times zero does not come up."""
    factor = _moved(factor, 2.0**-50)
    if value.dtype.kind != "c":
        return value * factor
    result = np.empty_like(value)
    result.real, result.imag = value.real * factor, value.imag * factor
    return result


def is_single(leaf: Leaf) -> bool:
    """Whether sums of this leaf are kept in float32."""
    return leaf.dtype.name in _SINGLE


def kept(value: Any, leaf: Leaf) -> Any:
    """A value rounded to the dtype that sums of a leaf are kept in, by way of float64."""
    value = _moved(np.asarray(value), 2.0**-22 if is_single(leaf) else 2.0**-51)
    wide = value.astype("complex128" if value.dtype.kind == "c" else "float64")
    narrow = "complex64" if wide.dtype.kind == "c" else "float32"
    return extended(_flushed(wide.astype(narrow) if is_single(leaf) else wide))


def stored(number: Any, kind: Any) -> Any:
    """A number as a state of some dtype holds it."""
    return np.longdouble(_flushed(np.asarray(kind(number))))


_SHAKING: list[Any] = []
"""A generator and whether subnormal numbers become zero, while results are wanted of another rounding."""


@contextlib.contextmanager
def shaken(rng: Any, flushing: bool) -> Iterator[None]:
    """Within it, what is kept changes by up to two units in the last place: an ill-conditioned result changes much."""
    _SHAKING.append((rng, flushing))
    try:
        yield
    finally:
        _SHAKING.pop()


def _moved(value: Any, unit: float) -> Any:
    if not _SHAKING:
        return value
    value = np.asarray(value)
    parts = [1 + unit * _SHAKING[-1][0].uniform(-1, 1, value.shape).astype(np.longdouble) for _ in range(2)]
    if value.dtype.kind != "c":
        return value * parts[0]
    moved = np.empty_like(value)
    moved.real, moved.imag = value.real * parts[0], value.imag * parts[1]
    return moved


def _flushed(value: Any) -> Any:
    if not _SHAKING or not _SHAKING[-1][1]:
        return value
    if value.dtype.name == "bfloat16":
        return np.where(np.abs(value) < 2.0**-126, np.zeros_like(value), value)
    least = np.finfo(value.dtype).tiny
    if value.dtype.kind != "c":
        return np.where(np.abs(value) < least, value.dtype.type(0), value)
    flushed = value.copy()
    flushed.real[np.abs(value.real) < least], flushed.imag[np.abs(value.imag) < least] = 0, 0
    return flushed
