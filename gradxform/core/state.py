"""Building blocks of stateful transforms: new states, numbers in them, and a choice between two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core import arguments, elements
from gradxform.core.norm import Norm
from gradxform.core.source import INEXACT, NARROW
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas

_MOST = 2.0**31 - 1


class Fresh:
    """Creates the parts of a new state, on the device of the parameters."""

    def __init__(self, params: Any) -> None:
        self.params = params
        self.view = Tree.read(params)
        """None without parameters; then numbers are NumPy arrays."""

    @property
    def dtype(self) -> str:
        """The dtype of norms of the parameters."""
        return "float32" if self.view is None else elements.sums_dtype(self.view)

    def count(self) -> Array:
        """Create a counter: an int32 zero."""
        return self.numbers((), "int32")

    def flag(self, value: bool) -> Array:
        """Create a bool."""
        return self._array(np.array(value), "bool")

    def number(self, value: float) -> Array:
        """Create a number in the dtype of norms."""
        return self._array(np.array(value), self.dtype)

    def numbers(self, shape: tuple[int, ...], dtype: str | None = None) -> Array:
        """Create zeros of a shape."""
        return self._array(np.zeros(shape), dtype or self.dtype)

    def rows(self, per_leaf: bool) -> int:
        """Return the number of rows of a table: one per slot, including None, or one for all."""
        if not per_leaf:
            return 1
        slots = lookup.backend("numpy").flatten(self.params)[0] if self.view is None else self.view.source.slots
        return len(slots)

    def zeros(self) -> Any:
        """Create zeros like the parameters, in the dtypes of sums of gradients; None stays None."""
        view = self.view
        if view is None:
            return self.params
        source, leaves = view.source, [None] * len(view.source.slots)
        floating = [i for i, dtype in enumerate(source.dtypes) if dtype in INEXACT]
        dense = view.densified().leaves
        wide = view.backend.elementwise(formulas.same, [view.backend.zeros([dense[i] for i in floating])], ())
        for i, leaf in zip(floating, wide, strict=True):
            leaves[source.kept[i]] = leaf
        return view.backend.unflatten(source.structure, leaves)

    def _array(self, value: Any, dtype: str) -> Array:
        view = self.view
        if view is None:
            return value.astype(dtype)
        leaves = view.leaves or view.source.slots  # without a chosen gradient, use any device in the tree
        like = next((leaf for leaf in leaves if isinstance(leaf, view.backend.types)), None)
        value = value.astype(dtype)
        return view.backend.from_numpy(value) if like is None else view.backend.stored(value, dtype, like)


def stored(view: Tree, value: Any, old: Array) -> Array:
    """Convert a number or a vector to the dtype and device of an old one in the state."""
    backend = _owner(view, old)
    dtype = backend.dtype(old)
    return backend.stored(value, dtype, old)


def _owner(view: Tree, old: Any) -> Backend:
    """Return the framework of a state: NumPy if it was made without parameters."""
    return view.backend if isinstance(old, view.backend.types) else lookup.owner(old) or view.backend


def advanced(view: Tree, count: Array) -> Array:
    """Increment a counter; it saturates at the largest int32."""
    return stored(view, view.backend.compute(_next, count), count)


def _next(xp: Any, count: Array) -> Array:
    return xp.where(count < _MOST, count + 1.0, count)


def between(view: Tree, number: Any, low: float, high: float) -> Any:
    """Clamp an array hyperparameter to two bounds; NaN stays NaN."""
    if arguments.static(number):
        return number
    return view.backend.compute(_between, number, low=low, high=high)


def _between(xp: Any, number: Array, *, low: float, high: float) -> Array:
    return xp.where(number < low, low, xp.where(number > high, high, number))


def is_known(condition: Any) -> bool:
    """Whether a condition is a number on the host, so that only one outcome is computed."""
    return isinstance(condition, (bool, int, float, np.bool_))


def either(view: Tree, condition: Any, yes: Any, no: Any) -> Any:
    """Select one of two states of the same structure; the condition may be an array of the framework."""
    if is_known(condition):
        return yes if condition else no
    backend = view.backend
    first, structure = backend.flatten(yes)
    second = backend.flatten(no)[0]
    pairs_of = [(_adopted(backend, a), _adopted(backend, b)) for a, b in zip(first, second, strict=True)]
    arrays = [i for i, (a, b) in enumerate(pairs_of) if isinstance(a, backend.types) and a is not b]
    out = list(first)
    if arrays:
        new = backend.each(_choose, [[pairs_of[i][0] for i in arrays], [pairs_of[i][1] for i in arrays]], [condition])
        for i, leaf in zip(arrays, new, strict=True):
            out[i] = leaf
    return backend.unflatten(structure, out)


def _adopted(backend: Backend, leaf: Any) -> Any:
    """Convert a part of a state that is still a NumPy array to the framework."""
    given = isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, backend.types)
    return backend.from_numpy(np.asarray(leaf)) if given else leaf


def _choose(xp: Any, yes: Array, no: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, yes, no)


def zero_if(view: Tree, condition: Any, arrays: Sequence[Array], out: Sequence[Array] | None) -> Sequence[Array]:
    """Return zeros if a condition holds, else the arrays; `out` may be overwritten if given."""
    if not arrays or (is_known(condition) and not condition):
        return arrays
    if is_known(condition):
        return view.backend.zeros(arrays, inplace=out is not None)
    return view.backend.each(_zero_if, [arrays], [condition], out)


def _zero_if(xp: Any, x: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, xp.zeros_like(x), x)


def shown(dense: Tree, new: Sequence[Array], context: Any, factor: Any = None) -> Tree:
    """Replace the active leaves with arrays that the new state keeps, or with a multiple of them."""
    if isinstance(factor, float) and dense.chosen:
        return dense.given(elements.times(dense, new, factor))
    if factor is not None:
        return shown(dense, new, context).scaled(factor)
    if dense.is_owned(dense.chosen) and not dense.source.kinds & NARROW:
        return dense.given(dense.backend.copied(new, [dense.leaves[i] for i in dense.chosen]))
    return dense.given(new).lent() if context.owned else dense.given(dense.backend.copied(new))  # or the adapter copies


def applied_if(
    view: Tree, condition: Any, inner: Any, given: Callable[[], Tree], state: Any, context: Any
) -> tuple[Tree, Any]:
    """Apply a transform if a condition holds; otherwise return zeros and the old state.

    What it stops is stopped in every step. Pending factors of leaves out of scope stay. If the condition cannot be
    read, both outcomes are computed and one is selected.
    """
    if not is_known(condition) or view.groups:  # other devices wait for numbers
        new, after = inner.rule(given(), state, context._replace(owned=False))
        number = float(condition) if is_known(condition) else condition
        return _chosen(new, number), either(view, condition, after, state)
    if condition:
        return inner.rule(given(), state, context)
    own = [view.leaves[i] for i in view.chosen]
    nothing = view.given(view.backend.zeros(own, view.is_owned(view.chosen)))
    if inner.traits.stops:
        kept = context._replace(owned=False)
        found = inner.rule(nothing.lent(), state, kept)[0]
        nothing = nothing._replace(stopped=found.stopped, chosen=found.chosen)
    return nothing, state


def _chosen(view: Tree, condition: Any) -> Tree:
    """Return the view if a condition holds, else zeros for its active leaves; factors stay pending."""
    if not view.chosen:
        return view
    kept = elements.chosen(view, _or_zero, [view.leaves[i] for i in view.chosen], numbers=[condition])
    factor = view.factor
    if factor is not None:
        active = None if len(view.chosen) == len(view.leaves) else view.active
        factor = view.backend.compute(_or_one, factor, condition, active=active)
    return view.given(kept, applied=False)._replace(factor=factor)


def _or_zero(xp: Any, x: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, x, xp.zeros_like(x))


def _or_one(xp: Any, factor: Array, condition: Array, *, active: tuple[bool, ...] | None) -> Array:
    chosen = xp.where(condition > 0.0, factor, 1.0)
    return chosen if active is None else xp.where(xp.mask(active), chosen, factor)


def one_row(view: Tree, norm: Norm) -> Any:
    """Arrange a global norm as the only row of a state."""
    return view.backend.compute(_one_row, norm.value)


def by_row(view: Tree, norm: Norm, rows: int) -> Any:
    """Arrange numbers of leaves as rows of a state: one per slot, NaN for holes; a single number as the only row.

    Rows are sorted by path, so the order is the same in every framework.
    """
    norms = norm.value
    if rows == 1 and len(getattr(norms, "shape", ())) == 0:
        return view.backend.compute(_one_row, norms)
    if rows != len(view.source.slots):
        raise ValueError(f"the state has norms of {rows} gradients, the tree {len(view.source.slots)}; both must match")
    if norm.slots is not None:
        paths = view.source.find_paths()
        order = tuple(sorted(range(rows), key=paths.__getitem__))
        return view.backend.compute(_ordered, *norm.slots, order=order)
    if not view.leaves:
        return view.backend.compute(_none, rows=rows)
    row_of = rows_of(view)
    if len(view.chosen) == len(view.leaves) and row_of == tuple(range(rows)):
        return norms
    places = {row_of[place]: place for place in view.chosen}
    index = tuple(places.get(row, 0) for row in range(rows))
    return view.backend.compute(_spread, norms, index=index, there=tuple(row in places for row in range(rows)))


def rows_of(view: Tree) -> tuple[int, ...]:
    """Return the row of each leaf in a table with one row per slot."""
    paths = view.source.find_paths()
    rank = {slot: row for row, slot in enumerate(sorted(range(len(paths)), key=paths.__getitem__))}
    return tuple(rank[slot] for slot in view.source.kept)


def _none(xp: Any, *, rows: int) -> Array:
    return xp.arange(rows) * float("nan")


def _one_row(xp: Any, number: Array) -> Array:
    return xp.stack([number])


def _ordered(xp: Any, values: Array, there: Array, *, order: tuple[int, ...]) -> Array:
    return xp.take(xp.where(there > 0.5, values, float("nan")), order)


def _spread(xp: Any, vector: Array, *, index: tuple[int, ...], there: tuple[bool, ...]) -> Array:
    return xp.where(xp.mask(there), xp.take(vector, index), float("nan"))
