"""Updates, which an optimizer adds to parameters: what it has added, and parameters with transformed updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradxform.backend.protocol import Backend
from gradxform.core.source import NARROW
from gradxform.core.transform import GradientTransformation
from gradxform.numerics import Array, dtype_name, formulas

GRADIENTS, UPDATES = "gradients", "updates"


def check_place(transform: str, on: Any, tx: GradientTransformation) -> None:
    """Reject a place that is neither of the two, and the gradients for transforms of updates.

    Raises:
        ValueError: names both, or what to write.
    """
    if not isinstance(on, str) or on not in (GRADIENTS, UPDATES):
        raise ValueError(
            f"{transform}: on must be 'gradients' (before the optimizer's step) or 'updates' (what it adds to the "
            f"parameters), got {on!r}"
        )
    if on == GRADIENTS and "gradients" in tx.traits.needs:
        raise ValueError(f"{transform}: {tx!r} compares updates with their gradients; write on='updates'")


def differences(backend: Backend, new: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """Return new - old in new arrays; for half precision in float32."""
    out: list[Any] = [None] * len(new)
    for is_narrow in (False, True):
        places = [i for i, leaf in enumerate(new) if (backend.dtype(leaf) in NARROW) is is_narrow]
        ends, starts = [new[i] for i in places], [old[i] for i in places]
        if is_narrow and places:
            wide = backend.elementwise(formulas.same, [ends], ())
            found = backend.each(_difference, [wide, starts], (), wide)
        else:
            found = backend.each(_difference, [ends, starts], ())
        for i, leaf in zip(places, found, strict=True):
            out[i] = leaf
    return out


def moved(
    backend: Backend,
    updates: Sequence[Array],
    new: Sequence[Array],
    old: Sequence[Array],
    due: Any,
    out: Sequence[Array] | None = None,
) -> list[Array]:
    """Return parameters with other updates, in the dtypes of the updates; they may be written into `out`.

    An element whose update is still new - old is the new one, and one whose update is zero the old one, bit for bit.
    Others are old + update, rounded once. If the step is not due, all are the old ones.
    """
    formula, numbers = (_moved, []) if due is True else (_moved_if, [due])
    return backend.each(formula, [updates, new, old], numbers, out)


def _difference(xp: Any, new: Array, old: Array) -> Array:
    before = xp.cast(old, dtype_name(new))
    return xp.where(new == before, xp.zeros_like(new), new - before)  # an infinite parameter may stay


def _moved(xp: Any, update: Array, new: Array, old: Array) -> Array:
    after, before = (xp.cast(x, dtype_name(update)) for x in (new, old))
    changed = xp.where(update == 0.0, before, before + update)
    return xp.where(update == after - before, after, changed)


def _moved_if(xp: Any, update: Array, new: Array, old: Array, due: Array) -> Array:
    return xp.where(due > 0.0, _moved(xp, update, new, old), xp.cast(old, dtype_name(update)))
