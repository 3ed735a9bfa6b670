"""Transforms as arguments of tf.function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation


class TracingType(tf.types.experimental.TraceType):
    """Trace type of a transform; equal transforms have equal types."""

    def __init__(self, tx: GradientTransformation) -> None:
        self.tx = tx

    def is_subtype_of(self, other: Any) -> bool:
        """Whether both are equal."""
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """This type, if all are equal."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The transform itself, in the traced function."""
        return self.tx

    def __eq__(self, other: object) -> bool:
        """Compare the transforms."""
        return isinstance(other, TracingType) and self.tx == other.tx

    def __hash__(self) -> int:
        """Hash consistently with equality."""
        return hash(self.tx)
