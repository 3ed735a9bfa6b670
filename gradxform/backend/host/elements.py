"""Elementwise formulas on NumPy arrays, in blocks that fit the cache, in the dtype of a leaf's sums.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Complex elements are computed by parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import threads, together
from gradxform.backend.host.namespace import Namespace
from gradxform.numerics import sums_dtype
from gradxform.numerics.elementwise import Combination, combined, weights_of
from gradxform.numerics.rescale import is_extreme, product

BLOCK = 1 << 14
"""Elements of a block. Larger temporary arrays go back to the system each time, and their pages are made anew."""
_PLAIN = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}


class Block(Namespace):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0, sizes: Sequence[int] = ()) -> None:
        self.start, self.sizes = start, sizes

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; `yes` itself if the condition always holds, since `Work` copies results."""
        same = isinstance(condition, np.ndarray) and isinstance(yes, np.ndarray) and yes.shape == condition.shape
        if same and condition.all() and yes.dtype == np.result_type(yes, no):
            return yes
        return Namespace.where(condition, yes, no)

    def iota(self, x: Any) -> Any:
        """The index of each element in C order; of leaves that are computed together, in its leaf."""
        if self.sizes:
            return np.concatenate([np.arange(size) for size in self.sizes])
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


def of_leaves(
    formula: Any,
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any],
    static: dict[str, Any],
    into: Sequence[Any] | None = None,
) -> list[Any]:
    """Apply an elementwise formula to each leaf and the arrays beside it; to small ones of one dtype together.

    `into`: arrays for the results, used where they fit; they may be among the columns.
    """
    rows, work = list(zip(*columns, strict=True)), _Work()
    out: list[Any] = [None] * len(rows)
    for (factor, kinds), small in together.groups(columns[0], list(map(_kind, rows, factors))):
        joined = [together.joined(column, small, kind) for column, kind in zip(columns, kinds, strict=True)]
        found = np.empty(joined[0].size, sums_dtype(joined[0]))
        _add(work := _Work(), formula, joined, numbers, factor, static, found, [columns[0][i].size for i in small])
        work.done()
        together.parted(found, columns[0], small, out)
    work = _Work()
    for i, row in enumerate(rows):
        if out[i] is None:
            out[i] = _room(row[0], None if into is None else into[i])
            _add_parts(work, formula, row, numbers, factors[i], static, out[i])
    work.done()
    return out


def _kind(row: Sequence[Any], factor: Any) -> Any:
    """What leaves that are computed together have in common; `...` for one that is computed alone."""
    plain = all([type(part) is np.ndarray and part.dtype in _PLAIN and part.shape == row[0].shape for part in row])
    if not plain or not row[0].ndim or not (factor is None or isinstance(factor, (int, float))):
        return ...
    return factor, tuple([part.dtype for part in row])


def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[Any]:
    """Apply a formula that selects and does not round; each result has its first array's shape and dtype."""
    given, work = [np.float64(number) for number in numbers], _Work()
    out = [_empty(row[0], row[0].dtype) for row in zip(*columns, strict=True)]
    for found, *row in zip(out, *columns, strict=True):
        work.add(lambda xp, out, *some: np.copyto(out, formula(xp, *some, *given), "same_kind"), row, found)
    work.done()
    return out


def _room(leaf: Any, given: Any) -> Any:
    """An array for the results of a leaf: the given one if it fits."""
    kind: Any = sums_dtype(leaf)
    if leaf.dtype.kind == "c":
        kind = np.result_type(kind, np.complex64)
    fits = type(given) is np.ndarray and (given.dtype, given.shape) == (kind, leaf.shape) and given.flags.c_contiguous
    return given if fits and given.flags.writeable else _empty(leaf, kind)


def _empty(leaf: Any, dtype: Any) -> Any:
    """A new array of a leaf's shape; many elements lie in C order, to be filled in blocks."""
    return np.empty_like(leaf, dtype, "C" if leaf.size > BLOCK else "K", subok=False)


