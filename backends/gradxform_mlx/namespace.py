"""MLX functions under the names that formulas use."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from gradxform.numerics import norms
from gradxform.numerics.namespace import Defaults


class Namespace(Defaults):
    """Functions that compute in float64, which MLX supports on CPUs, or in float32."""

    abs, any, max, sqrt, sum = mx.abs, mx.any, mx.max, mx.sqrt, mx.sum
    expm1, floor, isfinite, log, log1p, sort = mx.expm1, mx.floor, mx.isfinite, mx.log, mx.log1p, mx.sort
    ones_like, reshape, stop_gradient, zeros_like = mx.ones_like, mx.reshape, mx.stop_gradient, mx.zeros_like
    asarray, copy, imag, real = mx.array, mx.array, mx.imag, mx.real
    shift_left, shift_right = mx.left_shift, mx.right_shift
    mask, matmul, sign, transpose = mx.array, mx.matmul, mx.sign, mx.transpose

    def __init__(self, widest: str) -> None:
        """Choose the widest dtype."""
        self.widest = widest
        self._wide: mx.Dtype = getattr(mx, widest)

    def cast(self, x: mx.array, dtype: str) -> mx.array:
        """An array in a dtype."""
        return x.astype(getattr(mx, "bool_" if dtype == "bool" else dtype))

    def float64(self, x: Any) -> mx.array:
        """A number or an array in the widest dtype."""
        return x.astype(self._wide) if isinstance(x, mx.array) else mx.array(x, dtype=self._wide)

    def int32(self, x: Any) -> mx.array:
        """Integers, keeping the lower 32 bits; in float32 they are in range."""
        if self.widest == "float64":
            x = self.float64(x).astype(mx.int64)
        return x.astype(mx.int32) if isinstance(x, mx.array) else mx.array(x, dtype=mx.int32)

    def complex(self, real: mx.array, imag: mx.array) -> mx.array:
        """Complex numbers from real and imaginary parts."""
        return mx.stack([real, imag], axis=-1).view(mx.complex64).reshape(real.shape)

    def where(self, condition: Any, yes: Any, no: Any) -> mx.array:
        """Choose elementwise; two Python numbers give the widest dtype."""
        return mx.where(condition, yes, no if isinstance(yes, mx.array) else self.float64(no))

    def matmul_add(self, z: Any, x: Any, y: Any, beta: float, alpha: float) -> Any:  # type: ignore[override]
        """Return beta * z + alpha * x @ y for stacks of matrices; MLX would round the numbers to float32."""
        if z.dtype.size == 8:  # GPUs have no float64
            return self.float64(beta) * z + self.float64(alpha) * mx.matmul(x, y)
        return mx.addmm(z, x, y, alpha=alpha, beta=beta)

    def stack(self, numbers: Any) -> mx.array:
        """Stack numbers to a vector."""
        return mx.stack([number if isinstance(number, mx.array) else self.float64(number) for number in numbers])

    @staticmethod
    def take(vector: mx.array, index: Any) -> mx.array:
        """Select elements of a vector."""
        return vector[mx.array(index, dtype=mx.int32)] if isinstance(index, tuple) else vector[index]

    def arange(self, count: int) -> mx.array:
        """Integers from zero, as floats."""
        return self.float64(mx.arange(count))

    def iota(self, x: mx.array) -> mx.array:
        """Index of each element."""
        return mx.arange(x.size, dtype=mx.int32 if x.size < 2**31 else mx.int64).reshape(x.shape)

    def bits(self, x: mx.array) -> mx.array:
        """The bits of floating-point numbers as integers."""
        return x.view({2: mx.int16, 4: mx.int32, 8: mx.int64}[x.dtype.size])

    def sum_over(self, x: mx.array, axes: Any) -> mx.array:  # type: ignore[override]
        """Sum over axes, keeping them. Empty arrays are summed by NumPy, since MLX 0.32.4 may hang."""
        if x.size == 0:
            return self.float64(np.sum(np.zeros(x.shape), axis=axes, keepdims=axes is not None)).astype(x.dtype)
        return mx.sum(x, axis=axes, keepdims=axes is not None)

    def sum_exactly(self, x: mx.array, axes: Any) -> mx.array:
        """Sum over axes in short rows: MLX adds one by one."""
        return norms.in_rows(self, x, axes)

    def max_over(self, x: mx.array, axes: Any) -> mx.array:
        """Maximum over axes, keeping them; NaN if an element is NaN, zero if there are none."""
        return mx.max(x, axis=axes, keepdims=axes is not None) if x.size else self.sum_over(x, axes)

    def power_of_two(self, x: mx.array) -> mx.array:
        """Largest power of two up to x, from its exponent bits; one for zero and nonfinite x."""
        least, digits = (2.0**-1022, 52) if self.widest == "float64" else (2.0**-126, 23)
        bits = self.bits(mx.maximum(mx.stop_gradient(x), least))
        return mx.where(mx.isfinite(x) & (x > 0.0), ((bits >> digits) << digits).view(self._wide), 1.0)

    def rounded(self, x: Any, dtype: str) -> mx.array:
        """Round to a dtype, in the widest one; narrow dtypes are rounded through float32, as in arithmetic."""
        wide = self.float64(x)
        return wide if dtype == "float64" else self.cast(wide.astype(mx.float32), dtype).astype(self._wide)

    def sin(self, x: mx.array) -> mx.array:
        """Sine in float64; MLX's sine has float32 accuracy, but its tangent float64."""
        tangent = mx.tan(0.5 * x)
        return 2.0 * tangent / (1.0 + tangent * tangent)

    def cos(self, x: mx.array) -> mx.array:
        """Cosine in float64, computed like `sin`."""
        square = mx.square(mx.tan(0.5 * x))
        return (1.0 - square) / (1.0 + square)


double, single = Namespace("float64"), Namespace("float32")
"""On CPUs; on GPUs, which have no float64."""
