"""Kernels that may write into arrays that they are given, for a framework whose arrays can be written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, rescale
from gradxform.numerics.formats import FLOAT64, base


class Writing:
    """A backend that makes new arrays each time; one that overrides these saves memory."""

    cast: Any
    scope: Any
    namespace_of: Any
    as_given: Any
    multiply: Any
    copied: Any
    each: Any
    elementwise: Any

    def multiply_in_turn(self, leaves: Sequence[Array], factors: Sequence[Any], inplace: bool) -> list[Array]:
        """`multiply` by several factors, one after the other: parts of one that no number of the base format holds."""
        if len(factors) > 1 and all(base(self.namespace_of(leaf)) is not FLOAT64 for leaf in leaves):
            with self.scope():
                spaces = [self.namespace_of(leaf) for leaf in leaves]
                return [
                    self.as_given(leaf, rescale.times_parts(xp, leaf, *parts))
                    for xp, leaf, parts in zip(spaces, leaves, rescale.parts_of(spaces, factors), strict=True)
                ]
        for factor in factors:
            leaves = self.multiply(leaves, factor, inplace)
        return list(leaves)

    def casts(self, leaves: Sequence[Array], likes: Sequence[Array]) -> list[Array]:
        """Leaves rounded to the dtypes of others, of their shapes."""
        return [self.cast(leaf, like) for leaf, like in zip(leaves, likes, strict=True)]

    def copied_into(self, out: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """`copied`, which may be into other arrays."""
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
        """`elementwise`, which may write its results into other arrays, those of a column among them."""
        return list(self.elementwise(formula, columns, numbers, factors, **static))

    def each_into(
        self,
        out: Sequence[Array],
        formula: Callable[..., Array],
        columns: Sequence[Sequence[Array]],
        numbers: Sequence[Any],
    ) -> list[Array]:
        """`each`, in the same way."""
        return list(self.each(formula, columns, numbers))