def _add_parts(
    work: _Work, formula: Any, row: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any], out: Any
) -> None:
    """Add what fills an array to the work; complex arrays by parts."""
    if row[0].dtype.kind != "c":
        return _add(work, formula, row, numbers, factor, static, out)
    _add(work, formula, [part.real for part in row], numbers, factor, static, out.real)
    _add(work, formula, [part.imag for part in row], numbers, factor, static, out.imag)


def _add(
    work: _Work,
    formula: Any,
    row: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
    out: Any,
    sizes: Sequence[int] = (),
) -> None:
    kind = out.dtype.type
    if isinstance(formula, Combination):
        given = weights_of(formula, Namespace, numbers, factor)
        weights = [number if np.ndim(number) else float(number) for number in given]
        if kind is np.float64 or not any([not np.ndim(weight) and is_extreme(weight) for weight in weights]):
            return work.add(functools.partial(_combined, [kind(weight) for weight in weights]), row, out, sizes)
        return work.add(functools.partial(_sum_of_products, weights, kind), row, out, sizes)
    given = [kind(number) for number in numbers]

    def one(xp: Any, out: Any, *some: Any) -> None:
        first, *others = [part.astype(kind, copy=False) if np.ndim(part) or part is some[0] else part for part in some]
        first = first if factor is None else product(Namespace, first, factor)
        np.copyto(out, formula(xp, first, *others, *given, **static), "same_kind")

    work.add(one, row, out, sizes)


def _combined(weights: Sequence[Any], xp: Any, out: Any, *some: Any) -> None:
    """Write the sum of products to an array, which may be one of the elements."""
    wide = [part if part.dtype == out.dtype else part.astype(out.dtype) for part in some]
    ones = [weight == 1 for weight in weights]
    if len(wide) == 1:
        np.multiply(wide[0], weights[0], out)
        return
    last = wide[-1] if ones[-1] else np.multiply(wide[-1], weights[-1])
    for x, weight, one in zip(wide[-2::-1], weights[-2::-1], ones[-2::-1], strict=True):
        term = x if one else np.multiply(x, weight)
        last = np.add(last, term, out if x is wide[0] else None)


def _sum_of_products(weights: Sequence[Any], kind: Any, xp: Any, out: Any, *some: Any) -> None:
    """The same with weights that float32 does not hold, in two steps each."""
    np.copyto(out, combined(Namespace, [part.astype(kind, copy=False) for part in some], weights), "same_kind")


class _Work:
    """What is left to do for the leaves of a tree, in blocks of elements, with threads."""

    def __init__(self) -> None:
        self._parts: list[tuple[Callable[[slice], None], int, bool]] = []
        """For each leaf, a function that computes a range of elements, their number, and whether it takes parts."""

    def add(self, kernel: Callable[..., None], row: Sequence[Any], out: Any, sizes: Sequence[int] = ()) -> None:
        """Add a kernel of arrays that fills another; not in blocks if shapes differ."""
        shapes = {np.shape(part) for part in row} - {()}
        if sizes or len(shapes) > 1 or out.size <= BLOCK or not out.flags.c_contiguous:
            self._parts.append((lambda _: kernel(Block(0, sizes), out, *row), out.size, False))
            return
        flat, found = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in row], out.reshape(-1)

        def some(block: slice) -> None:
            kernel(Block(block.start), found[block], *[part[block] if np.ndim(part) else part for part in flat])

        self._parts.append((some, out.size, True))

    def done(self) -> None:
        """Compute everything that was added."""
        items = sum([1 + divisible for _, _, divisible in self._parts])  # at least
        threaded = threads.worth(items, sum([size for _, size, _ in self._parts]))
        blocks: list[Callable[[], None]] = []
        sizes = []
        for compute, size, divisible in self._parts:
            step = max(size, 1) if not divisible else threads.BLOCK if threaded else BLOCK
            for start in range(0, max(size, 1), step):
                blocks.append(functools.partial(compute, slice(start, start + step)))
                sizes.append(min(step, size - start))
        with np.errstate(all="ignore"):
            threads.spread(lambda block: block(), blocks, sizes)
