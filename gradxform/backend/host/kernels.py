"""Kernels on NumPy arrays, in blocks that fit the cache, and the choice between NumPy and the framework.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy. Elements are computed in the dtype of a
leaf's sums; complex ones by parts.
"""

from __future__ import annotations

import abc
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import namespace, threads
from gradxform.backend.host.namespace import NUMPY, Namespace
from gradxform.backend.protocol import Backend, Columns, Given, Row, Steps, grouped
from gradxform.numerics import Array, ranking, sums_dtype
from gradxform.numerics.elementwise import Formula, in_steps, product, weighted

BLOCK = 1 << 14
"""Elements of a block. Larger temporary arrays go back to the system each time, and their pages are made anew."""
_FEW = 1 << 10
"""Elements of a leaf up to which the calls of a selection cost more than its elements."""
_PLAIN = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}
NUMBERS = {float, int, np.ndarray}

_Kernel = Callable[..., Any]
"""Takes a namespace, the array for the results, and elements."""
_Found = tuple[Any, _Kernel]
"""The dtype of results, and the kernel that computes them."""
_Work = tuple[_Kernel, Sequence[Any], Any]
"""A kernel, elements, and the array for the results."""
_Step = tuple[int, list[int], list[Any], Any]


class Block(Namespace):
    """NumPy's functions, and the indices of the current elements."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; one side itself if the condition always or never holds, since results are copied."""
        if isinstance(condition, np.ndarray):
            met = np.count_nonzero(condition)
            side = yes if met == condition.size else no if met == 0 else None
            if type(side) is np.ndarray and side.shape == condition.shape and side.dtype == np.result_type(yes, no):
                return side
        return super().where(condition, yes, no)

    def iota(self, x: Any) -> Any:
        """The index of each element in its leaf, in C order. Noise has a key of each leaf, so no two are joined."""
        return np.arange(self.start, self.start + x.size).reshape(x.shape)


_WHOLE = Block()
_NEW = itertools.repeat(None)
"""In place of given arrays: new ones."""


def of_leaves(
    formula: Formula, columns: Columns, numbers: Row, factors: Row, static: dict[str, Any], into: Given = None
) -> list[Any]:
    """Apply an elementwise formula to each leaf and the arrays beside it; to small ones of one dtype together.

    `into`: arrays for the results, used where they fit; they may be among the columns.
    """
    if formula is weighted:
        return _combined(columns, numbers, factors, into)
    kinds = list(map(_kind, zip(*columns, strict=True), factors))

    def kernel_of(dtype: Any, factor: Any) -> _Found:
        kind = _summed(dtype)
        real = _kernel(formula, np.dtype(kind.char.lower()), numbers, factor, static)
        return kind, functools.partial(_by_parts, real) if kind.kind == "c" else real

    return _apply(kernel_of, columns, factors, kinds, into)


def _by_parts(kernel: _Kernel, xp: Any, out: Any, *some: Any) -> None:
    """Compute complex elements by parts."""
    kernel(xp, out.real, *[part.real for part in some])
    kernel(xp, out.imag, *[part.imag for part in some])


def _exactly(factor: Any) -> Any:
    """What equal factors share: 0.0 and -0.0 are not equal, and an array equals itself alone."""
    return factor.hex() if type(factor) is float else id(factor)


def _kind(row: Sequence[Any], factor: Any) -> Any:
    """What leaves that are computed together have in common; None for one that is computed alone.

    Factors of 0.0 and -0.0 are equal, and give zeros of other signs.
    """
    plain = all([type(part) is np.ndarray and part.dtype in _PLAIN and part.shape == row[0].shape for part in row])
    if not plain or not row[0].ndim or not (factor is None or (factor and isinstance(factor, (int, float)))):
        return None
    return factor, tuple([part.dtype for part in row])


