"""An optimizer that is called only where a step is to be applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Pairs = Sequence[tuple[Any, Any]]


def when(due: Any, optimizer: Any, pairs: Pairs, variables: Sequence[Any]) -> Any:
    """Apply gradients if a bool says so: True, a tensor, or one that can be read.

    Raises:
        ValueError: a tensor in a graph under a strategy of several replicas, where no update can be in a branch.
    """
    if due is True:
        return optimizer.apply_gradients(pairs)
    if tf.executing_eagerly():
        return optimizer.apply_gradients(pairs) if due else None
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync > 1:
        raise ValueError(
            "tensorflow.GradientProcessor: steps are left out, which an optimizer under a tf.distribute strategy of "
            "several replicas cannot in a graph; accumulate or skip in a loop of your own, by gx.has_updated(processor)"
        )
    _build(optimizer, variables)

    def update() -> Any:
        done = optimizer.apply_gradients(pairs)
        with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
            return tf.constant(True)

    found = _cond(due, update, pairs)
    return None if tf.compat.v1.get_default_graph().building_function else found.op


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the variables of a Keras optimizer outside of the branch; those of TensorFlow 1 do so themselves."""
    if callable(getattr(optimizer, "build", None)) and not getattr(optimizer, "built", True):
        with tf.init_scope():
            optimizer.build(list(variables))


def _cond(due: Any, update: Any, pairs: Pairs) -> Any:
    """A branch; for TensorFlow 1's reference variables, which no function takes, one of TensorFlow 1."""
    v1 = tf.compat.v1
    references = any(isinstance(v, tf.Variable) and v.dtype._is_ref_dtype for _, v in pairs)
    if not (references and v1.control_flow_v2_enabled()):
        return v1.cond(due, update, lambda: tf.constant(False))
    v1.disable_control_flow_v2()
    try:
        return v1.cond(due, update, lambda: tf.constant(False))
    finally:
        v1.enable_control_flow_v2()
