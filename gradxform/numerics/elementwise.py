"""Elementwise formulas and sums of products, in the dtype of a leaf's sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name, sums_dtype
from gradxform.numerics.rescale import by_parts, known_product, product


@dataclasses.dataclass(frozen=True)
class Combination:
    """The formula a x + b y + ... of elements, with numbers as weights.

    Each product is rounded, and so is each sum: where terms cancel, the rest is as exact as the terms were.
    """

    weights: Callable[..., tuple[Any, ...]]
    """Computes one weight per element, in float64, from a namespace and the formula's numbers; 1.0 is known to be one."""


def starting(first: Combination, later: Combination) -> Combination:
    """Return a combination with other weights in the first step; its first number is positive in later ones."""

    def weights(xp: Any, is_later: Any, *numbers: Any) -> tuple[Any, ...]:
        both = zip(first.weights(xp, *numbers), later.weights(xp, *numbers), strict=True)
        return tuple(xp.where(is_later > 0.0, then, now) for now, then in both)

    return Combination(weights)


def of_leaf(
    formula: Any, xp: Any, column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Array:
    """Apply an elementwise formula to a leaf, times a factor, and other arrays; complex arrays by parts.

    The result has the dtype of the leaf's sums. Single numbers and integers beside the leaf, such as random words, keep
    their digits.
    """
    dtype = sums_dtype(column[0])

    def real(*parts: Any) -> Array:
        given = [xp.cast(part, dtype) if i == 0 or _is_array(part) else part for i, part in enumerate(parts)]
        if isinstance(formula, Combination):
            return combined(xp, given, weights_of(formula, xp, numbers, factor))
        first = given[0] if factor is None else times(xp, given[0], factor)
        return xp.cast(
            formula(xp, first, *given[1:], *(xp.cast(xp.float64(n), dtype) for n in numbers), **static), dtype
        )

    return by_parts(xp, real, *column)


def weights_of(formula: Combination, xp: Any, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """Return the weights of a combination whose first element is multiplied by a factor."""
    first, *others = formula.weights(xp, *map(xp.float64, numbers))
    return [first if factor is None else factor if _is_one(first) else first * xp.float64(factor), *others]


def combined(xp: Any, elements: Sequence[Array], weights: Sequence[Any]) -> Array:
    """Add up products of elements and weights."""
    terms = [times(xp, x, weight) for x, weight in zip(elements, weights, strict=True)]
    found = terms[0]
    for term in terms[1:]:
        found = found + term
    return found


def times(xp: Any, x: Array, weight: Any) -> Array:
    """Multiply elements by a number or by an array of the framework."""
    if _is_one(weight):
        return x
    return known_product(xp, x, weight) if isinstance(weight, (int, float)) else product(xp, x, weight)


def _is_one(weight: Any) -> bool:
    return isinstance(weight, (int, float)) and weight == 1.0


def _is_array(part: Any) -> bool:
    return len(getattr(part, "shape", ())) > 0 and not dtype_name(part).startswith("int")
