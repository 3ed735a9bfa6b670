"""Norms with a derivative of their own, and the one fast path that pays: large float32 leaves on the CPU.

There XLA converts to float64 more slowly than the memory reads. So one axis of such a leaf is cut, such that what is
behind the cut is a short row: its squares are summed in float32, and the rows are added in float64. Where one row holds
much of the sum, or the sum left the range of float32, the leaves are measured as on every other device. Leaves that lie
on one device, in eager code, are put together where they are small. docs/numbers/overrides.md has what each brings.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import DOUBLE, dtype_name
from gradxform.numerics.double_double import Pair
from gradxform.numerics.norms import norm_over, sizes_of
from gradxform.numerics.ranged import BASE
from gradxform_jax import _rows, _tpu
from gradxform_jax._namespace import Namespace, barrier, summed

_SMALL = 1 << 13
_MOST = 64


def norms(leaves: Sequence[Any], ord: float) -> list[Any]:
    """The leaves' norms; pairs for 64-bit leaves."""
    large = _large(leaves, ord)
    found = dict(zip(large, _large_norms(tuple(leaves[i] for i in large), True), strict=True)) if large else {}
    return [found[i] if i in found else _norm_alone(leaf, None, ord) for i, leaf in enumerate(leaves)]


@jax.custom_jvp
def total(leaves: tuple[Any, ...]) -> Any:
    """The 2-norm of all leaves together, of which none is of 64 bits."""
    large = _large(leaves, 2)
    found = [_measured(leaf) for i, leaf in enumerate(leaves) if i not in set(large)]
    if large:
        found += lax.platform_dependent(*(leaves[i] for i in large), cpu=_sums_in_rows, default=_sums)
    return lax.platform_dependent(*found, tpu=_norm_of_norms, default=_root_of_sum)


@total.defjvp
def _total_jvp(primals: Any, tangents: Any) -> Any:
    with jax.enable_x64(True):
        (leaves,), (changes,) = primals, tangents
        value = total(leaves)
        along = [_along_leaf(leaf, tangent, value) for leaf, tangent in zip(leaves, changes, strict=True)]
        return value, functools.reduce(jnp.add, along)


def vector(leaves: Sequence[Any], ord: float, whole: bool) -> Any:
    """The norms as a vector; a pair of vectors if there is a pair. `whole` says that no leaf is traced or sharded."""
    groups = _groups(leaves) if whole and ord == 2 else []
    parts = [_small_norms([leaves[i] for i in group]) for group in groups]
    if (large := _large(leaves, ord)) and not has_double(leaves):
        groups.append(large)
        parts.append(_large_norms(tuple(leaves[i] for i in large), False))
    taken = {i for group in groups for i in group}
    rest = [i for i in range(len(leaves)) if i not in taken]
    if rest or not parts:
        parts.append(_stacked([_norm_alone(leaves[i], None, ord) for i in rest]))
    if len(parts) == 1:
        return parts[0]
    order = [i for group in groups for i in group] + rest
    return jnp.concatenate(parts)[np.argsort(order)]


def are_whole(leaves: Sequence[Any]) -> bool:
    """Whether arrays are not traced, and each lies on one device."""
    return all(isinstance(getattr(leaf, "sharding", None), jax.sharding.SingleDeviceSharding) for leaf in leaves)


def _groups(leaves: Sequence[Any]) -> list[list[int]]:
    """The places of small leaves of one size and dtype; none where a leaf is of 64 bits."""
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if leaf.size <= _SMALL and leaf.dtype in (np.float32, np.float16, jnp.bfloat16):
            groups.setdefault((leaf.size, leaf.dtype), []).append(i)
    return [] if has_double(leaves) else [group for group in groups.values() if len(group) > 1]


def _small_norms(leaves: Sequence[Any]) -> Any:
    joined = barrier(lax.concatenate([leaf.reshape(-1) for leaf in leaves], 0))
    return _two_norm(joined.reshape(len(leaves), -1), (1,)).reshape(-1)


