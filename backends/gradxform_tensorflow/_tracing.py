"""Transformations as arguments of tf.function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation


class TracingType(tf.types.experimental.TraceType):
    """The trace type of one transformation: another is of the same type if it is equal."""

    def __init__(self, tx: GradientTransformation) -> None:
        self.tx = tx

    def is_subtype_of(self, other: Any) -> bool:
        """Only of its equal."""
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """Itself, if all are equal."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The transformation stands for itself in the traced function."""
        return self.tx

    def __eq__(self, other: object) -> bool:
        """As the transformations compare."""
        return isinstance(other, TracingType) and self.tx == other.tx

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(self.tx)
