"""Transformations of other libraries in a chain: anything with `init` and `update`."""

from __future__ import annotations

import sys
from typing import Any

from gradxform.backend.lookup import unwrapped
from gradxform.core import fitting
from gradxform.core.flat import Flat
from gradxform.core.transformation import Context, GradientTransformation


def as_transformation(where: str, tx: Any) -> GradientTransformation:
    """A transformation as it is, or a foreign object with `init` and `update` as one.

    Raises:
        TypeError: an object that has not both.
    """
    if isinstance(tx, GradientTransformation):
        return tx
    if isinstance(tx, type) or not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        raise TypeError(
            f"{where}: a transformation or an object with init and update is wanted, got {tx!r} of type "
            f"{type(tx).__name__}" + ("; call it first" if callable(tx) else "")
        )

    def rule(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        params = context.params
        if params is not None and not all(view.scope):
            params = _like(where, view, params)
        extra = context.extra if _takes_extra(tx) else {}
        tree, state = tx.update(view.scoped_tree(), state, params, **extra)
        leaves = [leaf for leaf in view.backend.flatten(tree)[0] if leaf is not None]
        given = [i for i, inside in enumerate(view.scope) if inside]
        if len(leaves) != len(given):
            raise TypeError(f"{where}: {tx!r} returned {len(leaves)} gradients for {len(given)}")
        new = {i: leaf for i, leaf in zip(given, leaves, strict=True) if not view.stopped[i]}
        return view.replaced(new), state

    def start(params: Any) -> Any:
        if isinstance(params, Flat):  # of no leaves: None in the place of each
            params = params.tree() if params.leaves else params.scoped_tree()
        return tx.init(params)

    return GradientTransformation(rule, start)


def name_of(tx: Any) -> str:
    """The name of a transformation; of a foreign one, whose update may be a function of its own, the factory's."""
    own = tx.name if isinstance(tx, GradientTransformation) else ""
    return own or getattr(tx.update, "__qualname__", "").partition(".")[0] or type(tx).__name__


def _takes_extra(tx: Any) -> bool:
    """Whether it is one of optax's that take extra arguments."""
    optax = sys.modules.get("optax")
    return optax is not None and isinstance(tx, optax.GradientTransformationExtraArgs)


def _like(where: str, view: Flat, params: Any) -> Any:
    """The parameters of the gradients in scope, with None for the others."""
    found = fitting.aligned(view, params, ("the gradients", f"{where}: the parameters"))
    inside = {view.source.kept[i] for i, there in enumerate(view.scope) if there}
    kept = [unwrapped(leaf) if slot in inside else None for slot, leaf in enumerate(found.leaves)]
    return found.tree(view.backend, kept)
