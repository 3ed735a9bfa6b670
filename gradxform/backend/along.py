"""Kernels of slices of leaves, along axes: of several leaves at a time where a framework is faster so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array, formulas
from gradxform.numerics.double_double import Pair

Axes = Sequence[tuple[int, ...]]
"""For each leaf, the axes that its slices extend over."""


class Along:
    """A backend that takes one leaf after the other; a device whose operations take long to start overrides these."""

    norm_over: Any
    sum_over: Any
    multiply_over: Any
    elementwise: Any
    compute: Any
    count: Any

    def together(self, leaves: Sequence[Array]) -> Sequence[Sequence[int]]:
        """The places of leaves that are measured, and then multiplied, at a time; nothing where one follows the other.

        Of a group, all are in float64 or none.
        """
        return ()

    def joined(self, numbers: Sequence[Array | Pair]) -> Array | Pair:
        """The numbers of leaves that are taken together, as one array."""
        (only,) = numbers
        return only

    def parted(self, joined: Array, numbers: Sequence[Array | Pair]) -> list[Array]:
        """Such an array as one for each leaf, in the shapes of other numbers."""
        return [joined]

    def norms_over(self, leaves: Sequence[Array], axes: Axes, ord: float) -> list[Array | Pair]:
        """`norm_over` of each leaf."""
        return [self.norm_over(leaf, over, ord) for leaf, over in zip(leaves, axes, strict=True)]

    def means_over(self, leaves: Sequence[Array], axes: Axes) -> list[Array | Pair]:
        """The means of real leaves over axes, which are kept as ones, in the form of `sum_over`."""
        return [
            self.compute(formulas.share, self.sum_over(leaf, over, None), self.count(leaf, over))
            for leaf, over in zip(leaves, axes, strict=True)
        ]

    def multiply_slices(
        self, leaves: Sequence[Array], factors: Sequence[Sequence[Array]], inplace: Sequence[bool]
    ) -> list[Array]:
        """`multiply_over` by several factors, one after the other, of which each leaf has its own."""
        found = []
        for leaf, own, *parts in zip(leaves, inplace, *factors, strict=True):
            for part in parts:
                leaf = self.multiply_over(leaf, part, own)
            found.append(leaf)
        return found

    def less(self, leaves: Sequence[Array], numbers: Sequence[Array | Pair], inplace: Sequence[bool]) -> list[Array]:
        """Real leaves minus numbers that broadcast, rounded as by `elementwise`; it may be written into the leaves."""
        return list(self.elementwise(formulas.difference, [leaves, numbers], ()))
