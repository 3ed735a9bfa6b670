"""What a framework's namespace need not write where the framework does nothing of its own."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.ranged import Space


class Defaults:
    """Functions over those that a namespace has; the class itself serves as the namespace."""

    sum: Any

    @classmethod
    def sum_over(cls, x: Array, axes: tuple[int, ...] | None) -> Array:
        """The sum over axes, kept as ones; over all if None."""
        return cls.sum(x, axis=axes, keepdims=axes is not None)

    @classmethod
    def extended(cls, x: Any) -> Any:
        """A number with an exponent of its own."""
        return Space(cls).number(x)

    @staticmethod
    def materialize(x: Array) -> Array:
        """An array that is used more than once."""
        return x

    @staticmethod
    def no_reassociation(x: Array) -> Array:
        """The number: sums are computed as they are written."""
        return x
