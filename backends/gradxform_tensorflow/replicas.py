"""Replicas of a `tf.distribute` strategy: collectives, and the sums of gradients that optimizers apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform.core.leaves import put
from gradxform_tensorflow import private

AXIS = "replicas"
ADVICE = (
    "call a gx.tensorflow.GradientProcessor in one strategy.run, and apply its gradients in another one if "
    "gx.has_updated(processor)"
)
"""What to write where an optimizer cannot skip steps."""


def check(axis: Any, leaves: Sequence[Any], paths: Callable[[], Sequence[str]]) -> None:
    """Refuse other axes than the replicas', and code outside replicas.

    Raises:
        TypeError: The axis is not a name.
        ValueError: The axis or the context is wrong; the message says what to do.
    """
    if not isinstance(axis, str):
        raise TypeError(f"across: in TensorFlow, axis must be {AXIS!r}, got {axis!r} of type {type(axis).__name__}")
    if axis != AXIS:
        raise ValueError(f"across: in TensorFlow, axis must be {AXIS!r} (the replicas of a strategy), got {axis!r}")
    if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
        raise ValueError(f"across: {AXIS!r} are within strategy.run alone; call the transformation in its function")
    if not tf.distribute.has_strategy():
        advice = "call the transformation in strategy.run(step) of a tf.distribute strategy, or leave across out"
        raise ValueError(f"across: there are no {AXIS!r} here; {advice}")


def all_gather(numbers: Any, axis: Any, like: Any) -> Any:
    """All-gather numbers over the replicas: a sum of rows that are zero elsewhere, exact in any order."""
    context: Any = tf.distribute.get_replica_context()
    numbers = tf.convert_to_tensor(numbers, tf.float64)
    here = tf.one_hot(axis_index(axis), context.num_replicas_in_sync, on_value=True, off_value=False, dtype=tf.bool)
    mine = tf.where(tf.reshape(here, [-1] + [1] * numbers.shape.rank), numbers, tf.zeros_like(numbers))
    return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)


def axis_index(axis: Any) -> Any:
    """Index of this replica."""
    context: Any = tf.distribute.get_replica_context()
    return tf.cast(context.replica_id_in_sync_group, tf.int32)


# --- gradients -------------------------------------------------------------------------------------------------


def summed(gradients: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Sum gradients over the replicas, keeping None; also return the number of replicas."""
    context = tf.distribute.get_replica_context()
    count = 1 if context is None else context.num_replicas_in_sync
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if count == 1 or not there:
        return gradients, 1
    own = [g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in (gradients[i] for i in there)]
    return put(gradients, there, context.all_reduce(tf.distribute.ReduceOp.SUM, own)), count


def shared(results: Sequence[Any], count: int) -> list[Any]:
    """This replica's share of a common result; the shares sum to it."""
    return list(results) if count == 1 else [None if whole is None else _share(whole, count) for whole in results]


def _share(whole: Any, count: int) -> Any:
    """An equal part. For rows, all or none, because optimizers square each replica's rows before summing."""
    if not isinstance(whole, tf.IndexedSlices):
        return whole / tf.cast(count, whole.dtype)
    rows = tf.where(tf.equal(axis_index(AXIS), 0), tf.size(whole.indices), 0)
    return tf.IndexedSlices(whole.values[:rows], whole.indices[:rows], whole.dense_shape)


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign mirrored variables to values that are equal in all replicas."""

    def update(strategy: Any, values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, lambda own, new: own.assign(new), args=(value,), group=False)

    private.maybe_merge_call(update, tf.distribute.get_strategy(), list(values))
