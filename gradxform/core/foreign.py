"""Adapt transformations of other libraries: any object with `init` and `update`."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any

import optree

from gradxform.backend.errors import misplaced, wrong_type
from gradxform.backend.lookup import holds_arrays, opened, unwrapped
from gradxform.backend.protocol import Backend
from gradxform.core import align
from gradxform.core.transform import Context, GradientTransformation, Traits
from gradxform.core.tree import Tree

_STAGES = {"unscale": "unscale", "accumulate": "accumulate", "MultiSteps": "accumulate"} | dict.fromkeys(
    ("decayed_weights", "weight_decay"), "decay"
)
"""Words in the names of other libraries' transforms, which cannot declare their stage."""


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
        raise wrong_type(where, "a transformation or an object with init and update", tx, hint)

    label = getattr(tx.update, "__qualname__", "").partition(".")[0] or type(tx).__name__
    with contextlib.suppress(ValueError):  # a function without a signature
        try:
            inspect.signature(tx.update).bind_partial(None, None, None)  # there may be more, by name
        except TypeError as error:
            raise TypeError(f"{where}: {label}.update must take (updates, state, params=None): {error}") from error

    def rule(view: Tree, state: Any, context: Context) -> tuple[Tree, Any]:
        params = context.params
        if params is not None and len(view.scope) < len(view.leaves):
            params = _like(where, view, params)
        optax = sys.modules.get("optax")
        takes_extra = optax is not None and isinstance(tx, optax.GradientTransformationExtraArgs)
        result = tx.update(view.scoped_tree(), state, params, **(context.extra if takes_extra else {}))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise wrong_type(f"{where}: {label}.update", "a pair (updates, state) as its result", result)
        tree, new_state = result
        known = optax is not None and isinstance(tx, optax.GradientTransformation)  # its own moments may become None
        if not known and len(view.source.kept) < len(view.source.slots):
            _check_kept(f"{where}: {tx!r}", view.backend, state, new_state)
        leaves = [leaf for leaf in view.backend.flatten(tree)[0] if leaf is not None]
        if len(leaves) != len(view.scope):
            wrong = f"{where}: {tx!r} returned {len(leaves)} gradients for {len(view.scope)}"
            raise TypeError(f"{wrong}; None stays None, as in gx.tree_map(lambda g, new: new, updates, result)")
        new = dict(zip(view.scope, leaves, strict=True))
        return view.dense(integers=True).given([new[i] for i in view.chosen]).lent(), new_state

    def start(params: Any) -> Any:
        return tx.init(params.scoped_tree() if isinstance(params, Tree) else params)

    stage = next((_STAGES[word] for word in _STAGES if word in label), "")
    return GradientTransformation(rule, start, traits=Traits(label=label, stage=stage))


def _check_kept(what: str, backend: Backend, old: Any, new: Any) -> None:
    """Reject a state that became None in a step with gradients that are None.

    Raises:
        TypeError: names the path.
    """
    before, after = backend.flatten(old)[0], backend.flatten(new)[0]
    if len(before) != len(after):
        return
    for i, (one, other) in enumerate(zip(before, after, strict=True)):
        if one is not None and other is None:
            raise TypeError(
                f"{what} lost its state at {backend.paths(old)[i]!r} in a step where a gradient is None; make "
                "its new leaves by gx.tree_map with the state's tree first, which keeps a leaf there, as in "
                "gx.tree_map(lambda t, g: t + g, state, updates)"
            )


def inside(transform: str, _: str, tx: Any) -> GradientTransformation:
    """Check the argument of a transform that is a transformation."""
    return as_transformation(transform, tx)


def is_transformation(tx: Any) -> bool:
    """Whether it is a transformation, or a foreign object with `init` and `update`: no optimizer, no model."""
    if isinstance(tx, GradientTransformation):
        return True
    if isinstance(tx, type) or not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        return False
    return misplaced(tx) is None


def leaves_of(state: Any) -> Any:
    """The leaves of a state, also in Flax NNX's containers, and of another library's, which need not be arrays."""
    try:
        return opened(state)[1][0]
    except TypeError:
        return optree.tree_leaves(state)


def _hint(tx: Any) -> str:
    """Say what to write instead of an object that is not a transformation; empty if unknown."""
    found = misplaced(tx)
    if found is not None:
        return f", {found[0]}; {found[1]}"
    if isinstance(tx, (list, tuple)) and tx and all(map(is_transformation, tx)):
        return "; write gx.chain(*txs)"
    if holds_arrays(tx):
        return "; gradients come later: tx(gradients)"
    if isinstance(tx, (int, float)):
        return "; the transformation comes first, as in gx.accumulate(tx, every=4)"
    return "; call it first" if callable(tx) else ""


def _like(where: str, view: Tree, params: Any) -> Any:
    """Return the parameters of the gradients in scope, and None for the others."""
    found = align.aligned(view, params, ("the gradients", f"{where}: the parameters"))
    inside = {view.source.kept[i] for i in view.scope}
    kept = [unwrapped(leaf) if slot in inside else None for slot, leaf in enumerate(found.leaves)]
    return found.tree(view.backend, kept)
