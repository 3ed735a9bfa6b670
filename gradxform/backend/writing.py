"""Kernels that may write into given arrays, for frameworks with mutable arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, rescale
from gradxform.numerics.formats import FLOAT64, base


class Writing:
    """Defaults that create new arrays; overrides can save memory."""

    cast: Any
    scope: Any
    namespace_of: Any
    as_given: Any
    multiply: Any
    copied: Any
    each: Any
    elementwise: Any

    def multiply_in_turn(self, leaves: Sequence[Array], factors: Sequence[Any], inplace: bool) -> list[Array]:
        """`multiply` by several factors in turn, which are the parts of a factor beyond the base format's range."""
        if len(factors) > 1 and all(base(self.namespace_of(leaf)) is not FLOAT64 for leaf in leaves):
            return self.multiply_at_once(leaves, factors)
        for factor in factors:
            leaves = self.multiply(leaves, factor, inplace)
        return list(leaves)

    def multiply_at_once(self, leaves: Sequence[Array], factors: Sequence[Any]) -> list[Array]:
        """`multiply_in_turn` for leaves of one device, by one formula that rounds once."""
        with self.scope():
            spaces = [self.namespace_of(leaf) for leaf in leaves]
            return [
                self.as_given(leaf, rescale.times_parts(xp, leaf, *parts))
                for xp, leaf, parts in zip(spaces, leaves, rescale.parts_of(spaces, factors), strict=True)
            ]

    def casts(self, leaves: Sequence[Array], likes: Sequence[Array]) -> list[Array]:
        """Round leaves to the dtypes of others with the same shapes."""
        return [self.cast(leaf, like) for leaf, like in zip(leaves, likes, strict=True)]

    def copied_into(self, out: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """`copied`, possibly into other arrays."""
        return list(self.copied(leaves))

    def elementwise_into(
        self,
        out: Sequence[Array],
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """`elementwise`, which may write its results into other arrays, including columns."""
        return list(self.elementwise(formula, columns, numbers, factors, **static))

    def each_into(
        self,
        out: Sequence[Array],
        formula: Callable[..., Array],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
    ) -> list[Array]:
        """`each`, which may write its results into other arrays."""
        return list(self.each(formula, columns, numbers))
