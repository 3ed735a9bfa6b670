"""Norms in float64, with a derivative of their own."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import DOUBLE, dtype_name, is_complex, norms
from gradxform_jax import _rows
from gradxform_jax._namespace import Namespace, barrier


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    """Return the norm of an array, or norms over some axes with keepdims."""
    if ord == 2 and dtype_name(leaf) not in DOUBLE:  # the derivative needs no safe root, which XLA does not fuse
        parts = [leaf.real, leaf.imag] if is_complex(leaf) else [leaf]
        return lax.sqrt(functools.reduce(lax.add, [_rows.squares(part, axes) for part in parts]))
    # Without the barrier, XLA shares the wider elements with a product, and writes them to memory.
    return norms.norm(Namespace, barrier(leaf), axes, ord)


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaf,), (tangent,) = primals, tangents
        value, size, keep = norm(leaf, axes, ord), norms.sizes_of(Namespace, leaf), axes is not None
        if ord == math.inf:
            top = lax.convert_element_type(size == value, np.float64)
            weight = top / jnp.sum(top, axis=axes, keepdims=keep)
        else:
            share = size / jnp.where(value > 0, value, 1.0)
            # JAX would differentiate ** with 32-bit numbers once it is traced.
            log = jnp.log(jnp.where(share > 0, share, 1.0))
            weight = share if ord == 2 else jnp.where(share > 0, jnp.exp((ord - 1) * log), 0.0)
        return value, jnp.sum(weight * _along(jnp.conj(jnp.sign(_wide(leaf))), tangent), axis=axes, keepdims=keep)


def _along(sign: Any, tangent: Any) -> Any:
    """Project a tangent on the gradient; by parts, so that the transpose sees one dtype at a time."""
    if not jnp.iscomplexobj(tangent):
        return sign * _wide(tangent)
    return sign.real * _wide(tangent.real) - sign.imag * _wide(tangent.imag)


def _wide(x: Any) -> Any:
    return lax.convert_element_type(x, np.complex128 if x.dtype.kind == "c" else np.float64)
