"""Call an optimizer only if the step applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform_tensorflow import _private

Pairs = Sequence[tuple[Any, Any]]


def when(due: Any, optimizer: Any, pairs: Pairs, variables: Sequence[Any]) -> Any:
    """Apply gradients if a bool, or a bool tensor, is true.

    Raises:
        ValueError: The bool is a tensor in a graph under a strategy with several replicas, where updates cannot be in a
            branch.
    """
    if not pairs:  # all that have gradients are stopped
        return tf.no_op()
    if due is True:
        return optimizer.apply_gradients(pairs)
    if tf.executing_eagerly():
        return optimizer.apply_gradients(pairs) if due else None
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync > 1:
        raise ValueError(
            "tensorflow.GradientProcessor: an optimizer in a graph under a tf.distribute strategy with several "
            "replicas cannot skip steps; skip or accumulate in your own loop, with gx.has_updated(processor)"
        )
    _build(optimizer, variables)

    def update() -> Any:
        done = optimizer.apply_gradients(pairs)
        with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
            return tf.constant(True)

    found = _cond(due, update, pairs)
    return None if tf.compat.v1.get_default_graph().building_function else found.op


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create a Keras optimizer's variables outside the branch; TensorFlow 1 optimizers do so themselves."""
    if callable(getattr(optimizer, "build", None)) and not getattr(optimizer, "built", True):
        with tf.init_scope():
            optimizer.build(list(variables))


def _cond(due: Any, update: Any, pairs: Pairs) -> Any:
    """A branch. TensorFlow 1's reference variables cannot enter functions, so they get TensorFlow 1's branch."""
    if any(isinstance(v, tf.Variable) and v.dtype != v.dtype.base_dtype for _, v in pairs):
        return _private.run_if(due, update)
    return tf.cond(due, update, lambda: tf.constant(False))
