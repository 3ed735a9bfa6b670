"""Adapt transformations of other libraries: any object with `init` and `update`."""

from __future__ import annotations

import sys
from typing import Any

from gradxform.backend.lookup import holds_arrays, unwrapped
from gradxform.backend.misplaced import misplaced, short
from gradxform.core import align
from gradxform.core.flat import Flat
from gradxform.core.transformation import Context, GradientTransformation


def as_transformation(where: str, tx: Any, other: Any = None, call: str = "") -> GradientTransformation:
    """Return a transformation unchanged; wrap a foreign object with `init` and `update`.

    Args:
        where: the function that received it, for error messages.
        tx: the transformation.
        other: another argument of the function, possibly swapped with it.
        call: how the function is called.

    Raises:
        TypeError: an object without both methods, or an optimizer.
    """
    if isinstance(tx, GradientTransformation):
        return tx
    if not is_transformation(tx):
        hint = f"; the arguments are swapped: write {call}" if is_transformation(other) else _hint(tx)
        raise TypeError(
            f"{where}: expected a transformation or an object with init and update, got {short(tx)} of type "
            f"{type(tx).__name__}{hint}"
        )

    def rule(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        params = context.params
        if params is not None and not all(view.scope):
            params = _like(where, view, params)
        optax = sys.modules.get("optax")
        takes_extra = optax is not None and isinstance(tx, optax.GradientTransformationExtraArgs)
        tree, state = tx.update(view.scoped_tree(), state, params, **(context.extra if takes_extra else {}))
        leaves = [leaf for leaf in view.backend.flatten(tree)[0] if leaf is not None]
        given = [i for i, inside in enumerate(view.scope) if inside]
        if len(leaves) != len(given):
            raise TypeError(f"{where}: {tx!r} returned {len(leaves)} gradients for {len(given)}")
        new = {i: leaf for i, leaf in zip(given, leaves, strict=True) if not view.stopped[i]}
        return view.replaced(new), state

    def start(params: Any) -> Any:
        if isinstance(params, Flat):  # a view without leaves has None everywhere
            params = params.tree() if params.leaves else params.scoped_tree()
        return tx.init(params)

    return GradientTransformation(rule, start)


def is_transformation(tx: Any) -> bool:
    """Whether it is a transformation, or a foreign object with `init` and `update` that is not an optimizer."""
    if isinstance(tx, GradientTransformation):
        return True
    if isinstance(tx, type) or not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        return False
    found = misplaced(tx)
    return found is None or found.kind != "optimizer"


def _hint(tx: Any) -> str:
    """Say what to write instead of an object that is not a transformation; empty if unknown."""
    found = misplaced(tx)
    if found is not None:
        return f", {found.what}" + (f"; {found.instead}" if found.kind == "optimizer" else "")
    if isinstance(tx, (list, tuple)) and tx and all(map(is_transformation, tx)):
        return "; write gx.chain(*txs)"
    if holds_arrays(tx):
        return "; gradients come later: tx(gradients)"
    return "; call it first" if callable(tx) else ""


def name_of(tx: Any) -> str:
    """Return the name of a transformation; for a foreign one, the name of its factory."""
    own = tx.name if isinstance(tx, GradientTransformation) else ""
    return own or getattr(tx.update, "__qualname__", "").partition(".")[0] or type(tx).__name__


def _like(where: str, view: Flat, params: Any) -> Any:
    """Return the parameters of the gradients in scope, and None for the others."""
    found = align.aligned(view, params, ("the gradients", f"{where}: the parameters"))
    inside = {view.source.kept[i] for i, there in enumerate(view.scope) if there}
    kept = [unwrapped(leaf) if slot in inside else None for slot, leaf in enumerate(found.leaves)]
    return found.tree(view.backend, kept)
