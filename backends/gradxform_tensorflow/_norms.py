"""Squared 2-norms in graphs on accelerators: float64 sums that XLA compiles without copying a leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform.numerics.norms import safe_root
from gradxform_tensorflow import _graph, _multiply
from gradxform_tensorflow._namespace import Namespace


def norms(leaves: Sequence[Any]) -> Any:
    """Vector of the leaves' 2-norms, in float64; no leaf has 64 bits."""
    return safe_root(Namespace, _squares(*leaves), 2)


@tf.custom_gradient
def _squares(*leaves: Any) -> tuple[Any, Callable[..., Any]]:
    """Sums of squares of leaves, as a vector."""
    kernel = _graph.fused(_in_float64, leaves) if _graph.is_fusible() else _in_float64
    return kernel(*leaves), lambda upstream: _multiply.multiply(leaves, 2.0 * upstream)


def _in_float64(*leaves: Any) -> Any:
    return tf.stack([_exact(leaf) for leaf in leaves])


def _exact(leaf: Any) -> Any:
    parts = [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]
    return tf.add_n([2.0 * tf.nn.l2_loss(tf.cast(part, tf.float64)) for part in parts])


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
