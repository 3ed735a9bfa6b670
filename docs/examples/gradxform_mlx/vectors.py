"""The namespace that formulas are computed in: MLX's functions under the names that formulas use, in float64."""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx

from gradxform.numerics.ranged import Space

abs, any, max, sqrt, sum = mx.abs, mx.any, mx.max, mx.sqrt, mx.sum
expm1, floor, isfinite, log, sort = mx.expm1, mx.floor, mx.isfinite, mx.log, mx.sort
ones_like, reshape, stop_gradient, zeros_like = mx.ones_like, mx.reshape, mx.stop_gradient, mx.zeros_like
shift_left, shift_right = mx.left_shift, mx.right_shift


def float64(x: Any) -> mx.array:
    """A number or an array in float64."""
    return x.astype(mx.float64) if isinstance(x, mx.array) else mx.array(x, dtype=mx.float64)


def int32(x: Any) -> mx.array:
    """Whole numbers with the lower 32 bits alone."""
    return float64(x).astype(mx.int64).astype(mx.int32)


def where(condition: Any, yes: Any, no: Any) -> mx.array:
    """Elementwise choice; of two Python numbers in float64, where MLX would make float32 of them."""
    return mx.where(condition, yes, no if isinstance(yes, mx.array) else float64(no))


def mask(active: tuple[bool, ...]) -> mx.array:
    """Bools as a vector."""
    return mx.array(active)


def stack(numbers: Any) -> mx.array:
    """Numbers as a vector."""
    return mx.stack([number if isinstance(number, mx.array) else float64(number) for number in numbers])


def take(vector: mx.array, index: Any) -> mx.array:
    """Some numbers of a vector."""
    return vector[mx.array(index)] if isinstance(index, tuple) else vector[index]


def arange(count: int) -> mx.array:
    """The numbers from zero."""
    return float64(mx.arange(count))


def iota(x: mx.array) -> mx.array:
    """The number of each element."""
    return mx.arange(x.size, dtype=mx.int64).reshape(x.shape)


def rounded(x: Any, dtype: str) -> mx.array:
    """To the nearest number of a dtype, in float64; by way of float32 to narrower ones, as in arithmetic."""
    return (
        float64(x)
        if dtype == "float64"
        else float64(x).astype(mx.float32).astype(getattr(mx, dtype)).astype(mx.float64)
    )


def high_half(x: mx.array) -> mx.array:
    """The number without the lower half of its bits."""
    return (stop_gradient(x).view(mx.int64) & -0x8000000).view(mx.float64)


def extended(x: Any) -> Any:
    """A number with an exponent of its own."""
    return Space(sys.modules[__name__]).number(x)


def materialize(x: Any) -> Any:
    """An array that is used more than once."""
    return x


def no_reassociation(x: Any) -> Any:
    """The number: sums are computed as they are written."""
    return x


def sin(x: mx.array) -> mx.array:
    """The sine; MLX's own is right to float32 alone, and its tangent to float64."""
    tangent = mx.tan(0.5 * x)
    return 2.0 * tangent / (1.0 + tangent * tangent)


def cos(x: mx.array) -> mx.array:
    """The cosine, in the same way."""
    square = mx.square(mx.tan(0.5 * x))
    return (1.0 - square) / (1.0 + square)
