"""Elementwise formulas and sums of products, in the dtype of a leaf's sums."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name, sums_dtype
from gradxform.numerics.rescale import by_parts, product


@dataclasses.dataclass(frozen=True)
class Combination:
    """The formula a x + b y + ... of elements, with numbers as weights.

    Each product is rounded, and so is each sum: where terms cancel, the rest is as exact as the terms were.
    """

    weights: Callable[..., tuple[Any, ...]]
    """Computes a weight per element, in float64, from a namespace and the formula's numbers; 1.0 is known to be one."""


weighted = Combination(lambda xp, *weights: weights)
"""Adds up elements times numbers."""
plus = Combination(lambda xp, multiple=1.0: (1.0, multiple))
"""Adds the second element, or a multiple of it, to the first."""

Formula = Callable[..., Any] | Combination
"""A function of a namespace, elements and numbers, or a combination."""


def of_leaf(
    formula: Formula, xp: Any, column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Array:
    """Apply an elementwise formula to a leaf, times a factor, and other arrays; complex arrays by parts.

    The result has the dtype of the leaf's sums. Integers and single numbers beside the leaf, such as random words, keep
    their dtype.
    """
    if isinstance(formula, Combination):
        return combined_leaf(xp, column, weights_of(formula, xp, numbers, factor))
    dtype = sums_dtype(column[0])

    def real(leaf: Any, *others: Any) -> Array:
        first = xp.cast(leaf, dtype)
        rest = [part if _is_number(part) else xp.cast(part, dtype) for part in others]
        if factor is not None:
            first = product(xp, first, factor)
        given = [xp.cast(xp.float64(number), dtype) for number in numbers]
        return xp.cast(formula(xp, first, *rest, *given, **static), dtype)

    return by_parts(xp, real, *column)


def combined_leaf(xp: Any, column: Sequence[Any], weights: Sequence[Any]) -> Array:
    """Add up products of a leaf, and of other arrays, with weights; complex arrays by parts."""
    dtype = sums_dtype(column[0])
    return by_parts(xp, lambda *parts: combined(xp, [xp.cast(part, dtype) for part in parts], weights), *column)


def weights_of(formula: Combination, xp: Any, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """Return the weights of a combination whose first element is multiplied by a factor."""
    given = [number if isinstance(number, (int, float)) else xp.float64(number) for number in numbers]
    first, *others = formula.weights(xp, *given)  # known ones on the host, which has float64
    return [first if factor is None else factor if _is_one(first) else first * xp.float64(factor), *others]


def combined(xp: Any, elements: Sequence[Array], weights: Sequence[Any]) -> Array:
    """Add up products of elements and weights."""
    return functools.reduce(
        operator.add, [x if _is_one(by) else product(xp, x, by) for x, by in zip(elements, weights, strict=True)]
    )


def _is_one(weight: Any) -> bool:
    return isinstance(weight, (int, float)) and weight == 1.0


def _is_number(part: Any) -> bool:
    return not len(getattr(part, "shape", ())) or dtype_name(part).startswith("int")
