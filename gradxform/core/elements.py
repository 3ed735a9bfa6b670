"""Elementwise formulas over the active leaves of a flat view and the matching leaves of other trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.backend.lookup import belong
from gradxform.core import align
from gradxform.core.source import DOUBLE, REAL
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.numerics.elementwise import Combination, Formula

STATE_ADVICE = "Start again with tx.init(params), or pass the tree that the state was made for"
"""The advice for a state with different keys."""


def check_real(view: Tree, transform: str, why: str) -> None:
    """Reject active leaves that are not real floating-point numbers.

    Raises:
        TypeError: names the transform, the path, the dtype and the reason.
    """
    view.check(REAL, f"{why}; use masked(...) to exclude it", transform)


def mapped(
    dense: Tree,
    formula: Formula,
    *columns: Sequence[Any],
    numbers: Sequence[Any] = (),
    out: Sequence[Any] | None = None,
    **static: Any,
) -> list[Any]:
    """Apply an elementwise formula to the active leaves, including pending factors, and to other columns; round once.

    The result goes into `out` if given.
    """
    if not dense.chosen:
        return []
    own, factors = [dense.leaves[i] for i in dense.chosen], dense.each_factor()
    return dense.backend.elementwise(formula, [own, *columns], numbers, factors, out, **static)


def times(dense: Tree, leaves: Sequence[Array], factor: Any) -> list[Array]:
    """Multiply arrays in the places of the active leaves by a number, in the memory of these if the tree owns it."""
    own = [dense.leaves[i] for i in dense.chosen] if dense.is_owned(dense.chosen) else None
    return dense.backend.elementwise(_product, [leaves], (), [factor] * len(leaves), own)


_product = Combination(lambda xp: (1.0,))


def written(dense: Tree, formula: Formula, *columns: Sequence[Any], numbers: Sequence[Any] = ()) -> Tree:
    """Replace the active leaves of a dense view with the results of a formula."""
    own = [dense.leaves[i] for i in dense.chosen] if dense.is_owned(dense.chosen) else None
    return dense.given(mapped(dense, formula, *columns, numbers=numbers, out=own))


def chosen(view: Tree, formula: Callable[..., Any], *columns: Sequence[Any], numbers: Sequence[Any] = ()) -> list[Any]:
    """Apply a formula that selects without rounding to the active leaves, without pending factors."""
    own = [view.leaves[i] for i in view.chosen] if view.is_owned(view.chosen) else None
    return view.backend.each(formula, columns, numbers, own)


def is_number(factor: Any) -> bool:
    """Whether a factor is the same for all leaves."""
    shape = getattr(factor, "shape", None)
    return isinstance(factor, (int, float)) or (shape is not None and len(shape) == 0)


def _aligned(view: Tree, tree: Any, what: str, advice: str, own: str = "the gradients") -> list[Array]:
    """Return the leaves of another tree that match the active leaves.

    Raises:
        ValueError: the tree has other keys, lacks a leaf where there is a gradient, or has another
            shape; names the path.
    """
    leaves = align.aligned(view, tree, (own, what), advice).leaves
    found, own_leaves = [leaves[view.source.kept[i]] for i in view.chosen], [view.leaves[i] for i in view.chosen]
    kinds = set(map(type, found))
    if type(None) not in kinds and belong(view.backend, kinds):
        dense, backs = view.backend.dense(found)
        if backs is None and [leaf.shape for leaf in dense] == [leaf.shape for leaf in own_leaves]:
            return list(dense)
    for i, leaf in zip(view.chosen, found, strict=True):
        if leaf is None:
            one = "an update" if own == "the updates" else "a gradient"
            raise ValueError(f"{what} have None at {view.source.path(i)!r}, where there is {one}. {advice}")
    found = [_adopted(view, leaf) for leaf in found]
    for i, leaf in zip(view.chosen, found, strict=True):
        shapes = view.backend.shape(leaf), view.backend.shape(view.leaves[i])
        if view.source.rebuild is None and not may_agree(*shapes):
            raise ValueError(
                f"{what} have shape {shapes[0]} at {view.source.path(i)!r}, where {own.rstrip('s')} has {shapes[1]}. "
                f"{advice}"
            )
    return found


def may_agree(one: Any, other: Any) -> bool:
    """Whether two shapes may be equal; None is unknown."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def state(view: Tree, tree: Any, what: str) -> list[Array]:
    """Return the leaves of a state that match the active leaves.

    Raises:
        ValueError: the state was made for another tree.
    """
    return _aligned(view, tree, what, STATE_ADVICE)


def params(view: Tree, tree: Any, transform: str) -> Sequence[Array]:
    """Return the parameters that match the active leaves.

    Raises:
        ValueError: no parameters, or parameters of another structure.
    """
    if tree is None:
        raise ValueError(f"{transform} needs the parameters: call tx.update(updates, state, params)")
    found = _aligned(view, tree, f"{transform}: the parameters", "Pass the parameters of these gradients")
    return view.backend.alongside(found, [view.leaves[i] for i in view.chosen])


def gradients(view: Tree, tree: Any, transform: str) -> Sequence[Array]:
    """Return the gradients that match the active leaves, which are updates.

    Raises:
        ValueError: no gradients, or gradients of another structure.
    """
    if tree is None:
        raise ValueError(
            f"{transform} needs the gradients beside the updates: pass gradients=gradients to tx.update, with "
            "gx.jax.as_optax(tx) in optax.chain; instead of apply_, use gx.torch.attach(optimizer, tx, on='updates') "
            "or gx.keras.wrap(optimizer, tx, on='updates')"
        )
    found = _aligned(view, tree, f"{transform}: the gradients", "Pass the gradients of these updates", "the updates")
    return view.backend.alongside(found, [view.leaves[i] for i in view.chosen])


def replaced_in(view: Tree, tree: Any, new: Sequence[Array]) -> Any:
    """Return a tree like the gradients', with new leaves in the active places."""
    found = align.aligned(view, tree, ("the gradients", "the state"), STATE_ADVICE)
    leaves = found.leaves
    for i, leaf in zip(view.chosen, new, strict=True):
        slot = view.source.kept[i]
        leaves[slot] = leaf if leaf.dtype == leaves[slot].dtype else _cast(view, leaf, leaves[slot])
    return found.tree(view.backend, leaves)


def _cast(view: Tree, leaf: Array, like: Any) -> Array:
    """Round a leaf to the dtype of one in a state, which may be NumPy's."""
    like = like if isinstance(like, view.backend.types) else view.backend.xp.asarray(like)
    return leaf if view.backend.dtype(leaf) == view.backend.dtype(like) else view.backend.cast([leaf], [like])[0]


def sums_dtype(view: Tree) -> str:
    """The dtype for numbers of a tree: float64 if it has a float64 leaf, else float32."""
    return "float64" if view.source.kinds & DOUBLE else "float32"


def _adopted(view: Tree, leaf: Any) -> Array:
    """Convert a parameter (a variable or a NumPy array) to a dense array of the view's framework."""
    backend = view.backend
    own = leaf if isinstance(leaf, backend.types) else backend.xp.asarray(getattr(leaf, "value", leaf))
    return backend.dense([own], whole=True)[0][0]
