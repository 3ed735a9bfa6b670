"""Kernels that may write into given arrays, for frameworks with mutable arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.elementwise import Formula


class Writing:
    """Defaults that create new arrays; overrides can save memory."""

    cast: Any
    zeros: Any
    copied: Any
    each: Any
    elementwise: Any

    def casts(self, leaves: Sequence[Array], likes: Sequence[Array]) -> list[Array]:
        """Round leaves to the dtypes of others with the same shapes."""
        return [self.cast(leaf, like) for leaf, like in zip(leaves, likes, strict=True)]

    def copied_into(self, out: Sequence[Array], leaves: Sequence[Array]) -> list[Array]:
        """`copied`, possibly into other arrays."""
        return list(self.copied(leaves))

    def zeroed(self, leaves: Sequence[Array]) -> list[Array]:
        """`zeros`, possibly in the leaves themselves."""
        return list(self.zeros(leaves))

    def elementwise_into(
        self,
        out: Sequence[Array],
        formula: Formula,
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