@namespace.QUIET
def _apply(
    kernel_of: Callable[[Any, Any], _Found], columns: Columns, factors: Row, kinds: Row, into: Given = None
) -> list[Any]:
    """Apply kernels to leaves and the arrays beside them; to small leaves of one kind at once.

    `kernel_of` takes a leaf's dtype and factor, and returns the dtype of the results and the kernel.
    """
    leaves, out, work, made = columns[0], list[Any]([None] * len(factors)), list[_Work](), dict[Any, _Found]()

    def known(i: int) -> _Found:
        key = leaves[i].dtype, _exactly(factors[i])
        if key not in made:
            made[key] = kernel_of(leaves[i].dtype, factors[i])
        return made[key]

    for places in threads.together([leaf.size for leaf in leaves], kinds):
        joined = [np.concatenate([column[i] for i in places], axis=None) for column in columns]
        dtype, kernel = known(places[0])
        found, start = np.empty(joined[0].size, dtype), 0
        kernel(_WHOLE, found, *joined)
        for i in places:
            end = start + leaves[i].size
            out[i] = found[start:end].reshape(leaves[i].shape).copy()
            start = end
    for i, row in enumerate(zip(*columns, strict=True)):
        if out[i] is None:
            leaf, (dtype, kernel) = row[0], known(i)
            fits = into is not None and _fit([into[i]], [leaf], [dtype])
            out[i] = into[i] if into is not None and fits else _empty(leaf, dtype)
            work.append((kernel, row, out[i]))
    if work:
        _do(work)
    return out


def _fit(arrays: Row, leaves: Row, kinds: Row) -> bool:
    """Whether the results of leaves fit given arrays."""
    same = {*map(type, arrays)} == {np.ndarray} and [x.dtype for x in arrays] == kinds
    return same and all([x.shape == leaf.shape and x.flags.carray for x, leaf in zip(arrays, leaves, strict=True)])


@functools.cache
def _summed(dtype: Any) -> Any:
    """The dtype of sums of elements, complex for complex ones."""
    kind = sums_dtype(np.empty(0, dtype))
    return np.result_type(kind, np.complex64) if dtype.kind == "c" else np.dtype(kind)


def _empty(leaf: Any, dtype: Any) -> Any:
    """A new array of a leaf's shape; many elements lie in C order, to be filled in blocks."""
    whole = leaf.size <= BLOCK and all(np.asarray(leaf).strides)  # not of an array that was expanded
    return np.empty_like(leaf, dtype, "K" if whole else "C", subok=False)


def _kernel(formula: Formula, dtype: Any, numbers: Sequence[Any], factor: Any, static: dict[str, Any]) -> _Kernel:
    """Return the kernel of a formula of real elements, in a dtype of sums."""
    given = [dtype.type(number) for number in numbers]

    def computed(xp: Any, out: Any, *some: Any) -> None:
        first, *others = [part.astype(dtype, copy=False) if np.ndim(part) or part is some[0] else part for part in some]
        first = first if factor is None else product(NUMPY, first, factor)
        np.copyto(out, formula(xp, first, *others, *given, **static), "same_kind")

    return computed


def _do(work: Sequence[_Work]) -> None:
    """Fill the arrays, in blocks; in larger ones by several threads if there are many."""
    step = threads.BLOCK if threads.worth(2, sum([out.size for _, _, out in work])) else BLOCK
    blocks = [block for each in work for block in _blocks(*each, step)]
    threads.spread(lambda block: block[0](), blocks, [size for _, size in blocks])


def _blocks(kernel: _Kernel, row: Sequence[Any], out: Any, step: int) -> Iterator[tuple[Callable[[], None], int]]:
    """Divide the elements of arrays into blocks, each a call and its size; not if shapes differ."""
    if out.size <= step or not out.flags.c_contiguous or len({np.shape(part) for part in row} - {()}) > 1:
        yield functools.partial(kernel, _WHOLE, out, *row), out.size
        return
    flat, found = [np.asarray(part).reshape(-1) if np.ndim(part) else part for part in row], out.reshape(-1)
    for start in range(0, out.size, step):
        own = slice(start, start + step)
        parts = [part[own] if np.ndim(part) else part for part in flat]
        yield functools.partial(kernel, Block(start), found[own], *parts), found[own].size


# --- sums of leaves times numbers: one pass per term, for as many small leaves at a time as fit the cache -------------


