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
    def rounded(x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype, in float64, by way of float32 as in arithmetic.

        A pair of conversions would not do: XLA may take it out.
        """
        wide = jnp.asarray(x, np.float64)
        for step in ("float32", dtype) if jnp.finfo(dtype).bits == 16 else (dtype,):
            wide = lax.reduce_precision(wide, jnp.finfo(step).nexp, jnp.finfo(step).nmant)
        return wide

    @staticmethod
    def head(x: Any) -> Any:
        """The number without the lower half of its bits."""
        bits = lax.bitcast_convert_type(lax.stop_gradient(x), np.uint64) & np.uint64(0xFFFFFFFFF8000000)
        return lax.bitcast_convert_type(bits, np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Some numbers of a vector."""
        return vector[index if isinstance(index, int) else np.array(index)]
