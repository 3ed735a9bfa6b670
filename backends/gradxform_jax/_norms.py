"""Norms in float64, which XLA converts to while it reads: no overflow, no underflow, no rounding to speak of."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._pairs import Pair, root
from gradxform_jax._scalars import Vectors

_ROW = 64
_FEW = 1 << 14


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Pair:
    """The norm of an array, or the norms over some axes, which stay as ones."""
    narrow = leaf.dtype not in (np.float64, np.complex128)
    plain = functools.partial(jnp.sum, axis=axes, keepdims=axes is not None)
    whole = not any(jax.typeof(leaf).sharding.spec)  # the pairs of a sharded array may lie on two devices
    total = functools.partial(_pairwise, axes=axes) if whole and leaf.size and not narrow else plain
    size = _size(leaf)
    if leaf.size == 0 or ord == 1:
        return _pair(total(size))
    if ord == 2:
        return _norm2(leaf, total)
    lost = jnp.any(size != size, axis=axes, keepdims=axes is not None)
    largest = jnp.where(lost, np.nan, jnp.max(size, axis=axes, keepdims=axes is not None))
    if ord == math.inf:
        return _pair(largest)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return _pair(unit * total((size / unit) ** ord) ** (1 / ord))


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaf,), (tangent,) = primals, tangents
        pair = norm(leaf, axes, ord)
        value, size, sign = pair.high, _size(leaf), jnp.conj(jnp.sign(_wide(leaf)))
        if ord == math.inf:
            top = lax.convert_element_type(size == value, np.float64)
            weight = top / jnp.sum(top, axis=axes, keepdims=axes is not None)
        else:
            share = size / jnp.where(value > 0, value, 1.0)
            weight = share if ord == 2 else _power(share, ord - 1)
        change = jnp.sum(weight * _along(sign, tangent), axis=axes, keepdims=axes is not None)
        return pair, Pair(change, jnp.zeros_like(change))


def _power(share: Any, exponent: float) -> Any:
    """A power of numbers from zero to one; JAX would differentiate ** with 32-bit numbers once it is traced."""
    positive = share > 0
    return jnp.where(positive, jnp.exp(exponent * jnp.log(jnp.where(positive, share, 1.0))), 0.0)


def _along(sign: Any, tangent: Any) -> Any:
    """The part of a tangent along the gradient, taken by parts, so that the transpose sees one dtype at a time."""
    if not jnp.iscomplexobj(tangent):
        return sign * _wide(tangent)
    return sign.real * _wide(tangent.real) - sign.imag * _wide(tangent.imag)


def _pair(value: Any) -> Pair:
    return Pair(value, jnp.zeros_like(value))


def _pairwise(values: Any, axes: tuple[int, ...] | None) -> Any:
    """The sum of float64 numbers, in pairs, so that the rounding does not grow with their number."""
    over = tuple(range(values.ndim)) if axes is None else axes
    rest = [axis for axis in range(values.ndim) if axis not in over]
    shape = [1 if axis in over else values.shape[axis] for axis in range(values.ndim)] if axes is not None else []
    rows = values.transpose(*rest, *over).reshape(*(values.shape[axis] for axis in rest), -1)
    if rows.shape[-1] > _FEW:
        rows = jnp.pad(rows, [(0, 0)] * len(rest) + [(0, -rows.shape[-1] % _ROW)])
        rows = jnp.sum(rows.reshape(*rows.shape[:-1], -1, _ROW), axis=-1)
    while rows.shape[-1] > 1:
        rows = jnp.pad(rows, [(0, 0)] * len(rest) + [(0, rows.shape[-1] % 2)])
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows.reshape(shape)


def _norm2(leaf: Any, total: Any) -> Pair:
    plain = total(_squares(leaf))
    if leaf.dtype not in (np.float64, np.complex128):
        return _pair(jnp.sqrt(plain))
    trusted = jnp.all(((plain > leaf.size * 2.0**-960) & jnp.isfinite(plain)) | (plain != plain))
    return lax.cond(trusted, lambda: root(Vectors, plain), lambda: _scaled(leaf, total))


def _scaled(leaf: Any, total: Any) -> Pair:
    """The 2-norm of float64 numbers in units of a power of two near the largest."""
    size = _size(leaf)
    largest = jnp.max(size)
    exponent = jnp.where((largest > 0) & jnp.isfinite(largest), jnp.frexp(largest)[1], 0)
    found = root(Vectors, total(jnp.square(jnp.ldexp(size, -exponent))))
    return Pair(jnp.ldexp(found.high, exponent), jnp.ldexp(found.low, exponent))


def _wide(leaf: Any) -> Any:
    return lax.convert_element_type(
        leaf, np.complex128 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else np.float64
    )


def _size(leaf: Any) -> Any:
    return jnp.abs(_wide(leaf))


def _squares(leaf: Any) -> Any:
    wide = _wide(leaf)
    return jnp.square(wide.real) + jnp.square(wide.imag) if jnp.iscomplexobj(wide) else wide * wide
