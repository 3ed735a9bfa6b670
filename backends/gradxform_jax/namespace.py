"""JAX's namespace for formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics.elementwise import limited
from gradxform.numerics.namespace import Defaults, static
from gradxform_jax import private

barrier: Callable[[Any], Any] = lax.optimization_barrier
"""What XLA fuses nothing across; JAX declares no types for it."""


class Namespace(Defaults):
    """JAX functions under the names that formulas use."""

    abs, any, max, sqrt, sum = static(jnp.abs, jnp.any, jnp.max, jnp.sqrt, jnp.sum)
    isfinite, sort, where = static(jnp.isfinite, jnp.sort, jnp.where)
    cos, expm1, floor, log, log1p = static(jnp.cos, jnp.expm1, jnp.floor, jnp.log, jnp.log1p)
    sign, sin, stop_gradient = static(lax.sign, jnp.sin, lax.stop_gradient)
    ones_like, zeros_like = static(jnp.ones_like, jnp.zeros_like)
    complex, imag, real = static(lax.complex, jnp.imag, jnp.real)
    copy, reshape, transpose = static(jnp.copy, jnp.reshape, jnp.transpose)
    shift_left, shift_right = static(jnp.left_shift, jnp.right_shift)
    mask, current_trace, apart = static(np.array, private.current_trace, barrier)
    sign_keeps_zero = True

    @staticmethod
    def asarray(x: Any) -> Any:
        """Convert NumPy arrays and Python numbers; float0 stays NumPy."""
        return x if getattr(x, "dtype", None) == jax.dtypes.float0 else jnp.asarray(x)

    @staticmethod
    def stack(numbers: Any) -> Any:
        """Stack numbers; known ones without an operation."""
        return (np if all(isinstance(number, float) for number in numbers) else jnp).stack(numbers)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """An array in a dtype."""
        return lax.convert_element_type(x, np.dtype(dtype))

    @staticmethod
    def sum_over(x: Any, axes: tuple[int, ...] | None) -> Any:
        """The sum over axes that stay as ones, or of all elements; jnp.sum takes three times as long to trace."""
        if axes is not None:
            return jnp.sum(x, axis=axes, keepdims=True)
        return lax.reduce(x, np.zeros((), x.dtype), lax.add, tuple(range(x.ndim)))

    @staticmethod
    @jax.jit  # leaves of one shape are traced once
    def clip(x: Any, low: Any, high: Any) -> Any:
        """The elements between two bounds."""
        return limited(Namespace, x, low, high)

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        """Product of stacks of matrices, in float32 at least; accelerators would round float32 numbers first."""
        wide = np.float64 if x.dtype == np.float64 else np.float32
        return jnp.matmul(x, y, precision=lax.Precision.HIGHEST, preferred_element_type=wide)

    @staticmethod
    def max_over(x: Any, axes: Any) -> Any:
        """Maximum size over axes, keeping them; NaN if an element is NaN (XLA may drop it), zero if empty."""
        keep = axes is not None
        if x.dtype.itemsize < 8:  # the bits of sizes are in the order of the numbers, NaN's last
            whole = np.dtype(f"int{8 * x.dtype.itemsize}")
            bits = lax.bitcast_convert_type(x, whole) & np.iinfo(whole).max
            return lax.bitcast_convert_type(jnp.max(bits, axis=axes, keepdims=keep, initial=0), x.dtype)
        lost = jnp.any(x != x, axis=axes, keepdims=keep)
        return jnp.where(lost, jnp.nan, jnp.max(x, axis=axes, keepdims=keep, initial=0.0))

    @staticmethod
    def bits(x: Any) -> Any:
        """The bits of floating-point numbers as integers."""
        return lax.bitcast_convert_type(x, np.dtype(f"int{8 * x.dtype.itemsize}"))

    @staticmethod
    def power_of_two(x: Any) -> Any:
        """Largest power of two up to x; one for zero and nonfinite x.

        JAX 0.12 expands `jnp.frexp` and `jnp.ldexp` when it compiles, with 64 bits disabled again.
        """
        form = jnp.finfo(x.dtype)
        most = 2.0 ** (form.maxexp - 1)
        normal = jnp.where((x > 0.0) & jnp.isfinite(x), jnp.clip(x, form.tiny, most), jnp.ones_like(x))
        near = lax.reduce_precision(normal, form.nexp, 0)
        return jnp.where(near > normal, near / 2, near)

    @staticmethod
    def arange(count: int) -> Any:
        """Integers from zero, as floats."""
        return jnp.arange(count, dtype=np.float64)

    @staticmethod
    def iota(x: Any) -> Any:
        """Index of each element, sharded like the elements."""
        if not isinstance(x.size, int):  # symbolic
            return lax.iota(np.int64, x.size).reshape(x.shape)
        sharding = jax.typeof(x).sharding
        where = sharding if any(sharding.spec) else None  # an Explicit mesh would compute each on all devices
        dtype, number, stride = np.int64 if x.size >= 2**31 else np.int32, jnp.zeros(x.shape, np.int32), 1
        for axis in reversed(range(x.ndim)):
            own = lax.broadcasted_iota(dtype, x.shape, axis, out_sharding=where)
            number, stride = number + own * stride if axis < x.ndim - 1 else own, stride * x.shape[axis]
        return number

    @staticmethod
    def int32(x: Any) -> Any:
        """Integers, keeping the lower 32 bits."""
        return lax.convert_element_type(lax.convert_element_type(x, np.int64), np.int32)

    @staticmethod
    def float64(x: Any) -> Any:
        """A number, an array or many scalars in float64."""
        array_of = getattr(x, "__jax_array__", None)
        return lax.convert_element_type(x if array_of is None else array_of(), np.float64)

    @staticmethod
    def rounded(x: Any, dtype: str) -> Any:
        """Round to a dtype, in float64, through float32 as in arithmetic.

        XLA may remove a pair of conversions, so they are not used.
        """
        wide = jnp.asarray(x, np.float64)
        for step in ("float32", dtype) if jnp.finfo(dtype).bits == 16 else (dtype,):
            wide = lax.reduce_precision(wide, jnp.finfo(step).nexp, jnp.finfo(step).nmant)
        return wide

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Select elements of a vector by slices: their gradient works with 64 bits disabled."""
        if isinstance(index, int):
            return vector[index]
        starts = [i for i, place in enumerate(index) if i == 0 or place != index[i - 1] + 1]
        ends = [*starts[1:], len(index)]
        runs = [lax.slice_in_dim(vector, index[a], index[b - 1] + 1) for a, b in zip(starts, ends, strict=True)]
        return lax.concatenate(runs, 0) if len(runs) > 1 else runs[0]
