"""The namespace that formulas are computed in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


class Vectors:
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

    @staticmethod
    def round32(x: Any) -> Any:
        """To the nearest float32 number, in float64; a pair of conversions XLA may take out."""
        return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)

    @staticmethod
    def round64(x: Any) -> Any:
        """Float64 it is."""
        return x

    @staticmethod
    def head(x: Any) -> Any:
        """The number without the lower half of its bits."""
        bits = lax.bitcast_convert_type(lax.stop_gradient(x), np.uint64) & np.uint64(0xFFFFFFFFF8000000)
        return lax.bitcast_convert_type(bits, np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Some numbers of a vector."""
        return vector[np.array(index)]
