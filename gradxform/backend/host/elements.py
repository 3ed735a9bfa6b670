"""Formulas of elements on NumPy arrays: a block that fits the cache at a time, rounded once.

For NumPy itself, and for frameworks whose arrays on the CPU NumPy sees without a copy. Elements are computed in
float64, and those of float64 arrays in pairs, as in every framework; complex ones by their parts.
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
    """NumPy's functions, and the numbers of the elements at work."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def iota(self, x: Any) -> Any:
        """The number of each element, counted over its array in C order."""
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


def elementwise(
    formula: Callable[..., Any],
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
) -> Any:
    """The formula of the elements of arrays: the first has the shape of the result, the others broadcast to it.

    The result has the dtype that the first array's sums are kept in.
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
    """The formula of real arrays in float64; in blocks where all are of one shape."""
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
    """Elements in float64; of longdouble as pairs."""
    if isinstance(part, Pair):
        return part
    array = np.asarray(part)
    return longdouble.pair(array) if array.dtype == np.longdouble else array.astype(np.float64)


def _wide_number(number: Any) -> Any:
    return number if number is None or isinstance(number, (int, float, Pair)) else _wide(number)
