"""Tell adapters whether a step applies, so that they can skip the optimizer."""

from __future__ import annotations

from typing import Any

from gradxform.core.transformation import GradientTransformation
from gradxform.transforms.measuring import MeasureState
from gradxform.transforms.skipping import due


def is_due(tx: Any, state: Any) -> Any:
    """Whether the step with this state applies: True, or a bool of the framework.

    Conditions inside a mask concern only the masked variables, and are ignored.
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
