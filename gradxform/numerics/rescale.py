"""Multiply, divide or clip one leaf, rounded to its dtype once. No leaf is converted to float64."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.numerics import DOUBLE, Array, dtype_name, is_complex, sums_dtype, widest
from gradxform.numerics.formulas import is_nan

LEAST, MOST = 2.0**-126, 2.0**127
"""Powers of two between which a factor is a normal number of float32."""


class Factor(NamedTuple):
    """A factor in float64, and the steps in float32 that it takes: numbers whose product it is."""

    whole: Array
    steps: Sequence[Array]


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

    known = isinstance(factor, (int, float))
    return leaf if known and factor == 1.0 else by_parts(xp, scaled, leaf)


def product(xp: Any, x: Array, factor: Any) -> Array:
    """Multiply float32 or float64 elements by a number, a `Factor` or an array in float64.

    It is rounded to float32 once; in up to three steps if it is far from one.
    """
    dtype, steps = dtype_name(x), factor.steps if isinstance(factor, Factor) else None
    if dtype in DOUBLE:
        return x * xp.cast(xp.float64(factor if steps is None else factor.whole), dtype)
    if steps is None:
        known = isinstance(factor, (int, float))
        steps = [xp.float64(step) for step in (known_steps(factor) if known else in_steps(xp, factor))]
    *first, last = [xp.cast(step, dtype) for step in steps]
    for step in first:
        x = xp.no_reassociation(x * step)
    return x * last


def in_steps(xp: Any, factor: Array) -> tuple[Array, ...]:
    """Split a factor into three that float32 holds; those after the first are 1 or -1 unless they are needed.

    None is so small that infinity times it would not be infinite. Without float64, and where NumPy sees that one is
    enough, a factor is one step.
    """
    if widest(xp) == "float32":
        return (factor,)
    size = xp.abs(factor)
    first = _normal(xp, size)
    if isinstance(size, np.ndarray) and (first == size).all():
        return (factor,)
    rest = factor / first
    second = _normal(xp, xp.abs(rest))
    rest = rest / second
    third = _normal(xp, xp.abs(rest))
    known = (size > 0.0) & xp.isfinite(size)
    return first, second, xp.where(known, xp.where(factor < 0.0, -third, third), rest)


def _normal(xp: Any, size: Array) -> Array:
    """Clamp a size to normal numbers of float32; NaN stays."""
    return xp.where(size < LEAST, LEAST, xp.where(size > MOST, MOST, size))


def known_steps(factor: float) -> list[float]:
    """`in_steps` of a Python number: one step if float32 holds it, else two or three."""
    steps: list[float] = []
    for _ in range(2):
        if not is_extreme(factor):
            return [*steps, factor]
        steps.append(LEAST if abs(factor) < 1.0 else MOST)
        factor /= steps[0]
    return [*steps, math.copysign(steps[0], factor) if is_extreme(factor) else factor]


def is_extreme(factor: float) -> bool:
    """Whether float32 does not hold a number."""
    return 0 < abs(factor) < LEAST or MOST < abs(factor) < math.inf


def quotient(xp: Any, leaf: Array, divisor: Array) -> Array:
    """Divide a leaf by a number or a broadcasting array, in the leaf's dtype."""
    return by_parts(xp, lambda part: part / xp.cast(divisor, dtype_name(part)), leaf)


def in_single(xp: Any, leaf: Array) -> Array:
    """Convert a half-precision leaf to float32; return others unchanged."""
    return xp.cast(leaf, "float32") if dtype_name(leaf) in ("float16", "bfloat16") else leaf


def between(xp: Any, leaf: Array, dtype: str, low: Array | None, high: Array | None) -> Array:
    """Clip a leaf to two float64 bounds, rounded to a dtype; NaN stays, and a NaN bound makes all elements NaN."""
    bounds = [None if bound is None else xp.cast(xp.cast(bound, dtype), dtype_name(leaf)) for bound in (low, high)]
    if clip := getattr(xp, "clip", None):
        return clip(leaf, *bounds)
    for bound, beyond in zip(bounds, (operator.lt, operator.gt), strict=True):
        if bound is not None:
            leaf = xp.where(beyond(leaf, bound) | is_nan(xp, bound), bound, leaf)
    return leaf


def by_parts(xp: Any, function: Callable[..., Array], *arrays: Array) -> Array:
    """Apply a function to real and imaginary parts, so that infinity times zero does not give NaN."""
    if not is_complex(arrays[0]):
        return function(*arrays)
    return xp.complex(function(*map(xp.real, arrays)), function(*map(xp.imag, arrays)))
