"""The squares of 2-norms in graphs that XLA does not compile, which have no kernel that converts and sums at once.

On the CPU a large leaf is seen as rows of 128 numbers. One operation takes the norms of the rows in float32 and writes
nothing else; their squares are added in float64. Where a square left the range of float32, or one row holds much of the
sum, rows of that leaf are read again in float64: all of them, and else none, by a slice and without a branch.
On other devices XLA compiles the sums in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import _graph, _multiply
from gradxform_tensorflow._namespace import Namespace

_ROW = 128
_LARGE = 1 << 14
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def norms(leaves: Sequence[Any]) -> Any:
    """The vector of the leaves' 2-norms, in float64; none of the leaves is of 64 bits."""
    return safe_root(Namespace, _squares(*leaves), 2)


@tf.custom_gradient
def _squares(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
    """The sums of the squares of leaves as a vector."""
    if _graph.is_function():
        squares = _graph.by_device(_graph.fused(_in_float64, leaves), _in_rows, leaves)
    else:  # a graph of TensorFlow 1
        squares = _in_rows(*leaves)
    return squares, lambda upstream: _multiply.multiply(leaves, 2.0 * upstream)


def _in_float64(*leaves: Any) -> Any:
    return tf.stack([_exact(leaf) for leaf in leaves])


def _exact(leaf: Any) -> Any:
    parts = [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]
    return tf.add_n([2.0 * tf.nn.l2_loss(tf.cast(part, tf.float64)) for part in parts])


def _in_rows(*leaves: Any) -> Any:
    """The same for the CPU."""
    found = {i: _exact(leaf) for i, leaf in enumerate(leaves) if not _is_large(leaf)}
    large = [i for i in range(len(leaves)) if i not in found]
    if large:
        found |= zip(large, tf.unstack(_of_large([leaves[i] for i in large])), strict=True)
    return tf.stack([found[i] for i in range(len(leaves))])


def _is_large(leaf: Any) -> bool:
    return (leaf.shape.num_elements() or 0) > _LARGE


def _of_large(leaves: Sequence[Any]) -> Any:
    """The sums of the squares of large leaves."""
    rows, rests = zip(*map(_rows, leaves), strict=True)
    lengths = [tf.raw_ops.EuclideanNorm(input=each, axis=[1]) for each in rows]
    total = tf.stack(list(map(_exact, lengths)))
    heaviest = tf.square(tf.cast(tf.stack(list(map(tf.reduce_max, lengths))), tf.float64))
    counts = [each.shape[0] for each in rows]
    sound = tf.math.is_finite(total) & (heaviest < total * _HEAVY)
    sound &= total > tf.constant([count * _ROW * _ONLY_ROUNDING_LOST for count in counts], tf.float64)
    again = tf.unstack(tf.where(sound | tf.math.is_nan(total), 0, tf.constant(counts)))
    exact = tf.stack([_exact(each[:count]) for each, count in zip(rows, again, strict=True)])
    return tf.where(sound, total, exact + tf.where(tf.math.is_nan(total), total, 0.0)) + tf.stack(rests)


def _rows(leaf: Any) -> tuple[Any, Any]:
    """A leaf in rows of float32, and the sum of the squares of what is left."""
    if leaf.dtype.is_complex:
        leaf = tf.bitcast(leaf, tf.float32)
    flat = tf.reshape(tf.cast(leaf, tf.float32), [-1])
    cut = flat.shape[0] // _ROW * _ROW
    rest = _exact(flat[cut:]) if cut < flat.shape[0] else tf.constant(0.0, tf.float64)
    return tf.reshape(flat[:cut] if cut < flat.shape[0] else flat, [-1, _ROW]), rest


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
