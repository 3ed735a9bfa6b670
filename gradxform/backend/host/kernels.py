"""Kernels on NumPy arrays, in blocks that fit the cache, and the choice between NumPy and the framework.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in the dtype of a
leaf's sums; complex ones by parts.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import namespace, threads
from gradxform.backend.host.namespace import NUMPY, Namespace
from gradxform.backend.protocol import Backend, Columns, Given, Row
from gradxform.numerics import Array, ranking, sums, sums_dtype
from gradxform.numerics.elementwise import Combination, Formula, combined, weights_of
from gradxform.numerics.rescale import is_extreme, product

BLOCK = 1 << 14
"""Elements of a block. Larger temporary arrays go back to the system each time, and their pages are made anew."""
_PLAIN = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}
_NUMBERS = {float, int, np.ndarray}

_Kernel = Callable[..., None]
"""Takes a namespace, the array for the results, and elements."""
_Work = tuple[_Kernel, Sequence[Any], Any]
"""A kernel, elements, and the array for the results."""


class Block(Namespace):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0, sizes: Sequence[int] = ()) -> None:
        self.start, self.sizes = start, sizes

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; `yes` itself if the condition always holds, since results are copied."""
        same = isinstance(condition, np.ndarray) and isinstance(yes, np.ndarray) and yes.shape == condition.shape
        if same and condition.all() and yes.dtype == np.result_type(yes, no):
            return yes
        return super().where(condition, yes, no)

    def iota(self, x: Any) -> Any:
        """The index of each element in C order; of leaves that are computed together, in its leaf."""
        if self.sizes:
            return np.concatenate([np.arange(size) for size in self.sizes])
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


def of_leaves(
    formula: Formula, columns: Columns, numbers: Row, factors: Row, static: dict[str, Any], into: Given = None
) -> list[Any]:
    """Apply an elementwise formula to each leaf and the arrays beside it; to small ones of one dtype together.

    `into`: arrays for the results, used where they fit; they may be among the columns.
    """
    rows, leaves = list(zip(*columns, strict=True)), columns[0]
    out: list[Any] = [None] * len(rows)
    with np.errstate(all="ignore"):
        for (factor, _), small in threads.together(leaves, list(map(_kind, rows, factors))):
            joined = [np.concatenate([column[i] for i in small], axis=None) for column in columns]
            found, start = np.empty(joined[0].size, sums_dtype(joined[0])), 0
            kernel = _kernel(formula, found.dtype.type, numbers, factor, static)
            kernel(Block(0, [leaves[i].size for i in small]), found, *joined)
            for i in small:
                end = start + leaves[i].size
                out[i] = found[start:end].reshape(leaves[i].shape).copy()
                start = end
        work: list[_Work] = []
        for i in [i for i, found in enumerate(out) if found is None]:
            out[i] = _room(leaves[i], None if into is None else into[i])
            kernel = _kernel(formula, out[i].real.dtype.type, numbers, factors[i], static)
            if out[i].dtype.kind == "c":
                work.append((kernel, [part.real for part in rows[i]], out[i].real))
                work.append((kernel, [part.imag for part in rows[i]], out[i].imag))
            else:
                work.append((kernel, rows[i], out[i]))
        if work:
            _do(work)
    return out


def _kind(row: Sequence[Any], factor: Any) -> Any:
    """What leaves that are computed together have in common; `...` for one that is computed alone."""
    plain = all([type(part) is np.ndarray and part.dtype in _PLAIN and part.shape == row[0].shape for part in row])
    if not plain or not row[0].ndim or not (factor is None or isinstance(factor, (int, float))):
        return ...
    return factor, tuple([part.dtype for part in row])


def each(formula: Callable[..., Any], columns: Columns, numbers: Row) -> list[Any]:
    """Apply a formula that selects and does not round; each result has its first array's shape and dtype."""
    given, out = [np.float64(number) for number in numbers], [_empty(leaf, leaf.dtype) for leaf in columns[0]]

    def selected(xp: Any, out: Any, *some: Any) -> None:
        np.copyto(out, formula(xp, *some, *given), "same_kind")

    with np.errstate(all="ignore"):
        _do([(selected, row, found) for found, *row in zip(out, *columns, strict=True)])
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


def _kernel(formula: Formula, kind: Any, numbers: Sequence[Any], factor: Any, static: dict[str, Any]) -> _Kernel:
    """Return the kernel of a formula of real elements, in a dtype of sums."""
    if isinstance(formula, Combination):
        given = weights_of(formula, NUMPY, numbers, factor)
        weights = [number if getattr(number, "ndim", 0) else float(number) for number in given]
        if kind is np.float64 or not any([isinstance(weight, float) and is_extreme(weight) for weight in weights]):
            return functools.partial(_combined, [kind(weight) for weight in weights])
        return functools.partial(_combined_in_steps, weights)
    given = [kind(number) for number in numbers]

    def one(xp: Any, out: Any, *some: Any) -> None:
        first, *others = [part.astype(kind, copy=False) if np.ndim(part) or part is some[0] else part for part in some]
        first = first if factor is None else product(NUMPY, first, factor)
        np.copyto(out, formula(xp, first, *others, *given, **static), "same_kind")

    return one


