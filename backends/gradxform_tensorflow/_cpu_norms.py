"""2-norms of many tensors in graphs and under a tape, in processes with CPUs only.

Small tensors of equal size are packed in float64. Large float32 tensors are split into rows of 64: squares are summed
in float32 per row, and rows in float64. If the result leaves float32's range, or one row dominates, the tensors are
read again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import _eager, _packing
from gradxform_tensorflow._namespace import Namespace

_ROW = 64
_LARGE = 1 << 14
_HEAVY = 1 / 16
_NARROW = (tf.float32, tf.float16, tf.bfloat16)
_ONLY_ROUNDING_LOST = 2.0**-100
"""Above n times this, a sum of n float32 squares loses less to underflow than to rounding."""


def norms(leaves: Sequence[Any]) -> Any:
    """Vector of the leaves' 2-norms, in float64; no leaf has 64 bits."""
    return safe_root(Namespace, _squares(leaves, range(len(leaves))), 2)


def _squares(leaves: Sequence[Any], places: Sequence[int]) -> Any:
    """Sums of squares of some leaves, as a vector; no leaf has 64 bits."""
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
    """Sums of squares of small leaves, by one op for each size."""
    sizes: dict[int, list[int]] = {}
    for i in places:
        sizes.setdefault(leaves[i].shape.num_elements(), []).append(i)
    for size, group in sizes.items():
        whole = tf.reshape(tf.cast(_packing.pack([leaves[i] for i in group]), tf.float64), [len(group), size])
        yield group, tf.reduce_sum(tf.square(whole), axis=1)


def _parts(leaf: Any) -> list[Any]:
    return [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]


def _is_large(leaf: Any) -> bool:
    count = leaf.shape.num_elements()
    return leaf.dtype == tf.float32 and count is not None and count > _LARGE


@tf.custom_gradient
def _row_totals(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
    """Sums of squares of large float32 leaves, as a float64 vector."""
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
