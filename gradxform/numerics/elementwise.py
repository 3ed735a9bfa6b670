"""Products, clips, sums of products and formulas of a leaf's elements. No leaf is converted to float64.

They are computed in the dtype of the leaf's sums; complex arrays by parts.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.numerics import DOUBLE, Array, dtype_name, is_complex, sums_dtype, widest

Formula = Callable[..., Any]
"""A function of a namespace, elements and numbers; or `weighted`, whose numbers are weights."""
LEAST, MOST = 2.0**-126, 2.0**127
"""Powers of two between which a factor is a normal number of float32."""


class Factor(NamedTuple):
    """A factor in float64, and the steps in float32 that it takes: numbers whose product it is."""

    whole: Array
    steps: Sequence[Array]


# --- products --------------------------------------------------------------------------------------------------------


def split(xp: Any, factor: Any) -> Factor:
    """Split a number or an array once for many leaves."""
    whole = xp.float64(factor)
    return Factor(whole, [xp.materialize(xp.cast(step, "float32")) for step in in_steps(xp, whole)])


def times(xp: Any, leaf: Array, factor: Any) -> Array:
    """Multiply a leaf by a number, a `Factor` or an array that broadcasts; bit-identical where that is one.

    Compilers that flush small numbers in a product with one must select the leaf instead, and keep the derivative of
    the product.
    """

    def scaled(part: Array) -> Array:
        return xp.cast(product(xp, xp.cast(part, sums_dtype(part)), factor), dtype_name(part))

    return leaf if isinstance(factor, (int, float)) and factor == 1.0 else by_parts(xp, scaled, leaf)


def product(xp: Any, x: Array, factor: Any) -> Array:
    """Multiply float32 or float64 elements by a number, a `Factor` or an array in float64.

    It is rounded to float32 once; in up to three steps if it is far from one.
    """
    dtype, found = dtype_name(x), factor if isinstance(factor, Factor) else None
    if dtype in DOUBLE:
        return x * xp.cast(xp.float64(found.whole if found else factor), dtype)
    steps = found.steps if found else map(xp.float64, in_steps(xp, factor))
    first, *others = [xp.cast(step, dtype) for step in steps]
    return functools.reduce(lambda product, step: xp.no_reassociation(product) * step, others, x * first)


def in_steps(xp: Any, factor: Any) -> tuple[Any, ...]:
    """Split a number or an array into three that float32 holds; those after the first are 1 or -1 unless needed.

    None is so small that infinity times it would not be infinite. Of a Python number, without float64, and where NumPy
    sees that one is enough, a factor is one step.
    """
    if widest(xp) == "float32" or (isinstance(factor, (int, float)) and not is_extreme(factor)):
        return (factor,)
    whole, steps = xp.float64(factor), []
    rest = xp.abs(whole)
    if isinstance(rest, np.ndarray) and ((rest >= LEAST) & (rest <= MOST)).all():
        return (whole,)
    for _ in range(3):
        steps.append(xp.where(rest < LEAST, LEAST, xp.where(rest > MOST, MOST, rest)))
        rest = rest / steps[-1]
    usual = (xp.abs(whole) > 0.0) & xp.isfinite(whole)
    return *steps[:2], xp.where(usual, xp.where(whole < 0.0, -steps[2], steps[2]), whole)


def is_extreme(factor: float) -> bool:
    """Whether float32 does not hold a number."""
    return 0 < abs(factor) < LEAST or MOST < abs(factor) < float("inf")


# --- quotients and clips ---------------------------------------------------------------------------------------------


def quotient(xp: Any, leaf: Array, divisor: Array) -> Array:
    """Divide a leaf by a number or a broadcasting array, in the leaf's dtype."""
    return by_parts(xp, lambda part: part / xp.cast(divisor, dtype_name(part)), leaf)


def in_single(xp: Any, leaf: Array) -> Array:
    """Convert a half-precision leaf to float32; return others unchanged."""
    return xp.cast(leaf, "float32") if dtype_name(leaf) in ("float16", "bfloat16") else leaf


def between(xp: Any, leaf: Array, dtype: str, low: Array | None, high: Array | None) -> Array:
    """Clip a leaf to two float64 bounds, rounded to a dtype; NaN stays, and a NaN bound makes all elements NaN."""
    bounds = [None if bound is None else xp.cast(xp.cast(bound, dtype), dtype_name(leaf)) for bound in (low, high)]
    clip = getattr(xp, "clip", None)
    return clip(leaf, *bounds) if clip is not None else limited(xp, leaf, *bounds)


def limited(xp: Any, leaf: Array, low: Array | None, high: Array | None) -> Array:
    """Limit a leaf by two numbers of its dtype, as `between` does."""
    for bound, beyond in zip((low, high), (operator.lt, operator.gt), strict=True):
        if bound is not None:
            leaf = xp.where(beyond(leaf, bound) | ~(bound <= bound), bound, leaf)
    return leaf


# --- sums of products, and other formulas ----------------------------------------------------------------------------


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
        first = xp.cast(leaf, dtype) if factor is None else product(xp, xp.cast(leaf, dtype), factor)
        rest = [part if _is_number(part) else xp.cast(part, dtype) for part in others]
        given = [xp.cast(xp.float64(number), dtype) for number in numbers]
        return xp.cast(formula(xp, first, *rest, *given, **static), dtype)

    return by_parts(xp, real, *column)


def _is_number(part: Any) -> bool:
    return not len(getattr(part, "shape", ())) or dtype_name(part).startswith("int")


def by_parts(xp: Any, function: Callable[..., Array], *arrays: Array) -> Array:
    """Apply a function to real and imaginary parts, so that infinity times zero does not give NaN."""
    if not is_complex(arrays[0]):
        return function(*arrays)
    return xp.complex(function(*map(xp.real, arrays)), function(*map(xp.imag, arrays)))
