"""Elementwise formulas on NumPy arrays, in blocks that fit the cache, rounded once.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in float64, float64
elements in pairs, as in every framework; complex elements by their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import longdouble, threads
from gradxform.backend.host.namespace import Namespace, Portable
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import Single, of_elements

_BLOCK = 1 << 15
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
            single = isinstance(formula, Single) and factor is None
            wide = "float64" if double or not single else "float32"
            return _in_blocks(formula if single else one, parts, wide, "float64" if double else "float32")

        def one(xp: Any, *some: Any) -> Any:
            return of_elements(formula, xp, some, numbers, factor, double, static)

        numbers, factor = list(map(_wide_number, numbers)), _wide_number(factor)
        if leaf.dtype.kind != "c":
            return real(column)
        return Namespace.complex(real([part.real for part in column]), real([part.imag for part in column]))


def each(formula: Callable[..., Any], column: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Apply a formula that selects and does not round; the result has the first array's shape and dtype."""
    given = [np.float64(number) for number in numbers]
    with np.errstate(all="ignore"):
        return _in_blocks(lambda xp, *some: formula(xp, *some, *given), column, None, column[0].dtype)


def _in_blocks(formula: Callable[..., Any], column: Sequence[Any], wide: str | None, dtype: Any) -> Any:
    """Apply a formula to arrays converted to a dtype, or as they are; to many elements in blocks, with threads.

    Not in blocks if shapes differ.
    """
    leaf = column[0]
    shapes = {np.shape(getattr(part, "high", part)) for part in column} - {()}
    if len(shapes) > 1 or any(isinstance(part, Pair) for part in column) or leaf.size <= _BLOCK:
        return np.asarray(formula(Block(), *(_wide(part, wide) for part in column))).astype(dtype)
    flat = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in column]
    out, starts = np.empty(leaf.size, dtype), range(0, leaf.size, _BLOCK)

    def one(start: int) -> None:
        block = slice(start, start + _BLOCK)
        found = formula(Block(start), *(_wide(part[block] if np.ndim(part) else part, wide) for part in flat))
        np.copyto(out[block], found, casting="unsafe")

    threads.spread(one, starts, [_BLOCK] * len(starts))
    return out.reshape(leaf.shape)


def _wide(part: Any, dtype: str | None = "float64") -> Any:
    """Convert elements to a dtype; longdouble to pairs."""
    if isinstance(part, Pair) or dtype is None:
        return part
    array = np.asarray(part)
    return longdouble.pair(array) if array.dtype == np.longdouble else array.astype(dtype, copy=False)


def _wide_number(number: Any) -> Any:
    return number if number is None or isinstance(number, (int, float, Pair)) else _wide(number)
