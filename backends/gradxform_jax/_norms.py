"""Norms in float64, which XLA converts to while it reads: no overflow, no underflow, no rounding to speak of."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._pairs import Pair, length, root, total, total_squares
from gradxform_jax._scalars import Vectors


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Pair:
    """The norm of an array, or the norms over some axes, which stay as ones."""
    if ord == 2 and leaf.size:
        return _norm2(leaf, axes)
    size = _size(leaf)
    if leaf.size == 0 or ord == 1:
        return _total(size, axes) if _is_wide(leaf) else _pair(_sum(size, axes))
    lost = jnp.any(size != size, axis=axes, keepdims=axes is not None)
    largest = jnp.where(lost, np.nan, jnp.max(size, axis=axes, keepdims=axes is not None))
    if ord == math.inf:
        return _pair(largest)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return _pair(unit * _sum((size / unit) ** ord, axes) ** (1 / ord))


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


def _is_wide(leaf: Any) -> bool:
    return leaf.dtype in (np.float64, np.complex128)


def _sum(values: Any, axes: tuple[int, ...] | None) -> Any:
    return jnp.sum(values, axis=axes, keepdims=axes is not None)


def _total(values: Any, axes: tuple[int, ...] | None) -> Pair:
    """The sum of float64 numbers as a pair."""
    return _shaped(total(Vectors, values, lambda x: jnp.sum(x, axis=axes, keepdims=True)), axes)


def _total_squares(parts: Any, axes: tuple[int, ...] | None) -> Pair:
    """The sum of the squares of float64 numbers as a pair."""
    return _shaped(total_squares(Vectors, parts, lambda x: jnp.sum(x, axis=axes, keepdims=True)), axes)


def _shaped(found: Pair, axes: tuple[int, ...] | None) -> Pair:
    return found if axes is not None else Pair(found.high.reshape(()), found.low.reshape(()))


def _norm2(leaf: Any, axes: tuple[int, ...] | None) -> Pair:
    if not _is_wide(leaf):
        return _pair(jnp.sqrt(_sum(_squares(leaf), axes)))
    squares = _total_squares(_parts(leaf), axes)
    plain = squares.high
    trusted = jnp.all(((plain > leaf.size * 2.0**-960) & (plain < 2.0**1000)) | (plain != plain))
    return lax.cond(trusted, lambda: root(Vectors, squares), lambda: _scaled(leaf, axes))


def _scaled(leaf: Any, axes: tuple[int, ...] | None) -> Pair:
    """The 2-norm of float64 numbers in units of a power of two near the largest."""
    largest = jnp.max(_size(leaf), axis=axes, keepdims=True)
    exponent = jnp.where((largest > 0) & jnp.isfinite(largest), jnp.frexp(largest)[1], 0)
    found = root(Vectors, _total_squares([jnp.ldexp(part, -exponent) for part in _parts(leaf)], axes))
    exponent = exponent.reshape(found.high.shape)
    return Pair(jnp.ldexp(found.high, exponent), jnp.ldexp(found.low, exponent))


def _parts(leaf: Any) -> list[Any]:
    return [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]


def _wide(leaf: Any) -> Any:
    return lax.convert_element_type(
        leaf, np.complex128 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else np.float64
    )


def _size(leaf: Any) -> Any:
    size = jnp.abs(_wide(leaf))
    if leaf.dtype != np.complex128:
        return size
    unit = jnp.ldexp(jnp.ones_like(size), jnp.where((size > 0) & jnp.isfinite(size), jnp.frexp(size)[1], 0))
    return length(Vectors, size, unit, (leaf.real, leaf.imag))


def _squares(leaf: Any) -> Any:
    wide = _wide(leaf)
    return jnp.square(wide.real) + jnp.square(wide.imag) if jnp.iscomplexobj(wide) else wide * wide
