"""Elementwise formulas on NumPy arrays, in blocks that fit the cache, rounded once.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in float64, float64
elements in pairs, as in every framework; complex elements by their parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.host import longdouble, threads, together
from gradxform.backend.host.namespace import Portable
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import Single, applied, of_elements

BLOCK = 1 << 13
"""Elements of a block. Larger temporary arrays go back to the system each time, and their pages are made anew."""
_LARGE = 1 << 20
"""A process with arrays of so many elements keeps larger ones, too: without threads, blocks are four times as large."""
_WIDE = ("float64", "complex128")
_DOUBLE = {np.dtype(np.float64), np.dtype(np.longdouble)}
_PLAIN = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}


class Block(Portable):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0, sizes: Sequence[int] = ()) -> None:
        self.start, self.sizes = start, sizes

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; `yes` itself if the condition always holds, since `Work` copies results."""
        same = isinstance(condition, np.ndarray) and isinstance(yes, np.ndarray) and yes.shape == condition.shape
        if same and condition.all() and yes.dtype == np.result_type(yes, no):
            return yes
        return Portable.where(condition, yes, no)

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
    rest = [i for i, found in enumerate(out) if found is None]
    work = Work()
    for i in rest:
        out[i] = _started(work, formula, rows[i], numbers, factors[i], static)
    work.done()
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
    work = Work()
    out = _started(work, formula, column, numbers, factor, static, sizes)
    work.done()
    return out


def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[Any]:
    """Apply a formula that selects and does not round; each result has its first array's shape and dtype."""
    given, work = [np.float64(number) for number in numbers], Work()
    out = [_empty(row[0], row[0].dtype) for row in zip(*columns, strict=True)]
    for found, *row in zip(out, *columns, strict=True):
        work.add(lambda xp, *some: formula(xp, *some, *given), row, None, found)
    work.done()
    return out


def _started(
    work: Work,
    formula: Callable[..., Any],
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
    sizes: Sequence[int] = (),
) -> Any:
    """Return an array for the results of `elementwise`, and add to `work` what fills it."""
    leaf, double = column[0], column[0].dtype.name in _WIDE
    numbers, factor = list(map(_wide_number, numbers)), _wide_number(factor)
    factors = [] if factor is None else [factor]
    plain = not double and not any([_is_paired(part) for part in (*column, *numbers, *factors)])
    single = isinstance(formula, Single) and factor is None

    def one(xp: Any, *some: Any) -> Any:
        if plain:
            return applied(formula, xp, some, numbers, factors, static)
        return of_elements(formula, xp, some, numbers, factor, double, static)

    def add(parts: Sequence[Any], out: Any) -> None:
        wide = "float64" if not single or any([np.result_type(part) in _DOUBLE for part in parts]) else "float32"
        work.add(formula if single else one, parts, wide, out, sizes)

    if leaf.dtype.kind != "c":
        out = _empty(leaf, "float64" if double else "float32")
        add(column, out)
        return out
    out = _empty(leaf, "complex128" if double else "complex64")
    add([part.real for part in column], out.real)
    add([part.imag for part in column], out.imag)
    return out


def _empty(leaf: Any, dtype: Any) -> Any:
    """A new array of a leaf's shape; many elements lie in C order, to be filled in blocks."""
    return np.empty_like(leaf, dtype, "C" if leaf.size > BLOCK else "K", subok=False)


class _Part(NamedTuple):
    """What is left to do for a leaf."""

    compute: Callable[[slice], None]
    """Computes a range of elements."""
    size: int
    divisible: bool
    """Whether it may be called for a part of the elements."""

    def step(self, threaded: bool) -> int:
        """How many elements are computed with one call."""
        if not self.divisible:
            return max(self.size, 1)
        return threads.BLOCK if threaded else BLOCK if self.size < _LARGE else 4 * BLOCK


class Work:
    """What is left to do for the leaves of a tree, in blocks of elements, with threads."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(
        self, formula: Callable[..., Any], column: Sequence[Any], wide: str | None, out: Any, sizes: Sequence[int] = ()
    ) -> None:
        """Add a formula of arrays converted to a dtype, or as they are; not in blocks if shapes differ."""
        shapes = {np.shape(getattr(part, "high", part)) for part in column} - {()}
        if sizes or len(shapes) > 1 or any(isinstance(part, Pair) for part in column) or out.size <= BLOCK:

            def whole(_: slice) -> None:
                out[...] = formula(Block(0, sizes), *(_wide(part, wide) for part in column))

            self._parts.append(_Part(whole, out.size, divisible=False))
            return
        flat, found = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in column], out.reshape(-1)

        def some(block: slice) -> None:
            given = [_wide(part[block] if np.ndim(part) else part, wide) for part in flat]
            found[block] = formula(Block(block.start), *given)

        self._parts.append(_Part(some, out.size, divisible=True))

    def done(self) -> None:
        """Compute everything that was added."""
        items = sum([1 + part.divisible for part in self._parts])  # at least
        threaded = threads.worth(items, sum([part.size for part in self._parts]))
        blocks: list[Callable[[], None]] = []
        sizes = []
        for part in self._parts:
            step = part.step(threaded)
            for start in range(0, max(part.size, 1), step):
                blocks.append(functools.partial(part.compute, slice(start, start + step)))
                sizes.append(min(step, part.size - start))
        with np.errstate(all="ignore"):
            threads.spread(lambda block: block(), blocks, sizes)


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