def overwrite(columns: Columns, steps: Steps, factors: Any = None) -> bool:
    """Overwrite arrays of float32 or float64 with weighted sums, step by step; False if one does not fit."""
    leaves, count = columns[0], len(columns[0])
    kinds = [leaf.dtype for leaf in leaves]
    if not all([kind.char in "fd" for kind in kinds]) or not all([_fit(column, leaves, kinds) for column in columns]):
        return False
    each = [None] * count if factors is None else np.broadcast_to(np.asarray(factors, "d"), count).tolist()
    _sums(columns, steps, each)
    return True


def _combined(columns: Columns, numbers: Row, factors: Row, into: Given) -> list[Any]:
    """Add up products of columns and weights, in the given arrays if all fit."""
    target = len(columns)
    if into is not None and _fit(into, columns[0], [_summed(leaf.dtype) for leaf in columns[0]]):
        target = next((k for k, column in enumerate(columns) if all(map(operator.is_, column, into))), target)
        columns = [*columns, into] if target == len(columns) else columns
    return _sums(columns, [(target, dict(enumerate(numbers)))], factors)


@namespace.QUIET
def _sums(columns: Columns, steps: Steps, factors: Row) -> list[Any]:
    """Overwrite columns, which fit, and return those of the last step; of the temporary column new arrays."""
    leaves, target = columns[0], steps[-1][0]
    sizes, out = [leaf.size for leaf in leaves], [*(columns[target] if target < len(columns) else leaves)]
    made: dict[Any, Any] = {}
    work: list[Any] = []
    rows = zip(leaves, factors, strict=True)
    keys = [(leaf.dtype, leaf.ndim > 0, by if by is None else _exactly(by)) for leaf, by in rows]
    for places in grouped(sizes, keys, threads.CACHED, threads.CACHED):
        some, (leaf, key) = [[column[i] for i in places] for column in columns], (leaves[places[0]], keys[places[0]])
        kind = _summed(leaf.dtype)
        if key not in made:
            made[key] = [_step(*step, np.dtype(kind.char.lower()), factors[places[0]]) for step in steps]
        if target == len(columns) and (leaf.size > threads.BLOCK or kind.kind == "c"):
            some.append([_empty(leaves[i], kind) for i in places])
        run = functools.partial(_in_turn, made[key], kind)
        if leaf.size > threads.BLOCK:
            row = [x for (x,) in some]
            out[places[0]], places = row[target], []
            blocks = _blocks(lambda _, __, *some, run=run: run([[x] for x in some]), row, row[target], threads.BLOCK)
            work += [(*block, places) for block in blocks]
        else:
            work.append((functools.partial(run, some), sum([x.size for x in some[0]]), places))
    found = threads.spread(lambda item: item[0](), work, [size for _, size, _ in work])
    for (_, _, places), new in zip(work, found, strict=True):
        for i, x in zip(places, new, strict=False):
            out[i] = np.asarray(x)
    return out


def _step(target: int, terms: Mapping[int, Any], dtype: Any, factor: Any) -> _Step:
    """Return a step's target and columns, what to multiply each by, and what joins the last one: a weight of -1."""
    weights = [x if x is None or isinstance(x, (int, float)) else np.asarray(x, "d") for x in terms.values()]
    if factor is not None and 0 in terms:
        weights[0] = factor if weights[0] is None else weights[0] * factor
    less = len(weights) > 1 and isinstance(weights[-1], float) and weights[-1] == -1.0
    by = [_numbers(weight, dtype, len(weights) == 1) for weight in (weights[:-1] if less else weights)]
    return target, list(terms), [*by, []] if less else by, np.subtract if less else np.add


def _numbers(weight: Any, dtype: Any, alone: bool) -> list[Any]:
    """Return what to multiply by: nothing for a weight of one, unless the product is to be a copy."""
    if getattr(weight, "ndim", 0):
        return [np.array(weight, dtype)]
    known = 1.0 if weight is None else float(weight)
    if known == 1.0 and not alone:
        return []
    return [np.array(step, dtype) for step in (in_steps(NUMPY, known) if dtype.char == "f" else [known])]


