"""What the references of transforms share: a leaf in extended precision, its norm, its limit, its rounding."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradxform.proof.extended import each, narrowed, number, size, where

_SINGLE = ("float16", "bfloat16", "float32", "complex64")


@dataclass
class Leaf:
    """One gradient on its way through a chain."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    value: Any
    stopped: bool = False
    param: Any = None


def extended(leaf: Any) -> Any:
    """A leaf's numbers in extended precision; integers as they are."""
    array = np.asarray(leaf)
    return array if array.dtype.kind in "iub" else _flushed(number(array), array.dtype)


def rounded(leaf: Leaf) -> Any:
    """The value in the leaf's own dtype."""
    return narrowed(_flushed(leaf.value, leaf.dtype), leaf.dtype)


def norm_of(values: Sequence[Any], ord: float) -> Any:
    """The norm of several arrays together."""
    sizes = np.concatenate([number(size(value)).ravel() for value in values] or [np.zeros(0)])
    if sizes.size == 0:
        return number(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** ord).sum() ** (1 / number(ord))


def limited(value: Any, norm: Any, max_norm: float, single: bool, changes: Leaf | None = None) -> Any:
    """Times min(1, c / n), with n and c compared in the accumulation dtype.

    A leaf that changes, because slices of it have factors of their own, leaves what its dtype for sums cannot hold.
    """
    limit = np.float32(max_norm)
    kind = np.float32 if single and np.all((0 < limit) & (limit < math.inf)) else np.float64
    factor = np.where(np.isfinite(norm), max_norm / np.where(norm == 0, 1, number(norm)), np.nan)
    within = (narrowed(norm, kind) <= narrowed(max_norm, kind)) | (max_norm == math.inf)
    found = where(within, value, times(value, factor))
    if changes is None or np.all(within):
        return found
    held = kept(found, changes)
    least, sizes = np.finfo(np.float32 if is_single(changes) else np.float64).smallest_normal, size(held)
    return where(np.isfinite(sizes) & (sizes >= least) & (not _SHAKING), found, held)


def times(value: Any, factor: Any) -> Any:
    """A value times a real factor; a complex one by its parts, so that infinity times zero does not come up."""
    return each(np.multiply, value, _moved(number(factor), 2.0**-50))


def is_single(leaf: Leaf) -> bool:
    """Whether sums of this leaf are kept in float32."""
    return leaf.dtype.name in _SINGLE


def kept(value: Any, leaf: Leaf) -> Any:
    """A value rounded to the dtype that sums of a leaf are kept in, by way of float64."""
    if is_single(leaf):
        return each(lambda part: stored(np.asarray(part).astype(np.float64), np.float32), _moved(value, 2.0**-22))
    return each(lambda part: stored(part, np.float64), _moved(value, 2.0**-51))


def stored(x: Any, kind: Any) -> Any:
    """A number as a state of some dtype holds it."""
    return extended(narrowed(x, kind))


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
    rng = _SHAKING[-1][0]
    return each(lambda part: part * (1 + number(unit * rng.uniform(-1, 1, np.shape(part)))), value)


def _flushed(value: Any, dtype: Any) -> Any:
    """Without what is subnormal in a dtype; bfloat16 has the range of float32."""
    if not _SHAKING or not _SHAKING[-1][1]:
        return value
    least = np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).tiny
    return each(lambda part: np.where(np.abs(part) < least, 0, part), value)