def _combined(weights: Sequence[Any], xp: Any, out: Any, *some: Any) -> None:
    """Write the sum of products to an array, which may be one of the elements."""
    *others, last = [part if part.dtype == out.dtype else part.astype(out.dtype) for part in some]
    if not others:
        np.multiply(last, weights[0], out)
        return
    aliased = any([np.may_share_memory(other, out) for other in others])
    total = last if weights[-1] == 1 else np.multiply(last, weights[-1], None if aliased else out)
    for rank in range(len(others) - 1, -1, -1):
        term = others[rank] if weights[rank] == 1 else np.multiply(others[rank], weights[rank])
        total = np.add(total, term, None if aliased and rank else out)


def _combined_in_steps(weights: Sequence[Any], xp: Any, out: Any, *some: Any) -> None:
    """The same with weights that float32 does not hold, in two steps each."""
    np.copyto(out, combined(NUMPY, [part.astype(out.dtype, copy=False) for part in some], weights), "same_kind")


def _do(work: Sequence[_Work]) -> None:
    """Fill the arrays, in blocks of elements; by several threads if there are many."""
    step = threads.BLOCK if threads.worth(2, sum([out.size for _, _, out in work])) else BLOCK
    blocks = [block for each in work for block in _blocks(*each, step)]
    threads.spread(lambda block: block[0](), blocks, [size for _, size in blocks])


def _blocks(kernel: _Kernel, row: Sequence[Any], out: Any, step: int) -> Iterator[tuple[Callable[[], None], int]]:
    """Divide the elements of arrays into blocks, each a call and its size; not if shapes differ."""
    if out.size <= BLOCK or not out.flags.c_contiguous or len({np.shape(part) for part in row} - {()}) > 1:
        yield functools.partial(kernel, Block(), out, *row), out.size
        return
    flat, found = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in row], out.reshape(-1)
    for start in range(0, out.size, step):
        own = slice(start, start + step)
        parts = [part[own] if np.ndim(part) else part for part in flat]
        yield functools.partial(kernel, Block(start), found[own], *parts), found[own].size


class Readable(Backend):
    """A backend with arrays in host memory: NumPy computes on them without a copy.

    The results are Python floats and NumPy arrays, which the kernels accept like the framework's own.
    """

    @abc.abstractmethod
    def readable(self, arrays: Iterable[Array]) -> bool:
        """Whether values may be read: none is traced, on another device, or differentiated."""

    @abc.abstractmethod
    def view(self, array: Array) -> Any:
        """View an array's memory in NumPy, read-only; bfloat16 as float32."""

    def taken(self, array: Any) -> Array:
        """Wrap a NumPy array that nobody else holds."""
        return self.from_numpy(array)

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """Apply a formula to the elements of each leaf."""
        by = [None] * len(columns[0]) if factors is None else factors
        if not self._all_readable([*itertools.chain(*columns), *numbers, *by]):
            return super().elementwise(formula, columns, numbers, factors, **static)
        *seen, given, by = [list(map(self._seen, some)) for some in (*columns, numbers, by)]
        return list(map(self.taken, of_leaves(formula, seen, given, by, static)))

    def each(self, formula: Callable[..., Array], columns: Columns, numbers: Row, out: Given = None) -> list[Array]:
        """Apply a formula that selects to the elements of each leaf, in their dtypes; NumPy if one has many."""
        large = any([self.count(leaf, None) > BLOCK for leaf in columns[0]])
        if not large or not self._all_readable([*itertools.chain(*columns), *numbers]):
            return super().each(formula, columns, numbers)
        *seen, given = [list(map(self._seen, some)) for some in (*columns, numbers)]
        return self.as_given(columns[0], list(map(self._taken_like, columns[0], each(formula, seen, given))))

    def sum_over(self, leaf: Array, axes: tuple[int, ...], weights: Array | None) -> Any:
        """Return sums over some axes; NumPy takes half of PyTorch's time."""
        if self._all_readable([leaf, weights]):
            with np.errstate(all="ignore"):
                return sums.sum_over(NUMPY, self.view(leaf), axes, self._seen(weights))
        return super().sum_over(leaf, axes, weights)

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of each leaf."""
        if not self.readable(leaves):
            return super().largest(leaves, counts)
        found = [ranking.largest(NUMPY, self.view(leaf), n) for leaf, n in zip(leaves, counts, strict=True)]
        return list(map(self._taken_like, leaves, found))

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Evaluate a formula of numbers and vectors."""
        if self.readable(()) if _NUMBERS.issuperset(map(type, operands)) else self._all_readable(operands):
            return namespace.compute(formula, *map(self._seen, operands), **static)
        return super().compute(formula, *operands, **static)

    def _all_readable(self, operands: Sequence[Any]) -> bool:
        return self.readable([operand for operand in operands if isinstance(operand, self.types)])

    def _taken_like(self, leaf: Array, array: Any) -> Array:
        """Wrap a NumPy array in a leaf's dtype."""
        new = self.taken(array)
        return new if self.dtype(leaf) == self.dtype(new) else self.cast([new], [leaf])[0]

    def _seen(self, operand: Any) -> Any:
        return self.view(operand) if isinstance(operand, self.types) else operand