def _in_turn(steps: Sequence[_Step], kind: Any, given: Sequence[list[Any]]) -> list[Any]:
    """Overwrite columns step by step; the column after those given is temporary, and read once. Complex by parts."""
    columns: list[Any] = [*given, None]
    if kind.kind == "c":
        for part in (np.real, np.imag):
            _in_turn(steps, kind.type().real.dtype, [list(map(part, column)) for column in given])
        return columns[steps[-1][0]]
    has_axes = given[0][0].ndim > 0  # else a product is a scalar
    for target, terms, weights, join in steps:
        out = columns[target]
        if terms:
            place = terms[-1] if has_axes and terms[-1] == len(given) else target
            into = None if place in terms[:-1] else columns[place]
            some = [columns[term] for term in terms]
            columns[target] = _added(some, weights, join, kind, out, into, has_axes)
        else:
            for x in out:
                x.fill(0.0)
    return columns[target]


def _added(columns: Row, weights: Row, join: Any, dtype: Any, out: Given, into: Given, has_axes: bool) -> list[Any]:
    """Return sums of elements times weights, in arrays if some are given, which may be one of the columns.

    `join` adds or subtracts the last column. The product of the last one may overwrite `into`.
    """
    total: Any = None
    for rank in range(len(columns) - 1, -1, -1):
        x = columns[rank]
        if {part.dtype for part in x} != {dtype}:
            x = [part.astype(dtype, copy=False) for part in x]
        for step in weights[rank]:  # large temporary arrays take new pages each time
            x = list(map(np.multiply, x, itertools.repeat(step), (into if total is None else None) or _NEW))
        into = x if into is None and weights[rank] and has_axes else into
        if total is None:
            total = x
        else:
            total, join = list(map(join, x, total, (into if rank else out or into) or _NEW)), np.add
    return total


class Readable(Backend):
    """Kernels for arrays in host memory whose values may be read: NumPy computes on them without a copy.

    Numbers and vectors are Python floats and NumPy arrays, which the kernels accept like the framework's own.
    """

    @abc.abstractmethod
    def view(self, array: Array) -> Any:
        """View an array's memory in NumPy, read-only; bfloat16 as float32."""

    def taken(self, array: Any) -> Array:
        """Wrap a NumPy array that nobody else holds."""
        return self.from_numpy(array)

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """Apply a formula to the elements of each leaf; arrays in `out` have views that may be written."""
        nothing = [None] * len(columns[0])
        given = [*columns, numbers, factors or nothing, out or nothing]
        views = {id(x): self._seen(x) for x in itertools.chain(*given)}  # one view of an array in two columns
        *seen, numbers, by, memory = [[views[id(x)] for x in some] for some in given]
        found = of_leaves(formula, seen, numbers, by, static, out and memory)
        rows = zip(found, memory, out or nothing, strict=True)
        return [own if new is place else self.taken(new) for new, place, own in rows]

    def each(self, formula: Callable[..., Array], columns: Columns, numbers: Row, out: Given = None) -> list[Array]:
        """Apply a formula that selects to the elements of each leaf, in their dtypes."""
        seen, given = (
            [list(map(self._seen, column)) for column in columns],
            [np.float64(self._seen(x)) for x in numbers],
        )

        def selected(xp: Any, out: Any, *some: Any) -> None:
            np.copyto(out, formula(xp, *some, *given), "same_kind")

        kinds = [_kind(row, None) if row[0].size <= _FEW else None for row in zip(*seen, strict=True)]
        found = _apply(lambda dtype, _: (dtype, selected), seen, [None] * len(kinds), kinds)
        return self.as_given(columns[0], self._taken_like(columns[0], found))

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of each leaf."""
        pairs = zip(leaves, counts, strict=True)
        return self._taken_like(leaves, [ranking.largest(NUMPY, self.view(leaf), n) for leaf, n in pairs])

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Evaluate a formula of numbers and vectors."""
        return namespace.compute(formula, *map(self._seen, operands), **static)

    def _taken_like(self, leaves: Sequence[Array], arrays: Sequence[Any]) -> list[Array]:
        """Wrap NumPy arrays in the leaves' dtypes."""
        new = list(map(self.taken, arrays))
        same = all([leaf.dtype == own.dtype for leaf, own in zip(leaves, new, strict=True)])
        return new if same else self.cast(new, leaves)

    def _seen(self, operand: Any) -> Any:
        return self.view(operand) if isinstance(operand, self.types) else operand
