"""Elementwise formulas on NumPy arrays, in blocks that fit the cache, rounded once.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in float64, float64
elements in pairs, as in every framework; complex elements by their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import longdouble, threads, together
from gradxform.backend.host.namespace import Namespace, Portable
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import Single, applied, of_elements

BLOCK = 1 << 13
"""Elements of a block. Larger temporary arrays go back to the system each time, and their pages are made anew."""
_LARGE = 1 << 20
"""A process with arrays of so many elements keeps larger ones, too: blocks are four times as large."""
_WIDE = ("float64", "complex128")
_DOUBLE = {np.dtype(np.float64), np.dtype(np.longdouble)}
_PLAIN = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}


class Block(Portable):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0, sizes: Sequence[int] = ()) -> None:
        self.start, self.sizes = start, sizes

    def iota(self, x: Any) -> Any:
        """The index of each element in C order; of leaves that are computed together, in its leaf."""
        if self.sizes:
            return np.concatenate([np.arange(size) for size in self.sizes])
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


def of_leaves(
    formula: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any],
    static: dict[str, Any],
) -> list[Any]:
    """Apply an elementwise formula to each leaf and the arrays beside it; to small ones of one shape together."""
    rows = list(zip(*columns, strict=True))
    out: list[Any] = [None] * len(rows)
    for (factor, double), small in together.groups(columns[0], list(map(_kind, rows, factors))):
        sizes = [columns[0][i].size for i in small]
        joined = [together.joined(column, small, np.float64) for column in columns]
        leaf = joined[0] if double else joined[0].astype(np.float32)
        found = elementwise(formula, [leaf, *joined[1:]], numbers, factor, static, sizes)
        together.parted(found, columns[0], small, out)
    for i, (factor, row) in enumerate(zip(factors, rows, strict=True)):
        if out[i] is None:
            out[i] = elementwise(formula, row, numbers, factor, static)
    return out


def _kind(row: Sequence[Any], factor: Any) -> Any:
    """What leaves that are computed together have in common; `...` for one that is computed alone."""
    leaf = row[0]
    plain = all([type(part) is np.ndarray and part.dtype in _PLAIN and part.shape == leaf.shape for part in row])
    if not plain or not leaf.ndim or not (factor is None or isinstance(factor, (int, float))):
        return ...
    return factor, leaf.dtype == np.float64


def elementwise(
    formula: Callable[..., Any],
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
    sizes: Sequence[int] = (),
) -> Any:
    """Apply an elementwise formula; the first array has the shape of the result, the others broadcast.

    The result has the dtype of the first array's sums. `sizes`: of the leaves whose elements the arrays are.
    """
    leaf, double = column[0], column[0].dtype.name in _WIDE
    with np.errstate(all="ignore"):

        def real(parts: Sequence[Any]) -> Any:
            single = isinstance(formula, Single) and factor is None
            wide = "float64" if not single or any([np.result_type(part) in _DOUBLE for part in parts]) else "float32"
            return _in_blocks(formula if single else one, parts, wide, "float64" if double else "float32", sizes)

        def one(xp: Any, *some: Any) -> Any:
            if plain:
                return applied(formula, xp, some, numbers, factors, static)
            return of_elements(formula, xp, some, numbers, factor, double, static)

        numbers, factor = list(map(_wide_number, numbers)), _wide_number(factor)
        factors = [] if factor is None else [factor]
        plain = not double and not any([_is_paired(part) for part in (*column, *numbers, *factors)])
        if leaf.dtype.kind != "c":
            return real(column)
        return Namespace.complex(real([part.real for part in column]), real([part.imag for part in column]))


def each(formula: Callable[..., Any], column: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Apply a formula that selects and does not round; the result has the first array's shape and dtype."""
    given = [np.float64(number) for number in numbers]
    with np.errstate(all="ignore"):
        return _in_blocks(lambda xp, *some: formula(xp, *some, *given), column, None, column[0].dtype)


def _in_blocks(
    formula: Callable[..., Any], column: Sequence[Any], wide: str | None, dtype: Any, sizes: Sequence[int] = ()
) -> Any:
    """Apply a formula to arrays converted to a dtype, or as they are; to many elements in blocks, with threads.

    Not in blocks if shapes differ.
    """
    leaf = column[0]
    shapes = {np.shape(getattr(part, "high", part)) for part in column} - {()}
    if sizes or len(shapes) > 1 or any(isinstance(part, Pair) for part in column) or leaf.size <= BLOCK:
        return np.asarray(formula(Block(0, sizes), *(_wide(part, wide) for part in column))).astype(dtype)
    flat = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in column]
    size = BLOCK if leaf.size < _LARGE else 4 * BLOCK
    out, starts = np.empty(leaf.size, dtype), range(0, leaf.size, size)

    def one(start: int) -> None:
        block = slice(start, start + size)
        out[block] = formula(Block(start), *[_wide(part[block] if np.ndim(part) else part, wide) for part in flat])

    threads.spread(one, starts, [size] * len(starts))
    return out.reshape(leaf.shape)


def _is_paired(part: Any) -> bool:
    return isinstance(part, Pair) or getattr(part, "dtype", None) == np.longdouble


def _wide(part: Any, dtype: str | None = "float64") -> Any:
    """Convert elements to a dtype; longdouble to pairs."""
    if isinstance(part, Pair) or dtype is None:
        return part
    array = np.asarray(part)
    return longdouble.pair(array) if array.dtype == np.longdouble else array.astype(dtype, copy=False)


def _wide_number(number: Any) -> Any:
    return number if number is None or isinstance(number, (int, float, Pair)) else _wide(number)
