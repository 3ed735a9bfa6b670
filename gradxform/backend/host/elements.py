"""Elementwise formulas on NumPy arrays, in blocks that fit the cache, rounded once.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in float64, float64
elements in pairs, as in every framework; complex elements by their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import longdouble
from gradxform.backend.host.namespace import Namespace, Portable
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import of_elements

_BLOCK = 1 << 14
_WIDE = ("float64", "complex128")


class Block(Portable):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def iota(self, x: Any) -> Any:
        """The index of each element in C order."""
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


def elementwise(
    formula: Callable[..., Any],
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
) -> Any:
    """Apply an elementwise formula; the first array has the shape of the result, the others broadcast.

    The result has the dtype of the first array's sums.
    """
    leaf, double = column[0], column[0].dtype.name in _WIDE
    with np.errstate(all="ignore"):

        def real(parts: Sequence[Any]) -> Any:
            return _in_blocks(one, parts)

        def one(xp: Any, *some: Any) -> Any:
            return of_elements(formula, xp, some, numbers, factor, double, static)

        numbers, factor = list(map(_wide_number, numbers)), _wide_number(factor)
        if leaf.dtype.kind != "c":
            return real(column)
        return Namespace.complex(real([part.real for part in column]), real([part.imag for part in column]))


def _in_blocks(formula: Callable[..., Any], column: Sequence[Any]) -> Any:
    """Apply a formula to real arrays in float64; in blocks if all have one shape."""
    leaf, dtype = column[0], "float64" if column[0].dtype == np.float64 else "float32"
    shapes = {np.shape(getattr(part, "high", part)) for part in column} - {()}
    if len(shapes) > 1 or any(isinstance(part, Pair) for part in column) or leaf.size <= _BLOCK:
        return np.asarray(formula(Block(), *map(_wide, column))).astype(dtype)
    flat = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in column]
    blocks = []
    for start in range(0, leaf.size, _BLOCK):
        some = (_wide(part[start : start + _BLOCK] if np.ndim(part) else part) for part in flat)
        blocks.append(np.asarray(formula(Block(start), *some)).astype(dtype))
    return np.concatenate(blocks).reshape(leaf.shape)


def _wide(part: Any) -> Any:
    """Convert elements to float64; longdouble to pairs."""
    if isinstance(part, Pair):
        return part
    array = np.asarray(part)
    return longdouble.pair(array) if array.dtype == np.longdouble else array.astype(np.float64)


def _wide_number(number: Any) -> Any:
    return number if number is None or isinstance(number, (int, float, Pair)) else _wide(number)
