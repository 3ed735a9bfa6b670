"""Build stateful transforms, and check their states."""

from __future__ import annotations

from typing import Any

from gradxform.backend.misplaced import short
from gradxform.core.flat import Flat
from gradxform.core.transformation import Context, GradientTransformation, Rule, Start


def keeping(name: str, kind: type, rule: Rule, start: Start) -> GradientTransformation:
    """Build a transformation whose state has one type.

    Raises:
        ValueError: on use, the state of another transformation.
    """

    def checked(view: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        if not isinstance(state, kind):
            raise ValueError(not_its_own(name, kind.__name__, state))
        return rule(view, state, context)

    return GradientTransformation(checked, start)


def not_its_own(name: str, wanted: str, state: Any) -> str:
    """The error message for the state of another transformation."""
    return (
        f"{name}: the state must be {wanted}, from tx.init(params) of this transformation, got "
        f"{short(state)} of type {type(state).__name__}"
    )
