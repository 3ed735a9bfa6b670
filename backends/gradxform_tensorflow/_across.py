"""Collectives over the replicas of a `tf.distribute` strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

AXIS = "replicas"


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
        raise ValueError(
            f"across: {AXIS!r} are there within strategy.run alone; call the transformation in its function"
        )
    if not tf.distribute.has_strategy():
        raise ValueError(
            f"across: there are no {AXIS!r} here; call the transformation in strategy.run(step) of a tf.distribute "
            "strategy, or leave across out"
        )


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
