"""Norms in float64, which XLA converts to while it reads: no overflow, no underflow, no rounding to speak of."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    """The norm of an array, or the norms over some axes, which stay as ones."""
    total = functools.partial(jnp.sum, axis=axes, keepdims=axes is not None)
    size = _size(leaf)
    if leaf.size == 0 or ord == 1:
        return total(size)
    if ord == 2:
        return _norm2(leaf, total)
    lost = jnp.any(size != size, axis=axes, keepdims=axes is not None)
    largest = jnp.where(lost, np.nan, jnp.max(size, axis=axes, keepdims=axes is not None))
    if ord == math.inf:
        return largest
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return unit * total((size / unit) ** ord) ** (1 / ord)


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaf,), (tangent,) = primals, tangents
        value, size, sign = norm(leaf, axes, ord), _size(leaf), jnp.conj(jnp.sign(_wide(leaf)))
        share = size / jnp.where(value > 0, value, 1.0)
        if ord == math.inf:
            top = lax.convert_element_type(size == value, np.float64)
            weight = top / jnp.sum(top, axis=axes, keepdims=axes is not None)
        else:
            weight = share if ord == 2 else share ** (ord - 1)
        change = jnp.real(weight * sign * _wide(tangent))
        return value, jnp.sum(change, axis=axes, keepdims=axes is not None)


def _norm2(leaf: Any, total: Any) -> Any:
    plain = total(_squares(leaf))
    if leaf.dtype not in (np.float64, np.complex128):
        return jnp.sqrt(plain)
    trusted = jnp.all(((plain > leaf.size * 2.0**-960) & jnp.isfinite(plain)) | (plain != plain))
    return lax.cond(trusted, lambda: jnp.sqrt(plain), lambda: _scaled(leaf, total))


def _scaled(leaf: Any, total: Any) -> Any:
    """The 2-norm of float64 numbers in units of a power of two near the largest."""
    size = _size(leaf)
    largest = jnp.max(size)
    exponent = jnp.where((largest > 0) & jnp.isfinite(largest), jnp.frexp(largest)[1], 0)
    return jnp.ldexp(jnp.sqrt(total(jnp.square(jnp.ldexp(size, -exponent)))), exponent)


def _wide(leaf: Any) -> Any:
    return lax.convert_element_type(
        leaf, np.complex128 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else np.float64
    )


def _size(leaf: Any) -> Any:
    return jnp.abs(_wide(leaf))


def _squares(leaf: Any) -> Any:
    wide = _wide(leaf)
    return jnp.square(wide.real) + jnp.square(wide.imag) if jnp.iscomplexobj(wide) else wide * wide
