"""Multiply, divide or clip one leaf in the base format; round to the leaf's dtype once."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name, is_complex
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.formulas import equal, is_nan


def times(xp: Any, leaf: Array, factor: Array) -> Array:
    """Multiply a leaf by a broadcasting factor; bit-identical where the factor is one."""
    product = by_parts(xp, lambda part: xp.cast(xp.float64(part) * factor, dtype_name(part)), leaf)
    return xp.where(equal(factor, 1.0), leaf, product)


def parts_of(spaces: Sequence[Any], factors: Sequence[Any]) -> list[tuple[Array, ...]]:
    """Return, for each leaf, whether its factor is one, and the parts of the factor."""
    vectors = [spaces[0].float64(factor) for factor in factors]
    vectors = [functools.reduce(operator.and_, [equal(vector, 1.0) for vector in vectors]), *vectors]
    return [
        tuple(xp.take(vector, i) if len(vector.shape) else vector for vector in vectors) for i, xp in enumerate(spaces)
    ]


def times_parts(xp: Any, leaf: Array, one: Array, *parts: Array) -> Array:
    """Multiply a leaf by the parts of its factor; round once; bit-identical where the factor is one."""

    def product(x: Array) -> Array:
        return xp.cast(functools.reduce(operator.mul, parts, xp.float64(x)), dtype_name(x))

    return xp.where(one, leaf, by_parts(xp, product, leaf))


def by_number(xp: Any, leaf: Array, factor: float) -> Array:
    """Multiply a leaf by a Python number, in as many steps as the base format's range requires."""
    step = math.ldexp(1.0, 100 if abs(factor) > 1.0 else -100)
    while base(xp) is not FLOAT64 and is_extreme(factor) and math.isfinite(factor):
        leaf, factor = times(xp, leaf, xp.float64(step)), factor / step
    if base(xp) is FLOAT64 or factor == 1.0:
        return times(xp, leaf, xp.float64(factor))
    by = xp.float64(factor)
    return by_parts(xp, lambda part: xp.cast(xp.float64(part) * by, dtype_name(part)), leaf)


def is_extreme(factor: float) -> bool:
    """Whether a known factor is inexact in float32; the product is then computed in float64."""
    return 0 < abs(factor) < 2.0**-126 or abs(factor) > 2.0**127


def quotient(xp: Any, leaf: Array, divisor: Array) -> Array:
    """Divide a leaf by a number or a broadcasting array, in the leaf's dtype."""
    return by_parts(xp, lambda part: part / xp.cast(divisor, dtype_name(part)), leaf)


def in_single(xp: Any, leaf: Array) -> Array:
    """Convert a half-precision leaf to float32; return others unchanged."""
    return xp.cast(leaf, "float32") if dtype_name(leaf) in ("float16", "bfloat16") else leaf


def between(xp: Any, leaf: Array, dtype: str, low: Array | None, high: Array | None, *, known: bool = False) -> Array:
    """Clip a leaf to two float64 bounds, rounded to a dtype; NaN stays.

    A NaN bound makes all elements NaN, unless the bounds are `known` to be numbers.
    """
    for bound, sign in ((low, 1.0), (high, -1.0)):
        if bound is not None:
            own = xp.cast(xp.cast(bound, dtype), dtype_name(leaf))
            beyond = leaf < own if sign > 0 else leaf > own
            leaf = xp.where(beyond if known else beyond | is_nan(xp, own), own, leaf)
    return leaf


def by_parts(xp: Any, function: Callable[..., Array], *arrays: Array) -> Array:
    """Apply a function to real and imaginary parts, so that infinity times zero does not give NaN."""
    if not is_complex(arrays[0]):
        return function(*arrays)
    return xp.complex(function(*map(xp.real, arrays)), function(*map(xp.imag, arrays)))
