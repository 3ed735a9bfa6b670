"""Building blocks of stateful transforms: new states, numbers in them, and a choice between two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core import align, arguments
from gradxform.core.leaves import INEXACT, NARROW, put
from gradxform.core.norm import Norm
from gradxform.core.tree import Tree
from gradxform.numerics import DOUBLE, Array, formulas
from gradxform.numerics.elementwise import Combination

T = TypeVar("T", bound=tuple[Any, ...])
_MOST = 2**31 - 1


class Fresh:
    """Creates the parts of a new state, on the device of the parameters."""

    def __init__(self, params: Any) -> None:
        self.params = params
        self.view = Tree.read(params)
        """None without parameters; then numbers are NumPy arrays."""

    def count(self) -> Array:
        """Create a counter: an int32 zero."""
        return self._array(0, "int32")

    def flag(self, value: bool) -> Array:
        """Create a bool."""
        return self._array(value, "bool")

    def number(self, value: float) -> Array:
        """Create a number in the dtype of norms."""
        return self._array(value, self._dtype)

    def numbers(self, shape: tuple[int, ...], dtype: str | None = None) -> Array:
        """Create zeros of a shape, by default in the dtype of norms."""
        return self._array(np.zeros(shape), dtype or self._dtype)

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
        dense, source = view.focus([dtype in INEXACT for dtype in view.source.dtypes]).dense(), view.source
        zeros = view.backend.zeros([dense.leaves[i] for i in dense.chosen])
        slots = [source.kept[i] for i in dense.chosen]
        leaves = put([None] * len(source.slots), slots, view.backend.elementwise(formulas.same, [zeros], ()))
        return view.backend.unflatten(source.structure, leaves)

    @property
    def _dtype(self) -> str:
        """The dtype of norms of the parameters."""
        return "float64" if self.view is not None and self.view.source.kinds & DOUBLE else "float32"

    def _array(self, given: Any, dtype: str) -> Array:
        value, view = np.asarray(given).astype(dtype), self.view
        if view is None:
            return value
        leaves = view.leaves or view.source.slots  # without a chosen gradient, use any device in the tree
        like = next((leaf for leaf in leaves if isinstance(leaf, view.backend.types)), None)
        return view.backend.from_numpy(value) if like is None else view.backend.stored(value, dtype, like)


# --- numbers in a state ----------------------------------------------------------------------------------------------


def stored(view: Tree, value: Any, old: Array) -> Array:
    """Convert a number or a vector to the dtype and device of an old one in the state."""
    backend = _owner(view, old)
    return backend.stored(value, backend.dtype(old), old)


def stored_as(view: Tree, old: T, *values: Any) -> T:
    """Return a state of numbers and vectors like an old one, with new values."""
    return type(old)(*[stored(view, value, place) for value, place in zip(values, old, strict=True)])


def _owner(view: Tree, old: Any) -> Backend:
    """Return the framework of a state: NumPy if it was made without parameters."""
    return view.backend if isinstance(old, view.backend.types) else lookup.owner(old) or view.backend


def advanced(view: Tree, count: Array) -> Array:
    """Increment a counter; it saturates at the largest int32."""
    backend = _owner(view, count)
    dtype = backend.dtype(count)
    with backend.scope():
        xp = backend.namespace_of(count)
        return xp.cast(count + xp.cast(count < _MOST, dtype), dtype)


def between(view: Tree, number: Any, low: float, high: float) -> Any:
    """Clamp an array hyperparameter to two bounds; NaN stays NaN."""
    return number if arguments.static(number) else view.backend.compute(_between, number, low=low, high=high)


def shares(view: Tree, decay: Any) -> tuple[Any, Any]:
    """Return the weights 1 - d and d of a new and an old value; float32 would not hold the first of 1 - 0.999."""
    if arguments.static(decay):
        return 1.0 - decay, decay
    old = between(view, decay, 0.0, 1.0)
    return view.backend.compute(formulas.difference, 1.0, old), old


def _between(xp: Any, number: Array, *, low: float, high: float) -> Array:
    return xp.where(number < low, low, xp.where(number > high, high, number))


# --- trees in a state ------------------------------------------------------------------------------------------------


def blend(
    dense: Tree, formula: Combination, tree: Any, what: str, numbers: Sequence[Any], context: Any
) -> tuple[list[Array], Any]:
    """Combine the active leaves with those of a tree in the state; return the results, and the tree that has them.

    `numbers` are those of the formula; an error calls the tree `what`.
    """
    old, other = align.of_state(dense, tree, what)
    new = dense.mapped(formula, old, numbers=numbers, out=old if context.owned else None)
    return new, other.replaced(dense, new)


def shown(dense: Tree, new: Sequence[Array], context: Any, factor: Any = None) -> Tree:
    """Replace the active leaves with arrays that the new state keeps, or with a multiple of them."""
    backend = dense.backend
    own = [dense.leaves[i] for i in dense.chosen] if dense.is_owned(dense.chosen) else None
    if isinstance(factor, float) and factor != 1.0 and new:  # a product with one may be no copy
        into = backend.elementwise(_product, [new], (), [factor] * len(new), own) if own is not None else None
        return dense.given(backend.multiply(new, factor, False) if into is None else into)
    if factor is not None:
        return shown(dense, new, context).scaled(factor)
    if own is not None and not dense.source.kinds & NARROW:
        return dense.given(backend.copied(new, own))
    return dense.given(new).lent() if context.owned else dense.given(backend.copied(new))  # or the adapter copies


_product = Combination(lambda xp: (1.0,))


# --- one of two outcomes ---------------------------------------------------------------------------------------------


def is_known(condition: Any) -> bool:
    """Whether a condition is a number on the host, so that only one outcome is computed."""
    return isinstance(condition, (bool, int, float, np.bool_))


def either(view: Tree, condition: Any, yes: Any, no: Any) -> Any:
    """Select one of two states of the same structure; the condition may be an array of the framework."""
    if is_known(condition):
        return yes if condition else no
    backend = view.backend
    leaves, structure = backend.flatten(yes)
    rows = zip(leaves, backend.flatten(no)[0], strict=True)
    pairs = [(_adopted(backend, one), _adopted(backend, other)) for one, other in rows]
    places = [i for i, (one, other) in enumerate(pairs) if isinstance(one, backend.types) and one is not other]
    if not places:
        return yes
    columns = [[pairs[i][side] for i in places] for side in range(2)]
    return backend.unflatten(structure, put(leaves, places, backend.each(_choose, columns, [condition])))


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
        found = inner.rule(nothing.lent(), state, context._replace(owned=False))[0]
        nothing = nothing._replace(stopped=found.stopped, chosen=found.chosen)
    return nothing, state


def _chosen(view: Tree, condition: Any) -> Tree:
    """Return the view if a condition holds, else zeros for its active leaves; factors stay pending."""
    if not view.chosen:
        return view
    kept = view.selected(_or_zero, [view.leaves[i] for i in view.chosen], numbers=[condition])
    factor = view.factor
    if factor is not None:
        active = None if len(view.chosen) == len(view.leaves) else view.active
        factor = view.backend.compute(_or_one, factor, condition, active=active)
    return view.given(kept, applied=False)._replace(factor=factor)


def _or_zero(xp: Any, x: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, x, xp.zeros_like(x))


@formulas.by_number
def _or_one(xp: Any, factor: Array, condition: Array, *, active: tuple[bool, ...] | None) -> Array:
    chosen = xp.where(condition > 0.0, factor, 1.0)
    return chosen if active is None else xp.where(xp.mask(active), chosen, factor)


# --- tables with a row per leaf --------------------------------------------------------------------------------------


def by_row(view: Tree, norm: Norm, rows: int) -> Any:
    """Arrange numbers of leaves as rows of a state: one per slot, NaN for holes; a single number as the only row.

    Rows are sorted by path, so the order is the same in every framework.
    """
    if rows == 1 and not len(getattr(norm.value, "shape", ())):
        return view.backend.compute(formulas.stack, norm.value)
    if rows != len(view.source.slots):
        raise ValueError(
            f"the state has norms of {rows} gradients, the tree {len(view.source.slots)}; make it with tx.init(params)"
        )
    order, slots = _order(view), norm.slots
    if slots is None:
        if len(view.chosen) == rows and order == tuple(range(rows)):
            return norm.value
        slots = view.by_slot(norm)
    return view.backend.compute(_ordered, slots.values, slots.there, order=order)


def rows_of(view: Tree) -> tuple[int, ...]:
    """Return the row of each leaf in a table with one row per slot."""
    rank = {slot: row for row, slot in enumerate(_order(view))}
    return tuple(rank[slot] for slot in view.source.kept)


def _order(view: Tree) -> tuple[int, ...]:
    """Return the slots sorted by path."""
    paths = view.source.find_paths()
    return tuple(sorted(range(len(paths)), key=paths.__getitem__))


def _ordered(xp: Any, values: Array, there: Array, *, order: tuple[int, ...]) -> Array:
    return xp.take(xp.where(there > 0.5, values, float("nan")), order)
