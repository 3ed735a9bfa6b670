"""Kernels for slices of leaves along axes, and for matrices; a framework may process several leaves together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradxform.numerics import Array, formulas, matrices, ranking, subsets, widest

Axes = Sequence[tuple[int, ...]]
"""The axes of the slices, per leaf."""


class Along:
    """A backend that processes one leaf after the other. Accelerators override this to save launches."""

    norms: Any
    norm_over: Any
    sum_over: Any
    multiply: Any
    multiply_over: Any
    shape: Any
    elementwise: Any
    compute: Any
    count: Any
    scope: Any
    namespace_of: Any
    as_given: Any

    def together(self, leaves: Sequence[Array]) -> Sequence[Sequence[int]]:
        """Return groups of positions of leaves to process together; none to process leaf by leaf.

        Either all leaves of a group are float64 or none is.
        """
        return ()

    def joined(self, numbers: Sequence[Array]) -> Array:
        """Concatenate the numbers of a group of leaves."""
        (only,) = numbers
        return only

    def parted(self, joined: Array, numbers: Sequence[Array]) -> list[Array]:
        """Split a concatenated array into the shapes of the numbers."""
        return [joined]

    def norms_over(self, leaves: Sequence[Array], axes: Axes, ord: float) -> list[Array]:
        """Call `norm_over` for each leaf."""
        return [self.norm_over(leaf, over, ord) for leaf, over in zip(leaves, axes, strict=True)]

    def means_over(self, leaves: Sequence[Array], axes: Axes) -> list[Array]:
        """Return the means of real leaves over axes, in the form of `sum_over`."""
        return [self.mean_over(leaf, over) for leaf, over in zip(leaves, axes, strict=True)]

    def mean_over(self, leaf: Array, axes: tuple[int, ...]) -> Array:
        """Return the means of one leaf; without float64, of a power of two of it, so that no sum overflows."""
        count, power = self.count(leaf, axes), None
        if isinstance(count, float) and widest(self.namespace_of(leaf)) == "float32":
            power = 0.5 ** int(count).bit_length()
        whole = self.sum_over(leaf, axes, power)
        return self.compute(formulas.quotient, whole, count if power is None else count * power)

    def sizes(self, leaves: Sequence[Array]) -> Array:
        """Return the largest absolute value of each leaf, as a vector."""
        found: Array = self.norms(leaves, math.inf)
        return found

    def inner_products(self, columns: Iterable[Sequence[Array]], factors: Sequence[Any] | None) -> list[Any]:
        """Return the inner products of real arrays i <= j of each column, by rows, added up over the columns.

        With factors, the arrays of a column are first multiplied by one number each.
        """
        found: list[list[Any]] = []
        for column in columns:
            given, axes = column, tuple(range(len(self.shape(column[0]))))
            if factors is not None:
                given = [self.multiply([leaf], by, False)[0] for leaf, by in zip(column, factors, strict=True)]
            found.append([self.sum_over(one, axes, other) for one, other in pairs(given)])
        return [self.compute(subsets.total, *parts) for parts in zip(*found, strict=True)]

    def multiply_slices(
        self, leaves: Sequence[Array], factors: Sequence[Array], inplace: Sequence[bool]
    ) -> list[Array]:
        """Multiply each leaf by its own factors, as `multiply_over` does."""
        return [self.multiply_over(*one) for one in zip(leaves, factors, inplace, strict=True)]

    def less(self, leaves: Sequence[Array], numbers: Sequence[Array], inplace: Sequence[bool]) -> list[Array]:
        """Subtract numbers that broadcast from real leaves, rounded as in `elementwise`, possibly in place."""
        return list(self.elementwise(formulas.difference, [leaves, numbers], ()))

    def of_matrices(
        self,
        formula: Callable[..., Array],
        leaves: Sequence[Array],
        sides: Sequence[matrices.Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[Array]:
        """Compute `formula(xp, matrices, **static)` of each leaf's matrices, in a dtype or in the leaf's own.

        The matrices are in the last two axes. A leaf stacks them over the axes that are in neither of its two sides.
        """
        with self.scope():
            return [
                matrices.of_leaf(formula, self.namespace_of(leaf), leaf, own, dtype, static)
                for leaf, own in zip(leaves, sides, strict=True)
            ]

    def largest(self, leaves: Sequence[Array], counts: Sequence[Any]) -> list[Array]:
        """Keep so many elements of the largest size in each leaf, and those of equal size; the others become zero."""
        with self.scope():
            return [
                self.as_given(leaf, ranking.largest(self.namespace_of(leaf), leaf, count))
                for leaf, count in zip(leaves, counts, strict=True)
            ]


def pairs(items: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs i <= j, by rows."""
    return [(one, other) for i, one in enumerate(items) for other in items[i:]]
