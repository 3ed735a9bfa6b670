"""The namespace that formulas are computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics.namespace import Defaults

barrier: Callable[[Any], Any] = lax.optimization_barrier
"""What XLA fuses nothing across; JAX declares no types for it."""


class Namespace(Defaults):
    """JAX's functions under the names that formulas use."""

    where = staticmethod(jnp.where)
    isfinite = staticmethod(jnp.isfinite)
    sqrt = staticmethod(jnp.sqrt)
    abs = staticmethod(jnp.abs)
    sum = staticmethod(jnp.sum)
    max = staticmethod(jnp.max)
    any = staticmethod(jnp.any)
    stack = staticmethod(jnp.stack)
    stop_gradient = staticmethod(lax.stop_gradient)
    mask = staticmethod(np.array)
    expm1 = staticmethod(jnp.expm1)
    log = staticmethod(jnp.log)
    cos = staticmethod(jnp.cos)
    sin = staticmethod(jnp.sin)
    floor = staticmethod(jnp.floor)
    sort = staticmethod(jnp.sort)
    reshape = staticmethod(jnp.reshape)
    zeros_like = staticmethod(jnp.zeros_like)
    ones_like = staticmethod(jnp.ones_like)
    shift_left = staticmethod(jnp.left_shift)
    shift_right = staticmethod(jnp.right_shift)
    asarray = staticmethod(jnp.asarray)
    copy = staticmethod(jnp.copy)
    real = staticmethod(jnp.real)
    imag = staticmethod(jnp.imag)
    complex = staticmethod(lax.complex)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """An array in a dtype."""
        return lax.convert_element_type(x, np.dtype(dtype))

    @staticmethod
    def max_over(x: Any, axes: Any) -> Any:
        """The largest over axes, kept as ones; NaN if one is, which XLA's own may drop; of no elements zero."""
        keep = axes is not None
        lost = jnp.any(x != x, axis=axes, keepdims=keep)
        return jnp.where(lost, jnp.nan, jnp.max(x, axis=axes, keepdims=keep, initial=0.0))

    @staticmethod
    def power_of_two(x: Any) -> Any:
        """The largest power of two that is no larger; one for zero and what is not finite."""
        exponent = jnp.where((x > 0.0) & jnp.isfinite(x), jnp.frexp(x)[1] - 1, 0)
        return jnp.ldexp(jnp.ones_like(x), exponent)

    @staticmethod
    def arange(count: int) -> Any:
        """The numbers from zero."""
        return jnp.arange(count, dtype=np.float64)

    @staticmethod
    def iota(x: Any) -> Any:
        """The number of each element."""
        return lax.iota(np.int64, x.size).reshape(x.shape)

    @staticmethod
    def int32(x: Any) -> Any:
        """Whole numbers with the lower 32 bits alone."""
        return lax.convert_element_type(lax.convert_element_type(x, np.int64), np.int32)

    @staticmethod
    def float64(x: Any) -> Any:
        """A number or an array in float64."""
        return lax.convert_element_type(x, np.float64)

    @staticmethod
    def rounded(x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype, in float64, by way of float32 as in arithmetic.

        A pair of conversions would not do: XLA may take it out.
        """
        wide = jnp.asarray(x, np.float64)
        for step in ("float32", dtype) if jnp.finfo(dtype).bits == 16 else (dtype,):
            wide = lax.reduce_precision(wide, jnp.finfo(step).nexp, jnp.finfo(step).nmant)
        return wide

    @staticmethod
    def high_half(x: Any) -> Any:
        """The number without the lower half of its bits."""
        bits = lax.bitcast_convert_type(lax.stop_gradient(x), np.uint64) & np.uint64(0xFFFFFFFFF8000000)
        return lax.bitcast_convert_type(bits, np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Some numbers of a vector, in slices: a gradient through them may be taken with 64 bits off."""
        if isinstance(index, int):
            return vector[index]
        starts = [i for i, place in enumerate(index) if i == 0 or place != index[i - 1] + 1]
        ends = [*starts[1:], len(index)]
        runs = [lax.slice_in_dim(vector, index[a], index[b - 1] + 1) for a, b in zip(starts, ends, strict=True)]
        return lax.concatenate(runs, 0) if len(runs) > 1 else runs[0]
