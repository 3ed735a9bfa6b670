"""Norms in float64, which XLA converts to while it reads: no overflow, no underflow, no rounding to speak of.

On the CPU that is slower than the memory, so there the squares of large float32 leaves are summed in float32 in short
rows, and the rows added in float64; where one row holds much of the sum, or the sum left the range of float32, all are
summed again. Small leaves of one size are put together, since XLA takes its time to compile a sum for each of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import BASE
from gradxform.numerics.sums import in_units, length, root, total, total_squares
from gradxform_jax._scalars import Namespace

_SMALL = 1 << 13
_LARGE = 1 << 16
_WIDTHS = (512, 256, 128, 64, 32)
"""The lengths of rows. Of others, XLA adds up what is left of whole vectors with more rounding."""
_BLOCKS = 1 << 11
_LEAST = 512
"""Into so many blocks, of at least so many elements, a leaf is cut when it is summed again."""
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def norms(leaves: Sequence[Any], ord: float) -> Any:
    """The vector of the leaves' norms; a pair of vectors if a float64 leaf is among them."""
    if ord == 2 and not any(map(_is_wide, leaves)):
        return _norms2(tuple(leaves))
    pairs = [norm(leaf, None, ord) for leaf in leaves]
    if any(map(_is_wide, leaves)):
        return Pair(*(jnp.stack(parts) for parts in zip(*pairs, strict=True)))
    return jnp.stack([pair.high for pair in pairs])


@jax.custom_jvp
def _norms2(leaves: tuple[Any, ...]) -> Any:
    """The 2-norms of leaves of which none is of 64 bits."""
    large = [i for i, leaf in enumerate(leaves) if leaf.dtype == np.float32 and _is_large(leaf) and _width(leaf)]
    others = sorted(set(range(len(leaves))).difference(large))
    found = list(_together(leaves, others))
    if large:
        rows = [leaves[i].reshape(-1, _width(leaves[i])) for i in large]
        found.append((large, lax.platform_dependent(*rows, cpu=_in_rows, default=_exactly)))
    order = [i for places, _ in found for i in places]
    squares = jnp.concatenate([sums for _, sums in found])
    if order != sorted(order):
        squares = squares[np.argsort(order)]
    return jnp.sqrt(squares)


@_norms2.defjvp
def _norms2_jvp(primals: Any, tangents: Any) -> Any:
    with jax.enable_x64(True):
        (leaves,), (changes,) = primals, tangents
        value = _norms2(leaves)
        along = (_change(leaf, change, value[i]) for i, (leaf, change) in enumerate(zip(leaves, changes, strict=True)))
        return value, jnp.stack(list(along))


