"""2-norms in graphs and under a tape: squares are summed in float64.

On CPUs, large float32 leaves are read in rows, without a float64 copy: an op returns the norm of each row, and these
are combined in float64. A row of 64 equal numbers is exact, and other rows are rounded apart. If a norm leaves
float32's range, or one row dominates, the leaves are read again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import products, running
from gradxform_tensorflow.namespace import Namespace

_raw = tf.raw_ops
"""Their wrappers take a sixth of the time of a trace."""
_ROW = 64
_LARGE = 1 << 16
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""Above n times this, a sum of n float32 squares loses less to underflow than to rounding."""


def norms(leaves: Sequence[Any]) -> Any:
    """Vector of the leaves' 2-norms, in float64; no leaf has 64 bits."""
    return safe_root(Namespace, _squares(*leaves), 2)


@tf.custom_gradient
def _squares(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
    """Sums of squares of leaves, as a vector."""
    found = _on_cpus(leaves) if running.has_only_cpus() else running.fused(_exactly, *leaves)
    return found, lambda upstream: products.multiply(leaves, 2.0 * tf.convert_to_tensor(upstream))


def _on_cpus(leaves: Sequence[Any]) -> Any:
    """Sums of squares of large leaves in rows, of small ones of one shape together, and of others."""
    packs = products.packs(leaves, [str(leaf.shape) for leaf in leaves])
    alone = [group[0] for group in packs if len(group) == 1]
    large, others = [i for i in alone if _is_large(leaves[i])], [i for i in alone if not _is_large(leaves[i])]
    ways = [(_in_rows, large), (_exactly, others), *[(_together, group) for group in packs if len(group) > 1]]
    found = [way(*[leaves[i] for i in group]) for way, group in ways if group]
    return tf.gather(tf.concat(found, 0), np.argsort([i for _, group in ways for i in group]))


def _together(*leaves: Any) -> Any:
    squares = tf.square(tf.cast(tf.stack(leaves), tf.float64))
    return tf.reduce_sum(squares, range(1, len(squares.shape)))


def _in_rows(*leaves: Any) -> Any:
    return running.on_cpus(_by_rows, _exactly, *leaves)


def _is_large(leaf: Any) -> bool:
    """Whether a leaf is read in rows."""
    count = leaf.shape.num_elements() or 0
    return leaf.dtype == tf.float32 and count > _LARGE and count % _ROW == 0


def _by_rows(*leaves: Any) -> Any:
    """Sums of squares of large float32 leaves."""
    counts = np.array([leaf.shape.num_elements() for leaf in leaves])
    shape, axis = tf.constant([-1, _ROW]), tf.constant(1)
    rows = [_raw.EuclideanNorm(input=_raw.Reshape(tensor=leaf, shape=shape), axis=axis) for leaf in leaves]
    totals, heaviest = _exactly(*rows), tf.stack([_raw.Max(input=row, axis=0) for row in rows])
    # An infinite row is heavy.
    sound = (totals > counts * _ONLY_ROUNDING_LOST) & (tf.square(tf.cast(heaviest, tf.float64)) < totals * _HEAVY)
    return running.cond(tf.reduce_all(sound), lambda: [totals], lambda: [_exactly(*leaves)])[0]


def _exactly(*leaves: Any) -> Any:
    return 2.0 * tf.stack(list(map(_half, leaves)))


def _half(leaf: Any) -> Any:
    """Half the sum of a leaf's squares."""
    if leaf.dtype.is_complex:
        return _half(tf.math.real(leaf)) + _half(tf.math.imag(leaf))
    return _raw.L2Loss(t=_raw.Cast(x=leaf, DstT=tf.float64))


def own(function: str, leaves: Sequence[Any], axes: tuple[int, ...] | None) -> Any:
    """The norm as a TensorFlow or Keras function computes it; None for complex numbers or mixed dtypes."""
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
