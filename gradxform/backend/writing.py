"""Kernels that may write into arrays that they are given, for a framework whose arrays can be written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array


class Writing:
    """A backend that makes new arrays each time; one that overrides these saves memory."""

    cast: Any
    copied: Any
    each: Any
    elementwise: Any

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