@jax.custom_jvp
def norms_alone(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """The 2-norms of leaves of which none is of 64 bits, as separate numbers; those of small leaves each by itself."""
    found: dict[int, Any] = {}
    large = [i for i, leaf in enumerate(leaves) if not _is_small(leaf)]
    if large:
        squares = _norms2(tuple(leaves[i] for i in large))
        found |= {i: squares[place] for place, i in enumerate(large)}
    return tuple(found[i] if i in found else _norm_alone(leaf) for i, leaf in enumerate(leaves))


@jax.jit
def _norm_alone(leaf: Any) -> Any:
    return jnp.sqrt(jnp.sum(_squares(leaf)))


@norms_alone.defjvp
def _norms_alone_jvp(primals: Any, tangents: Any) -> Any:
    with jax.enable_x64(True):
        (leaves,), (changes,) = primals, tangents
        values = norms_alone(leaves)
        return values, tuple(map(_change, leaves, changes, values))


def _change(leaf: Any, tangent: Any, norm: Any) -> Any:
    return jnp.sum(jnp.abs(_wide(leaf)) / jnp.where(norm > 0, norm, 1.0) * _along(_sign(leaf), tangent))


def _together(leaves: Sequence[Any], places: Sequence[int]) -> Any:
    """Places of leaves and the sums of their squares: of small leaves of one size and dtype together, else alone."""
    groups: dict[Any, list[int]] = {}
    for i in places:
        leaf = leaves[i]
        groups.setdefault((leaf.size, leaf.dtype) if _is_small(leaf) else i, []).append(i)
    for group in groups.values():
        flat = [leaves[i].reshape(-1) if leaves[i].ndim != 1 else leaves[i] for i in group]
        whole = flat[0] if len(flat) == 1 else lax.optimization_barrier(lax.concatenate(flat, 0))  # type: ignore[no-untyped-call]
        yield group, jnp.sum(_squares(whole).reshape(len(group), -1), axis=1)


def _is_small(leaf: Any) -> bool:
    """Whether a leaf is surely small: of a symbolic shape, as `jax.export` has them, nothing is sure."""
    return isinstance(leaf.size, int) and leaf.size <= _SMALL


def _is_large(leaf: Any) -> bool:
    return isinstance(leaf.size, int) and leaf.size >= _LARGE


def _width(leaf: Any) -> int:
    """The length of the rows that a large leaf is seen in, a power of two; 0 if none is fit."""
    return next((width for width in _WIDTHS if leaf.size % width == 0), 0)


def _in_rows(*leaves: Any) -> Any:
    """The sums of the squares of matrices by their rows."""
    # XLA sums squares fast where nothing but the square stands before the sum; the barrier keeps the reshape out.
    sums = [jnp.sum(jnp.square(lax.optimization_barrier(rows)), axis=1) for rows in leaves]  # type: ignore[no-untyped-call]
    totals = jnp.stack([jnp.sum(lax.convert_element_type(rows, np.float64)) for rows in sums])
    heaviest = lax.convert_element_type(jnp.stack([jnp.max(rows) for rows in sums]), np.float64)
    least = np.array([rows.size * _ONLY_ROUNDING_LOST for rows in leaves])
    sound = jnp.isfinite(totals) & (totals > least) & (heaviest < totals * _HEAVY)
    return lax.cond(jnp.all(sound | (totals != totals)), lambda: totals, lambda: _exactly(*leaves))


def _exactly(*leaves: Any) -> Any:
    """The sums of the squares of matrices in float64, a block at a time."""
    return jnp.stack([_sum_in_blocks(rows) for rows in leaves])


def _sum_in_blocks(rows: Any) -> Any:
    count = 1
    while count < _BLOCKS and rows.size % (2 * count) == 0 and rows.size > count * _LEAST:
        count *= 2
    blocks = rows.reshape(count, -1)
    return lax.fori_loop(0, count, lambda i, total: total + jnp.sum(_squares(blocks[i])), jnp.zeros(()))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Pair:
    """The norm of an array, or the norms over some axes, which stay as ones."""
    if ord == 2 and leaf.size:
        return _norm2(leaf, axes)
    size = _size(leaf)
    if leaf.size == 0 or (ord == 1 and not _is_wide(leaf)):
        return _total(size, axes) if _is_wide(leaf) else _pair(_sum(size, axes))
    lost = jnp.any(size != size, axis=axes, keepdims=axes is not None)
    largest = jnp.where(lost, np.nan, jnp.max(size, axis=axes, keepdims=axes is not None))
    if ord == math.inf:
        return _pair(largest)
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    if ord == 1:
        unit = jnp.ldexp(jnp.ones_like(unit), jnp.frexp(unit)[1] - 1)
        return in_units(Namespace, _total(size / unit, axes), unit)
    root_of = _sum((size / unit) ** ord, axes) ** (1 / ord)
    return in_units(Namespace, _pair(root_of), unit) if _is_wide(leaf) else _pair(unit * root_of)


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaf,), (tangent,) = primals, tangents
        pair = norm(leaf, axes, ord)
        value, size, sign = pair.high, _size(leaf), _sign(leaf)
        size = _in_unit(size, pair.exponent)
        if ord == math.inf:
            top = lax.convert_element_type(size == value, np.float64)
            weight = top / jnp.sum(top, axis=axes, keepdims=axes is not None)
        else:
            share = size / jnp.where(value > 0, value, 1.0)
            weight = share if ord == 2 else _power(share, ord - 1)
        change = jnp.sum(weight * _along(sign, tangent), axis=axes, keepdims=axes is not None)
        nothing = jnp.zeros_like(change)
        return pair, Pair(_in_unit(change, pair.exponent), nothing, nothing)


