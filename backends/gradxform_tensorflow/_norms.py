"""Norms that are right to the last bit of float32 at any size.

Where values may be read, NumPy reads the tensors' memory. Else, small tensors of one size are put together in float64.
A larger float32 one is seen as rows of 64 whose squares are summed in float32, and the rows are added in float64; if
the result left the range of float32, or one row holds much of it, the tensors are read again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.backend.host import norms as host
from gradxform.numerics.double_double import Pair
from gradxform.numerics.sums import in_units, length, root, total, total_squares
from gradxform_tensorflow import _eager, _packing
from gradxform_tensorflow._scalars import Namespace

_ROW = 64
_LARGE = 1 << 14
_HEAVY = 1 / 16
_WIDE = (tf.float64, tf.complex128)
_NARROW = (tf.float32, tf.float16, tf.bfloat16)
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def norms(leaves: Sequence[Any], ord: float) -> Any:
    """The vector of the leaves' norms, in float64; a NumPy vector where values may be read.

    Not of float64 leaves, whose sums NumPy rounds more often.
    """
    if _eager.readable(leaves) and not any(leaf.dtype in _WIDE for leaf in leaves):
        with np.errstate(all="ignore"):
            return host.norms([_eager.view(leaf) for leaf in leaves], ord)
    if ord == 2:
        return _norms2(leaves)
    found = [reduced(leaf, None, ord) for leaf in leaves]
    wide = any(leaf.dtype in _WIDE for leaf in leaves)
    return _stacked(found) if wide else tf.stack(found)


def _stacked(numbers: Sequence[Any]) -> Pair:
    """Numbers and pairs as a pair of vectors."""
    return Pair(*(tf.stack(parts) for parts in zip(*map(_whole, numbers), strict=True)))


def _whole(number: Any) -> Pair:
    """A number or a pair as a pair with all its parts."""
    pair = number if isinstance(number, Pair) else Pair(number, tf.zeros_like(number))
    return pair if pair.exponent is not None else pair._replace(exponent=tf.zeros_like(pair.high))


def _norms2(leaves: Sequence[Any]) -> Any:
    doubles = [i for i, leaf in enumerate(leaves) if leaf.dtype in _WIDE]
    others = [i for i, leaf in enumerate(leaves) if leaf.dtype not in _WIDE]
    if not doubles:
        return _root(_squares(leaves, others))
    squares = {i: _total(_parts(leaves[i]), None, True) for i in doubles}
    if others:
        squares |= zip(others, tf.unstack(_squares(leaves, others), num=len(others)), strict=True)
    together = _stacked([squares[i] for i in range(len(leaves))])
    plain = _whole(root(Namespace, together))
    some = tf.gather(together.high, doubles)
    sizes = tf.stack([tf.cast(tf.size(leaves[i]), tf.float64) for i in doubles])
    trusted = tf.reduce_all(((some < 2.0**1000) & (some > sizes * 2.0**-960)) | tf.math.is_nan(some))
    return Pair(*_eager.cond(trusted, lambda: tuple(plain), lambda: tuple(_with_scaled(plain, leaves, doubles))))


def _squares(leaves: Sequence[Any], places: Sequence[int]) -> Any:
    """The sums of the squares of some leaves, none of them of 64 bits, as a vector."""
    found: list[tuple[Sequence[int], Any]] = []
    large = [i for i in places if _is_large(leaves[i])]
    if large:
        found.append((large, _row_totals(*(leaves[i] for i in large))))
    narrow = [i for i in places if leaves[i].dtype in _NARROW]
    found += (part for group in _packing.small(leaves, narrow).values() for part in _sums_together(leaves, group))
    taken = {i for group, _ in found for i in group}
    alone = [i for i in places if i not in taken]
    if alone:
        sums = [tf.add_n([2.0 * tf.nn.l2_loss(tf.cast(part, tf.float64)) for part in _parts(leaves[i])]) for i in alone]
        found.append((alone, tf.stack(sums)))
    order = [i for group, _ in found for i in group]
    whole = tf.concat([sums for _, sums in found], 0) if len(found) > 1 else found[0][1]
    return whole if order == sorted(order) else tf.gather(whole, np.argsort(order))


def _sums_together(leaves: Sequence[Any], places: Sequence[int]) -> Iterator[tuple[Sequence[int], Any]]:
    """The sums of the squares of small leaves: of those of one size by one operation."""
    sizes: dict[int, list[int]] = {}
    for i in places:
        sizes.setdefault(leaves[i].shape.num_elements(), []).append(i)
    for size, group in sizes.items():
        whole = tf.reshape(tf.cast(_packing.pack([leaves[i] for i in group]), tf.float64), [len(group), size])
        yield group, tf.reduce_sum(tf.square(whole), axis=1)


def _total(parts: Sequence[Any], axes: tuple[int, ...] | None, squared: bool) -> Pair:
    """The sum of float64 numbers, or of their squares, over some axes, or all, as a pair."""

    def add(x: Any) -> Any:
        return tf.reduce_sum(x, axis=axes, keepdims=True)

    found = total_squares(Namespace, parts, add) if squared else total(Namespace, parts[0], add)
    return found if axes is not None else Pair(tf.reshape(found.high, []), tf.reshape(found.low, []))


def _with_scaled(plain: Pair, leaves: Sequence[Any], doubles: Sequence[int]) -> Pair:
    """The norms, those of float64 leaves again for numbers of any size."""
    norms = [Pair(*parts) for parts in zip(*(tf.unstack(part, num=len(leaves)) for part in plain), strict=True)]
    return _stacked([reduced(leaves[i], None, 2.0) if i in doubles else norm for i, norm in enumerate(norms)])


def _parts(leaf: Any) -> list[Any]:
    return [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]


def _root(squares: Any) -> Any:
    """The square root, with the derivative zero at zero."""
    zero = tf.equal(squares, 0.0)
    return tf.where(zero, tf.zeros_like(squares), tf.sqrt(tf.where(zero, tf.ones_like(squares), squares)))


def _is_large(leaf: Any) -> bool:
    count = leaf.shape.num_elements()
    return leaf.dtype == tf.float32 and count is not None and count > _LARGE


@tf.custom_gradient
def _row_totals(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
    """The sums of the squares of large float32 leaves, as a float64 vector."""
    totals, heaviest = [], []
    for leaf in leaves:
        flat = tf.reshape(leaf, [-1])
        cut = leaf.shape.num_elements() // _ROW * _ROW
        rows = tf.cast(tf.reduce_sum(tf.square(tf.reshape(flat[:cut], [-1, _ROW])), axis=1), tf.float64)
        totals.append(tf.reduce_sum(rows) + 2.0 * tf.nn.l2_loss(tf.cast(flat[cut:], tf.float64)))
        heaviest.append(tf.reduce_max(rows))
    total, heavy = tf.stack(totals), tf.stack(heaviest)
    least = tf.constant([leaf.shape.num_elements() * _ONLY_ROUNDING_LOST for leaf in leaves], tf.float64)
    sound = tf.math.is_finite(total) & (total > least) & (heavy < total * _HEAVY)
    sums = _eager.cond(tf.reduce_all(sound | tf.math.is_nan(total)), lambda: total, lambda: _exact_totals(leaves))

    def gradient(upstream: Any) -> list[Any]:
        factors = tf.unstack(2.0 * upstream, num=len(leaves))
        return [
            tf.cast(tf.cast(leaf, tf.float64) * factor, leaf.dtype)
            for leaf, factor in zip(leaves, factors, strict=True)
        ]

    return sums, gradient


def _exact_totals(leaves: Sequence[Any]) -> Any:
    return tf.stack([2.0 * tf.nn.l2_loss(tf.cast(leaf, tf.float64)) for leaf in leaves])


def reduced(leaf: Any, axes: tuple[int, ...] | None, ord: float) -> Any:
    """Norms over some axes, or all, of any order and for numbers of any size."""
    keep = axes is not None
    size = _size(leaf)
    if (ord == 1 and leaf.dtype not in _WIDE) or leaf.shape.num_elements() == 0:
        return _total([size], axes, False) if leaf.dtype in _WIDE else tf.reduce_sum(size, axis=axes, keepdims=keep)
    lost = tf.reduce_any(tf.math.is_nan(size), axis=axes, keepdims=keep)
    nan = tf.constant(math.nan, tf.float64)
    largest = tf.where(lost, nan, tf.reduce_max(size, axis=axes, keepdims=keep))
    if ord == math.inf:
        return largest
    fixed = tf.stop_gradient(largest)
    unit = tf.where(tf.math.is_finite(fixed) & (fixed > 0.0), fixed, tf.ones_like(fixed))
    if ord in (1, 2):
        unit = _power_of_two(unit)
    if ord == 1:
        return in_units(Namespace, _total([size / unit], axes, False), unit)
    if ord == 2:
        if leaf.dtype not in _WIDE:
            return unit * _root(tf.reduce_sum(tf.square(size / unit), axis=axes, keepdims=keep))
        found = root(Namespace, _total([part / unit for part in _parts(leaf)], axes, True))
        return in_units(Namespace, found, unit)
    powers = tf.reduce_sum((size / unit) ** ord, axis=axes, keepdims=keep)
    zero = tf.equal(powers, 0.0)
    root_of = tf.where(zero, powers, tf.where(zero, tf.ones_like(powers), powers) ** (1 / ord))
    return in_units(Namespace, Pair(root_of, tf.zeros_like(root_of)), unit) if leaf.dtype in _WIDE else unit * root_of


def _size(leaf: Any) -> Any:
    """Absolute values in float64."""
    size = tf.abs(tf.cast(leaf, tf.complex128 if leaf.dtype.is_complex else tf.float64))
    if leaf.dtype != tf.complex128:
        return size
    plain = tf.stop_gradient(size)
    unit = _power_of_two(tf.where(tf.math.is_finite(plain) & (plain > 0.0), plain, tf.ones_like(plain)))
    return length(Namespace, size, unit, _parts(leaf))


def _power_of_two(x: Any) -> Any:
    """The largest power of two that is not above a positive float64 number: its exponent's bits."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int64), tf.constant(0x7FF0000000000000, tf.int64))
    return tf.bitcast(bits, tf.float64)


def own(function: str, leaves: Sequence[Any], axes: tuple[int, ...] | None) -> Any:
    """The norm as one of TensorFlow's or Keras's functions computes it; None for complex numbers or several dtypes."""
    if len({leaf.dtype for leaf in leaves}) > 1 or leaves[0].dtype.is_complex:
        return None
    if function == "tf.clip_by_global_norm":
        return tf.cast(tf.linalg.global_norm(leaves), tf.float64)
    if function in ("tf.clip_by_norm", "keras clipnorm"):
        return tf.cast(tf.sqrt(tf.reduce_sum(leaves[0] * leaves[0], axes, keepdims=axes is not None)), tf.float64)
    if function == "keras global_clipnorm":
        squares = [tf.reduce_sum(tf.square(leaf)) for leaf in leaves]
        return tf.cast(tf.sqrt(tf.reduce_sum(tf.stack(squares))), tf.float64)
    return None
