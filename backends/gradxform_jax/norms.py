"""Norms in float64, with a derivative of their own.

For large float32 leaves on the CPU, squares are added up in short rows of float32: XLA converts to float64 more slowly
than the CPU reads memory. The rows are made by cutting one axis.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import DOUBLE, dtype_name, is_complex, norms
from gradxform_jax.namespace import Namespace, barrier


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    """Return the norm of an array, or norms over some axes with keepdims."""
    if ord == 2 and dtype_name(leaf) not in DOUBLE:  # the derivative needs no safe root, which XLA does not fuse
        parts = [leaf.real, leaf.imag] if is_complex(leaf) else [leaf]
        return lax.sqrt(functools.reduce(lax.add, [squares(part, axes) for part in parts]))
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


# --- sums of squares -------------------------------------------------------------------------------------------------


_ROWS = 1 << 12
"""The least number of rows: from so many numbers on, XLA calls a library for a sum."""
_LARGE = 1 << 16
_SHORTEST, _LONGEST, _VECTOR = 48, 300, 8
"""The lengths of rows, which are of whole vectors: XLA adds up the rest of others with more rounding."""
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def squares(leaf: Any, axes: tuple[int, ...] | None) -> Any:
    """Return the sum of the squares of a real array of at most 32 bits, over all axes or some with keepdims."""
    if axes is not None:
        return _plain(leaf, axes)
    by = cut(leaf)
    on_cpus = functools.partial(_by_rows, *by) if by else _apart
    return lax.platform_dependent(leaf, cpu=on_cpus, default=_plain)


def _plain(leaf: Any, axes: tuple[int, ...] | None = None) -> Any:
    return Namespace.sum_over(lax.square(Namespace.float64(leaf)), axes)


def _apart(leaf: Any) -> Any:
    # Without the barrier, XLA shares the wider elements with a product, and writes them to memory.
    return _plain(barrier(leaf))


def _by_rows(axis: int, length: int, leaf: Any) -> Any:
    # Without the barrier, XLA moves the reshape and sums squares up to twenty times slower.
    rows = barrier(leaf.reshape(*leaf.shape[:axis], -1, length, *leaf.shape[axis + 1 :]))
    sums = lax.reduce(lax.square(rows), np.float32(0.0), lax.add, tuple(range(axis + 1, rows.ndim)))
    total = Namespace.sum_over(Namespace.float64(sums), None)
    # Rows round little if no row has much of the sum, and the sum is in float32's range.
    sound = (total > leaf.size * _ONLY_ROUNDING_LOST) & (Namespace.float64(jnp.max(sums)) < total * _HEAVY)
    return lax.cond(sound, lambda: total, lambda: _plain(leaf))


def cut(leaf: Any) -> tuple[int, int] | None:
    """Return the axis of a large float32 leaf, and the length, by which it is cut into rows; None not to cut it."""
    if leaf.dtype != np.float32 or not isinstance(leaf.size, int) or leaf.size < _LARGE:
        return None
    longest = min(_LONGEST, leaf.size // _ROWS)
    longest = longest if longest >= _SHORTEST else _LONGEST  # too few rows in any case
    for axis in reversed(range(leaf.ndim)):
        size, behind = leaf.shape[axis], math.prod(leaf.shape[axis + 1 :])
        lengths = [n for n in range(1, min(size, longest // behind) + 1) if size % n == 0 and n * behind >= _SHORTEST]
        if fitting := [n for n in lengths if n * behind % _VECTOR == 0]:
            return axis, fitting[-1]
    return None
