"""What the references of transforms share: a leaf in extended precision, its norm, its limit, its rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    if array.dtype.kind == "c":
        return array.astype(np.clongdouble)
    return (array.astype(np.float32) if array.dtype.name == "bfloat16" else array).astype(np.longdouble)


def rounded(leaf: Leaf) -> Any:
    """The value in the leaf's own dtype; bfloat16 by way of float64."""
    narrow = leaf.value.astype(np.float64) if leaf.dtype.name == "bfloat16" else leaf.value
    return np.asarray(narrow).astype(leaf.dtype)


def norm_of(values: Sequence[Any], ord: float) -> Any:
    """The norm of several arrays together."""
    sizes = np.concatenate([np.abs(np.asarray(value)).ravel() for value in values] or [np.zeros(0, np.longdouble)])
    if sizes.size == 0:
        return np.longdouble(0)
    largest = sizes.max()
    if not 0 < largest < np.inf or ord == math.inf:
        return largest
    return largest * ((sizes / largest) ** np.longdouble(ord)).sum() ** (1 / np.longdouble(ord))


def limited(value: Any, norm: Any, max_norm: float, single: bool) -> Any:
    """Times min(1, c / n), with n and c compared in the accumulation dtype."""
    rounded: Any = np.float32 if single and 0 < np.float32(max_norm) < math.inf else np.float64
    factor = np.where(np.isfinite(norm), np.longdouble(max_norm) / np.where(norm == 0, 1, norm), np.nan)
    return np.where((rounded(norm) <= rounded(max_norm)) | (max_norm == math.inf), value, times(value, factor))


def times(value: Any, factor: Any) -> Any:
    """A value times a real factor; a complex one by its parts, so that infinity times zero does not come up."""
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
    wide = np.asarray(value).astype("complex128" if np.asarray(value).dtype.kind == "c" else "float64")
    narrow = "complex64" if wide.dtype.kind == "c" else "float32"
    return extended(wide.astype(narrow) if is_single(leaf) else wide)
