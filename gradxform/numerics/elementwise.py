"""Elementwise formulas and sums of products, in the dtype of a leaf's sums."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name, sums_dtype
from gradxform.numerics.rescale import by_parts, product

Formula = Callable[..., Any]
"""A function of a namespace, elements and numbers; or `weighted`, whose numbers are weights."""


def weighted(xp: Any, column: Sequence[Any], weights: Sequence[Any]) -> Array:
    """Add up products of a leaf, and of other arrays, with weights; None is one. Complex arrays by parts.

    Each product is rounded, and so is each sum: where terms cancel, the rest is as exact as the terms were.
    """
    dtype = sums_dtype(column[0])

    def real(*parts: Any) -> Array:
        terms = zip([xp.cast(part, dtype) for part in parts], weights, strict=True)
        return functools.reduce(operator.add, [x if by is None else product(xp, x, by) for x, by in terms])

    return by_parts(xp, real, *column)


def weights_of(xp: Any, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """Return the weights of a sum whose first element is multiplied by a factor; known ones stay on the host."""
    first, *others, by = [x if x is None or isinstance(x, (int, float)) else xp.float64(x) for x in (*numbers, factor)]
    return [first if by is None else by if first is None else first * by, *others]


def of_leaf(
    formula: Formula, xp: Any, column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Array:
    """Apply an elementwise formula to a leaf, times a factor, and other arrays; complex arrays by parts.

    The result has the dtype of the leaf's sums. Integers and single numbers beside the leaf, such as random words, keep
    their dtype.
    """
    if formula is weighted:
        return weighted(xp, column, weights_of(xp, numbers, factor))
    dtype = sums_dtype(column[0])

    def real(leaf: Any, *others: Any) -> Array:
        first = xp.cast(leaf, dtype)
        rest = [part if _is_number(part) else xp.cast(part, dtype) for part in others]
        if factor is not None:
            first = product(xp, first, factor)
        given = [xp.cast(xp.float64(number), dtype) for number in numbers]
        return xp.cast(formula(xp, first, *rest, *given, **static), dtype)

    return by_parts(xp, real, *column)


def _is_number(part: Any) -> bool:
    return not len(getattr(part, "shape", ())) or dtype_name(part).startswith("int")
