"""Norms in float64, with a derivative of their own."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import DOUBLE, dtype_name, norms
from gradxform_jax import _rows
from gradxform_jax._namespace import Namespace, barrier
from gradxform_jax._parts import folded, in_parts, is_traced


def has_double(leaves: Sequence[Any]) -> bool:
    """Whether a 64-bit leaf is among them."""
    return any(dtype_name(leaf) in DOUBLE for leaf in leaves)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaves: tuple[Any, ...], axes: tuple[int, ...] | None, ord: float) -> Any:
    """Return the norm of one array, or norms over some axes with keepdims; or the 2-norm of several narrow arrays."""
    if ord == 2 and not has_double(leaves):
        return lax.sqrt(folded(lax.add, [_squares(leaf, axes) for leaf in leaves]))
    (leaf,) = leaves
    # Without the barrier, XLA shares the wider elements with a product, and writes them to memory.
    return norms.norm(Namespace, barrier(leaf), axes, ord)


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaves,), (changes,) = primals, tangents
        value = norm(leaves, axes, ord)
        parts = [_change(leaf, change, value, axes, ord) for leaf, change in zip(leaves, changes, strict=True)]
        return value, folded(lax.add, parts)


def _change(leaf: Any, tangent: Any, value: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    size, keep = norms.sizes_of(Namespace, leaf), axes is not None
    if ord == math.inf:
        top = lax.convert_element_type(size == value, np.float64)
        weight = top / jnp.sum(top, axis=axes, keepdims=keep)
    else:
        share = size / jnp.where(value > 0, value, 1.0)
        # JAX would differentiate ** with 32-bit numbers once it is traced.
        log = jnp.log(jnp.where(share > 0, share, 1.0))
        weight = share if ord == 2 else jnp.where(share > 0, jnp.exp((ord - 1) * log), 0.0)
    return jnp.sum(weight * _along(jnp.conj(jnp.sign(_wide(leaf))), tangent), axis=axes, keepdims=keep)


def _along(sign: Any, tangent: Any) -> Any:
    """Project a tangent on the gradient; by parts, so that the transpose sees one dtype at a time."""
    if not jnp.iscomplexobj(tangent):
        return sign * _wide(tangent)
    return sign.real * _wide(tangent.real) - sign.imag * _wide(tangent.imag)


def _wide(x: Any) -> Any:
    return lax.convert_element_type(x, np.complex128 if x.dtype.kind == "c" else np.float64)


@functools.partial(jax.jit, static_argnums=1)  # leaves of one shape are traced once
def alone(leaf: Any, ord: float) -> Any:
    """Return the norm of one leaf."""
    return norm((leaf,), None, ord)


@functools.partial(jax.jit, static_argnums=1)
def _squares(leaf: Any, axes: tuple[int, ...] | None) -> Any:
    """Return the sum of squares of a narrow array."""
    parts = [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]
    return functools.reduce(lax.add, [_rows.squares(part, axes) for part in parts])


@functools.partial(jax.jit, static_argnums=1)
def vector(leaves: tuple[Any, ...], ord: float) -> Any:
    """Return the norms of leaves as a vector."""
    return jnp.stack([alone(leaf, ord) for leaf in leaves])


def total(leaves: tuple[Any, ...]) -> Any:
    """Return the 2-norm of several narrow leaves together."""
    if is_traced(leaves):
        return _together(leaves)
    return _root(in_parts(lambda some: [_sum_of_squares(tuple(some))], leaves))


_together = jax.jit(lambda leaves: norm(leaves, None, 2))


@jax.jit
def _sum_of_squares(leaves: tuple[Any, ...]) -> Any:
    return folded(lax.add, [_squares(leaf, None) for leaf in leaves])


@jax.jit
def _root(sums: list[Any]) -> Any:
    return lax.sqrt(folded(lax.add, sums))
