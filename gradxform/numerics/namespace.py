"""Defaults for the namespaces of frameworks."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.ranged import Space


class Defaults:
    """Functions derived from the namespace's own; the class itself is the namespace."""

    sum: Any

    @classmethod
    def sum_over(cls, x: Array, axes: tuple[int, ...] | None) -> Array:
        """Sum over axes with keepdims; over all if None."""
        return cls.sum(x, axis=axes, keepdims=axes is not None)

    @classmethod
    def extended(cls, x: Any) -> Any:
        """Give a number an exponent."""
        return Space(cls).number(x)

    @staticmethod
    def materialize(x: Array) -> Array:
        """Mark an array that is used more than once."""
        return x

    @staticmethod
    def no_reassociation(x: Array) -> Array:
        """Return the number: sums are computed as written."""
        return x
