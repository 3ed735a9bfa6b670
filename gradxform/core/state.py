"""Building blocks of stateful transforms: new states, numbers in them, and a choice between two outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Axes, Backend, Row, Steps
from gradxform.core import align
from gradxform.core.arguments import static
from gradxform.core.leaves import INEXACT, NARROW, put
from gradxform.core.norm import Norm
from gradxform.core.tree import Tree
from gradxform.numerics import DOUBLE, Array, formulas
from gradxform.numerics.elementwise import weighted

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
        return self.array(0, "int32")

    def flag(self, value: bool) -> Array:
        """Create a bool."""
        return self.array(value, "bool")

    def numbers(self, shape: tuple[int, ...], dtype: str | None = None) -> Array:
        """Create zeros of a shape, by default in the dtype of norms."""
        return self.array(np.zeros(shape), dtype)

    def rows(self, per_leaf: bool) -> int:
        """Return the number of rows of a table: one per slot, including None, or one for all."""
        slots = lookup.backend("numpy").flatten(self.params)[0] if self.view is None else self.view.source.slots
        return len(slots) if per_leaf else 1

    def zeros(self, reduced: Callable[[Tree], Axes] | None = None) -> Any:
        """Create zeros like the parameters, in the dtypes of sums of gradients; None stays None.

        `reduced` gives the axes of each leaf that become one long.
        """
        view = self.view
        if view is None:
            return self.params
        dense, source = view.focus([dtype in INEXACT for dtype in view.source.dtypes]).dense(), view.source
        zeros = view.backend.zeros([dense.leaves[i] for i in dense.chosen])
        if reduced is not None:  # a sum is sharded like what is left
            with view.backend.scope():
                rows = zip(zeros, reduced(dense), strict=True)
                zeros = [view.backend.namespace_of(x).sum_over(x, over) for x, over in rows]
            zeros = zeros if view.backend.dense is None else list(view.backend.dense(zeros)[0])
        slots = [source.kept[i] for i in dense.chosen]
        leaves = put([None] * len(source.slots), slots, view.backend.elementwise(formulas.same, [zeros], ()))
        return view.backend.unflatten(source.structure, leaves)

    def array(self, given: Any, dtype: str | None = None) -> Array:
        """Convert a number or an array, by default to the dtype of norms."""
        view = self.view
        dtype = dtype or ("float64" if view is not None and view.source.kinds & DOUBLE else "float32")
        value = np.asarray(given).astype(dtype)
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
    """Return a state with new numbers and vectors in its first fields, in the dtypes and on the devices of the old."""
    new = [stored(view, value, place) for value, place in zip(values, old, strict=False)]
    return type(old)(*new, *old[len(new) :])


def _owner(view: Tree, old: Any) -> Backend:
    """Return the framework of a state: NumPy if it was made without parameters."""
    return view.backend if isinstance(old, view.backend.types) else lookup.owner(old) or view.backend


def advanced(view: Tree, count: Array) -> Array:
    """Increment a counter; it saturates at the largest int32."""
    backend = _owner(view, count)
    xp, dtype = backend.namespace_of(count), backend.dtype(count)
    return xp.cast(count + xp.cast(count < _MOST, dtype), dtype)


def between(view: Tree, number: Any, low: float, high: float) -> Any:
    """Clamp an array hyperparameter to two bounds; NaN stays NaN."""
    return number if static(number) else view.backend.compute(_between, number, low=low, high=high)


def shares(view: Tree, decay: Any) -> tuple[Any, Any]:
    """Return the weights 1 - d and d of a new and an old value; float32 would not hold the first of 1 - 0.999."""
    if static(decay):
        return 1.0 - decay, decay
    old = between(view, decay, 0.0, 1.0)
    return view.backend.compute(formulas.difference, 1.0, old), old


def _between(xp: Any, number: Array, *, low: float, high: float) -> Array:
    return xp.where(number < low, low, xp.where(number > high, high, number))


# --- trees in a state ------------------------------------------------------------------------------------------------


def blend(
    dense: Tree, tree: Any, what: str, weights: Sequence[Any], context: Any, factor: Any = None, multiple: Any = None
) -> tuple[Tree, Any]:
    """Add up the active leaves and those of a tree in the state, times two weights (None: one).

    Return the sums times a factor, or the gradients and a multiple of the sums, and the tree that has the sums. An
    error calls the tree `what`.
    """
    old, other = align.of_state(dense, tree, what)
    last = {1: factor} if multiple is None else {0: None, 1: multiple}
    out = overwritten(dense, old, [(1, dict(enumerate(weights))), (0, last)], context)
    if out is not None:
        return out, other.replaced(dense, old)
    new = dense.mapped(weighted, old, numbers=weights, out=old if context.owned else None)
    if multiple is None:
        out = shown(dense, new, context, factor)
    else:
        out = dense.written(weighted, new, numbers=[None, multiple])
    return out, other.replaced(dense, new)


def overwritten(dense: Tree, old: Row, steps: Steps, context: Any) -> Tree | None:
    """Overwrite the active leaves, column 0, and those of a state, column 1, as `Backend.overwrite` does.

    None if they are not owned or the backend cannot; then nothing has changed.
    """
    own = dense.memory() if context.owned else None
    if own is None or not dense.backend.overwrite([own, old], steps, dense.factors(dense.chosen)):
        return None
    return dense.given(own)


def shown(dense: Tree, new: Sequence[Array], context: Any, factor: Any = None) -> Tree:
    """Replace the active leaves with arrays that the new state keeps, or with a multiple of them."""
    backend, own = dense.backend, dense.memory()
    if isinstance(factor, float) and factor != 1.0 and new:  # a product with one may be no copy
        into = own and backend.elementwise(weighted, [new], [factor], None, own)
        return dense.given(into or backend.multiply(new, factor, False))
    if factor is not None:
        return shown(dense, new, context).scaled(factor)
    if own is not None and not dense.source.kinds & NARROW:
        return dense.given(backend.copied(new, own))
    return dense.given(new).lent() if context.owned else dense.given(backend.copied(new))  # or the adapter copies


# --- one of two outcomes ---------------------------------------------------------------------------------------------


def either(view: Tree, condition: Any, yes: Any, no: Any) -> Any:
    """Select one of two states of the same structure; the condition may be an array of the framework."""
    if static(condition):
        return yes if condition else no
    backend = view.backend
    leaves, structure = backend.flatten(yes)
    sides = [[_adopted(backend, leaf) for leaf in side] for side in (leaves, backend.flatten(no)[0])]
    pairs = enumerate(zip(*sides, strict=True))
    places = [i for i, (one, other) in pairs if isinstance(one, backend.types) and one is not other]
    if not places:
        return yes
    columns = [[side[i] for i in places] for side in sides]
    return backend.unflatten(structure, put(leaves, places, backend.each(_choose, columns, [condition])))


def _adopted(backend: Backend, leaf: Any) -> Any:
    """Convert a part of a state that is still a NumPy array to the framework."""
    given = isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, backend.types)
    return backend.from_numpy(np.asarray(leaf)) if given else leaf


def _choose(xp: Any, yes: Array, no: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, yes, no)


def zero_if(view: Tree, condition: Any, arrays: Sequence[Array], out: Sequence[Array] | None) -> Sequence[Array]:
    """Return zeros if a condition holds, else the arrays; `out` may be overwritten if given."""
    if not static(condition):
        return view.backend.each(_zero_if, [arrays], [condition], out)
    return view.backend.zeros(arrays, inplace=out is not None) if condition else arrays


def _zero_if(xp: Any, x: Array, condition: Array) -> Array:
    return xp.where(condition > 0.0, xp.zeros_like(x), x)


def applied_if(
    view: Tree, condition: Any, inner: Any, given: Callable[[], Tree], state: Any, context: Any
) -> tuple[Tree, Any]:
    """Apply a transform if a condition holds; otherwise return zeros and the old state.

    What it stops is stopped in every step. Pending factors of leaves out of scope stay. If the condition cannot be
    read, both outcomes are computed and one is selected.
    """
    known = static(condition) and not view.groups  # else other devices wait for numbers
    if known and condition:
        return inner.rule(given(), state, context)
    if known and not inner.traits.stops:
        own = [view.leaves[i] for i in view.chosen]
        return view.given(view.backend.zeros(own, view.is_owned(view.chosen))), state
    new, after = inner.rule(given(), state, context._replace(owned=False))
    return _chosen(new, condition), either(view, condition, after, state)


def counted_if(view: Tree, due: Any, inner: Any, state: T, context: Any, *numbers: Any) -> tuple[Tree, T]:
    """Apply a transform if a step is due; the state has new numbers before this condition and the inner state."""
    out, after = applied_if(view, due, inner, lambda: view, state[-1], context)
    return out, type(state)(*[*stored_as(view, state, *numbers, due)[:-1], after])


def _chosen(view: Tree, condition: Any) -> Tree:
    """Return the view if a condition holds, else zeros for its active leaves; factors stay pending."""
    if not view.chosen:
        return view
    compute, factor = view.backend.compute, view.factor
    own = [view.leaves[i] for i in view.chosen]
    kept = zero_if(view, compute(formulas.difference, 1.0, condition), own, view.memory())
    if factor is not None:
        active = None if len(view.chosen) == len(view.leaves) else view.active
        factor = compute(_or_one, factor, condition, active=active)
    return view.given(kept, applied=False)._replace(factor=factor)


@formulas.by_number
def _or_one(xp: Any, factor: Array, condition: Array, *, active: tuple[bool, ...] | None) -> Array:
    chosen = xp.where(condition > 0.0, factor, 1.0)
    return chosen if active is None else xp.where(xp.mask(active), chosen, factor)


# --- tables with a row per leaf --------------------------------------------------------------------------------------


def by_row(view: Tree, norm: Norm, rows: int | None) -> Any:
    """Arrange numbers of leaves as rows of a state: one per slot, NaN for holes; a single number as the only row.

    Rows are sorted by path, so the order is the same in every framework.
    """
    if rows == 1 and not len(getattr(norm.value, "shape", ())):
        return view.backend.compute(formulas.stack, norm.value)
    count = len(view.source.slots)
    if rows not in (None, count):  # None in a graph with unknown shapes
        raise ValueError(f"the state has norms of {rows} gradients, the tree {count}; make it with tx.init(params)")
    order, slots = _order(view), norm.slots
    if slots is None:
        if len(view.chosen) == count and order == tuple(range(count)):
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
