"""The same functions on a GPU, which has no float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from gradxform_mlx import namespace


class Single:
    """MLX functions with float32 for float64."""

    widest = "float32"

    def __getattr__(self, name: str) -> Any:
        """A function that is equal in both namespaces."""
        return getattr(namespace, name)

    def float64(self, x: Any) -> mx.array:
        """A number or an array in float32."""
        return x.astype(mx.float32) if isinstance(x, mx.array) else mx.array(x, dtype=mx.float32)

    def int32(self, x: Any) -> mx.array:
        """Integers, which are in range."""
        return x.astype(mx.int32) if isinstance(x, mx.array) else mx.array(x, dtype=mx.int32)

    def where(self, condition: Any, yes: Any, no: Any) -> mx.array:
        """Elementwise choice."""
        return mx.where(condition, yes, no)

    def stack(self, numbers: Any) -> mx.array:
        """Stack numbers to a vector."""
        return mx.stack([number if isinstance(number, mx.array) else self.float64(number) for number in numbers])

    def take(self, vector: mx.array, index: Any) -> mx.array:
        """Select elements of a vector."""
        return vector[mx.array(index, dtype=mx.int32)] if isinstance(index, tuple) else vector[index]

    def arange(self, count: int) -> mx.array:
        """Integers from zero, as floats."""
        return mx.arange(count, dtype=mx.float32)

    def iota(self, x: mx.array) -> mx.array:
        """Index of each element."""
        return mx.arange(x.size, dtype=mx.int32 if x.size < 2**31 else mx.int64).reshape(x.shape)

    def sum_over(self, x: mx.array, axes: Any) -> mx.array:
        """Sum over axes, keeping them."""
        return mx.sum(x, axis=axes, keepdims=axes is not None) if x.size else self.float64(namespace.sum_over(x, axes))

    def max_over(self, x: mx.array, axes: Any) -> mx.array:
        """Maximum over axes, keeping them; NaN if an element is NaN, zero if there are none."""
        return mx.max(x, axis=axes, keepdims=axes is not None) if x.size else self.sum_over(x, axes)

    def power_of_two(self, x: mx.array) -> mx.array:
        """Largest power of two up to x; one for zero and nonfinite x."""
        bits = mx.maximum(mx.stop_gradient(x), 2.0**-126).view(mx.int32)
        return mx.where(mx.isfinite(x) & (x > 0.0), ((bits >> 23) << 23).view(mx.float32), 1.0)

    def rounded(self, x: Any, dtype: str) -> mx.array:
        """Round to a dtype, in float32."""
        return self.float64(x) if dtype == "float64" else namespace.cast(self.float64(x), dtype).astype(mx.float32)


single = Single()
