"""Keep the largest elements of leaves, by counting: XLA would sort them, and `top_k` takes long for many elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform.numerics import ranking
from gradxform_tensorflow.namespace import Namespace


def largest(leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Keep so many elements of each leaf."""
    sizes, out = [ranking.in_order(Namespace, leaf) for leaf in leaves], list(leaves)
    for dtype in dict.fromkeys(own.dtype for own in sizes):
        places = [i for i, own in enumerate(sizes) if own.dtype == dtype]
        find = _limits_in_eager_code if tf.executing_eagerly() else _limits
        limits = find([sizes[i] for i in places], [tf.cast(counts[i], _kind(sizes[i])) for i in places])
        for i, limit in zip(places, limits, strict=True):
            out[i] = ranking.kept(Namespace, leaves[i], sizes[i], limit)
    return out


def _limits(sizes: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Find the integer of a rank in each array of one dtype."""
    dtype = sizes[0].dtype
    top, one = 8 * dtype.size - 2, tf.constant(1, dtype)

    def reaching(least: Sequence[Any]) -> list[Any]:
        return [tf.reduce_sum(tf.cast(own >= low, _kind(own))) for own, low in zip(sizes, least, strict=True)]

    def step(i: Any, *found: Any) -> tuple[Any, ...]:
        bit = tf.bitwise.left_shift(one, tf.cast(top - i, dtype))
        return (i + 1, *ranking.with_bit(Namespace, bit, found, counts, reaching))

    start = (tf.constant(0), *[tf.zeros([], dtype)] * len(sizes))
    _, *found = tf.while_loop(lambda i, *_: i <= top, step, start, maximum_iterations=top + 1)
    return found


_limits_in_eager_code = tf.function(_limits, autograph=False)
"""An eager loop would read its condition from an accelerator."""


def _kind(sizes: Any) -> Any:
    """The dtype that holds the number of elements."""
    known = sizes.shape.num_elements()
    return tf.int32 if known is not None and known < 2**31 else tf.int64
