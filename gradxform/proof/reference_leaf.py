"""Shared by the reference implementations: a leaf in extended precision, norms, limits and rounding."""

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
    """One gradient in a chain."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    value: Any
    stopped: bool = False
    param: Any = None


def extended(leaf: Any) -> Any:
    """Convert a leaf to extended precision; keep integers."""
    array = np.asarray(leaf)
    return array if array.dtype.kind in "iub" else _flushed(number(array), array.dtype)


def rounded(leaf: Leaf) -> Any:
    """The value in the leaf's own dtype."""
    return narrowed(_flushed(leaf.value, leaf.dtype), leaf.dtype)


def norm_of(values: Sequence[Any], ord: float) -> Any:
    """Return the global norm of several arrays."""
    sizes = np.concatenate([number(size(value)).ravel() for value in values] or [np.zeros(0)])
    if sizes.size == 0:
        return number(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** ord).sum() ** (1 / number(ord))


def limited(value: Any, norm: Any, max_norm: float, single: bool, changes: Leaf | None = None) -> Any:
    """Multiply by min(1, c / n), with n and c compared in the accumulation dtype.

    If slices have separate factors, the result is rounded to the dtype of sums.
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
    """Multiply by a real factor; complex values by parts, to avoid infinity times zero."""
    return each(np.multiply, value, _moved(number(factor), 2.0**-50))


def is_single(leaf: Leaf) -> bool:
    """Whether sums of this leaf are float32."""
    return leaf.dtype.name in _SINGLE


def kept(value: Any, leaf: Leaf) -> Any:
    """Round a value to the dtype of a leaf's sums, through float64."""
    if is_single(leaf):
        return each(lambda part: stored(np.asarray(part).astype(np.float64), np.float32), _moved(value, 2.0**-22))
    return each(lambda part: stored(part, np.float64), _moved(value, 2.0**-51))


def stored(x: Any, kind: Any) -> Any:
    """Round a number to a state's dtype."""
    return extended(narrowed(x, kind))


_SHAKING: list[Any] = []
"""A generator and a flag for flushing, while results with perturbed rounding are computed."""


@contextlib.contextmanager
def shaken(rng: Any, flushing: bool) -> Iterator[None]:
    """In this context, states change by up to 2 ULP; ill-conditioned results change a lot."""
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
    """Flush subnormal numbers of a dtype; bfloat16 has the range of float32."""
    if not _SHAKING or not _SHAKING[-1][1]:
        return value
    least = np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).tiny
    return each(lambda part: np.where(np.abs(part) < least, 0, part), value)
