"""Whether a step is to be applied, for adapters that can leave an optimizer alone."""

from __future__ import annotations

from typing import Any

from gradxform.core.transformation import GradientTransformation
from gradxform.transforms.measuring import MeasureState
from gradxform.transforms.skipping import due


def is_due(tx: Any, state: Any) -> Any:
    """True, or a bool of the framework, after an update that gave this state.

    What some variables' part of a transformation says, under a mask, holds for these alone.
    """
    if not isinstance(tx, GradientTransformation):
        return due(state)
    if tx.name in ("across", "measure"):
        return is_due(tx.arguments[0][1], state)
    while isinstance(state, MeasureState):
        state = state.inner
    if not tx.stateful or tx.name in ("masked", "partition"):
        return True
    if tx.name != "chain":
        return due(state)
    found = True
    for (_, part), inner in zip(tx.arguments, state, strict=True):
        inside = is_due(part, inner)
        found = inside if found is True else found if inside is True else found & inside
    return found