def _power(share: Any, exponent: float) -> Any:
    """A power of numbers from zero to one; JAX would differentiate ** with 32-bit numbers once it is traced."""
    positive = share > 0
    return jnp.where(positive, jnp.exp(exponent * jnp.log(jnp.where(positive, share, 1.0))), 0.0)


def _sign(leaf: Any) -> Any:
    return jnp.conj(jnp.sign(_wide(leaf)))


def _along(sign: Any, tangent: Any) -> Any:
    """The part of a tangent along the gradient, taken by parts, so that the transpose sees one dtype at a time."""
    if not jnp.iscomplexobj(tangent):
        return sign * _wide(tangent)
    return sign.real * _wide(tangent.real) - sign.imag * _wide(tangent.imag)


def _in_unit(x: Any, exponent: Any) -> Any:
    """Numbers in the unit of an exponent, which is of a norm and from -2 to 2."""
    for part in (0.5, 1.5):
        x = x * jnp.where(exponent > part, 1 / BASE, jnp.where(exponent < -part, BASE, 1.0))
    return x


def _pair(value: Any) -> Pair:
    return Pair(value, jnp.zeros_like(value), jnp.zeros_like(value))


def _is_wide(leaf: Any) -> bool:
    return leaf.dtype in (np.float64, np.complex128)


def _sum(values: Any, axes: tuple[int, ...] | None) -> Any:
    return jnp.sum(values, axis=axes, keepdims=axes is not None)


def _total(values: Any, axes: tuple[int, ...] | None) -> Pair:
    """The sum of float64 numbers as a pair."""
    return _shaped(total(Namespace, values, lambda x: jnp.sum(x, axis=axes, keepdims=True)), axes)


def _total_squares(parts: Any, axes: tuple[int, ...] | None) -> Pair:
    """The sum of the squares of float64 numbers as a pair."""
    return _shaped(total_squares(Namespace, parts, lambda x: jnp.sum(x, axis=axes, keepdims=True)), axes)


def _shaped(found: Pair, axes: tuple[int, ...] | None) -> Pair:
    found = found if axes is not None else Pair(found.high.reshape(()), found.low.reshape(()))
    return found._replace(exponent=jnp.zeros_like(found.high))


def _norm2(leaf: Any, axes: tuple[int, ...] | None) -> Pair:
    if not _is_wide(leaf):
        return _pair(jnp.sqrt(_sum(_squares(leaf), axes)))
    squares = _total_squares(_parts(leaf), axes)
    plain = squares.high
    trusted = jnp.all(((plain > leaf.size * 2.0**-960) & (plain < 2.0**1000)) | (plain != plain))
    exponent = jnp.zeros_like(plain)
    return lax.cond(trusted, lambda: root(Namespace, squares)._replace(exponent=exponent), lambda: _scaled(leaf, axes))


def _scaled(leaf: Any, axes: tuple[int, ...] | None) -> Pair:
    """The 2-norm of float64 numbers in units of a power of two near the largest."""
    largest = jnp.max(_size(leaf), axis=axes, keepdims=True)
    exponent = jnp.where((largest > 0) & jnp.isfinite(largest), jnp.frexp(largest)[1], 0)
    found = root(Namespace, _total_squares([jnp.ldexp(part, 1 - exponent) for part in _parts(leaf)], axes))
    return in_units(Namespace, found, jnp.ldexp(jnp.ones_like(largest), exponent - 1).reshape(found.high.shape))


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
    return length(Namespace, size, unit, (leaf.real, leaf.imag))


def _squares(leaf: Any) -> Any:
    wide = _wide(leaf)
    return jnp.square(wide.real) + jnp.square(wide.imag) if jnp.iscomplexobj(wide) else wide * wide