def _stacked(found: Sequence[Any]) -> Any:
    if not any(isinstance(one, Pair) for one in found):
        return jnp.stack(found)
    pairs = [one if isinstance(one, Pair) else Pair(one, *[jnp.zeros_like(one)] * 2) for one in found]
    return Pair(*(jnp.stack(parts) for parts in zip(*pairs, strict=True)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def norm(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    """The norm of an array, or the norms over some axes, which stay as ones."""
    if has_double([leaf]):
        return norm_over(Namespace, leaf, axes, ord)
    # Without the barrier, XLA shares the wider elements with a product, and writes them to memory.
    return _two_norm(leaf, axes) if ord == 2 else norm_over(Namespace, barrier(leaf), axes, ord)


@norm.defjvp
def _norm_jvp(axes: tuple[int, ...] | None, ord: float, primals: Any, tangents: Any) -> Any:
    """d|x| = sum((|x_i| / |x|)^(p-1) d|x_i|), and zero where the norm is."""
    with jax.enable_x64(True):
        (leaf,), (tangent,) = primals, tangents
        found = norm(leaf, axes, ord)
        pair = found if isinstance(found, Pair) else Pair(found, None, jnp.zeros_like(found))
        value, size, keep = pair.high, _in_unit(sizes_of(Namespace, leaf), pair.exponent), axes is not None
        if ord == math.inf:
            top = lax.convert_element_type(size == value, np.float64)
            weight = top / jnp.sum(top, axis=axes, keepdims=keep)
        else:
            share = size / jnp.where(value > 0, value, 1.0)
            # JAX would differentiate ** with 32-bit numbers once it is traced.
            log = jnp.log(jnp.where(share > 0, share, 1.0))
            weight = share if ord == 2 else jnp.where(share > 0, jnp.exp((ord - 1) * log), 0.0)
        change = _in_unit(jnp.sum(weight * _along(_sign(leaf), tangent), axis=axes, keepdims=keep), pair.exponent)
        nothing = jnp.zeros_like(change)
        return found, Pair(change, nothing, nothing) if isinstance(found, Pair) else change


def _two_norm(leaf: Any, axes: tuple[int, ...] | None) -> Any:
    return _of_squares(leaf, axes, jnp.sqrt)


def _of_squares(leaf: Any, axes: tuple[int, ...] | None, function: Callable[[Any], Any]) -> Any:
    """A function of the sum of the squares of an array; on a TPU, which cannot hold it, the norm."""

    def elsewhere(*parts: Any) -> Any:
        return function(_square_sum(parts, axes))

    def on_cpu(*parts: Any) -> Any:
        return elsewhere(*(map(_rows.in_one_loop, parts) if axes is None else parts))

    return lax.platform_dependent(*_parts(leaf), cpu=on_cpu, tpu=functools.partial(_tpu.norm, axes), default=elsewhere)


def _square_sum(parts: Sequence[Any], axes: tuple[int, ...] | None) -> Any:
    """The sum of the squares of arrays together, in float64."""
    return functools.reduce(lax.add, [summed(lax.square(_wide(part)), axes) for part in parts])


def _parts(leaf: Any) -> list[Any]:
    """The real and imaginary parts."""
    return [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]


# Of leaves of one shape, traced once.
_norm_alone = jax.jit(norm, static_argnums=(1, 2))


@jax.jit
def _measured(leaf: Any) -> Any:
    """The sum of a leaf's squares; on a TPU, which cannot hold it, the norm."""
    return _of_squares(leaf, None, lambda found: found)


def _root_of_sum(*sums: Any) -> Any:
    return lax.sqrt(functools.reduce(lax.add, sums))


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


def _wide(x: Any) -> Any:
    return lax.convert_element_type(x, np.complex128 if x.dtype.kind == "c" else np.float64)


# --- large float32 leaves --------------------------------------------------------------------------------------------


def _large(leaves: Sequence[Any], ord: float) -> list[int]:
    """The places of leaves that can be cut; of too many none is, since XLA compiles each of them twice."""
    found = [i for i, leaf in enumerate(leaves) if _rows.cut(leaf)] if ord == 2 else []
    return found if len(found) <= _MOST else []


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _large_norms(leaves: tuple[Any, ...], apart: bool) -> Any:
    """The 2-norms of leaves that can be cut, as numbers or as a vector: XLA compiles a vector's places one by one."""
    together = tuple if apart else jnp.stack

    def exactly(*leaves: Any) -> Any:
        return together([_norm_alone(leaf, None, 2.0) for leaf in leaves])

    def in_rows(*leaves: Any) -> Any:
        leaves = barrier(leaves)  # else JAX 0.12 computes a leaf twice: cut into rows, and whole for the exact norms
        totals, heaviest = zip(*map(_rows.sums, leaves), strict=True)
        sound = jnp.all(
            _rows.is_sound(jnp.stack(totals), jnp.stack(heaviest), np.array([leaf.size for leaf in leaves]))
        )
        return lax.cond(sound, lambda: together(list(map(jnp.sqrt, totals))), lambda: exactly(*leaves))

    return lax.platform_dependent(*leaves, cpu=in_rows, default=exactly)


def _norm_of_norms(*norms: Any) -> Any:
    return _tpu.norm_of_norms(jnp.stack(norms))


def _sums(*leaves: Any) -> list[Any]:
    return list(map(_measured, leaves))


def _sums_in_rows(*leaves: Any) -> list[Any]:
    """The sums of the squares of leaves; a row counts as heavy if it holds much of the sum of all."""
    totals, heaviest = map(list, zip(*map(_rows.sums, leaves), strict=True))
    total, heavy = functools.reduce(lax.add, totals), functools.reduce(lax.max, heaviest)
    sound = _rows.is_sound(total, heavy, sum(leaf.size for leaf in leaves))
    found: list[Any] = lax.cond(sound, lambda: totals, lambda: _sums(*leaves))
    return found


@_large_norms.defjvp
def _large_norms_jvp(apart: bool, primals: Any, tangents: Any) -> Any:
    with jax.enable_x64(True):
        (leaves,), (changes,) = primals, tangents
        values = _large_norms(leaves, apart)
        along = list(map(_along_leaf, leaves, changes, values))
        return values, tuple(along) if apart else jnp.stack(along)


def _along_leaf(leaf: Any, tangent: Any, norm: Any) -> Any:
    """The change of a norm with a leaf's."""
    share = jnp.abs(_wide(leaf)) / jnp.where(norm > 0, norm, 1.0)
    return jnp.sum(share * _along(_sign(leaf), tangent))


def has_double(leaves: Sequence[Any]) -> bool:
    """Whether a 64-bit leaf is among them."""
    return any(dtype_name(leaf) in DOUBLE for leaf in leaves)
