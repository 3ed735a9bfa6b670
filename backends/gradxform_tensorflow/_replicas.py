"""Gradients under `tf.distribute`: the sum over replicas, which the optimizer applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform_tensorflow import _private


def summed(gradients: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Sum gradients over the replicas, keeping None; also return the number of replicas."""
    context = tf.distribute.get_replica_context()
    count = 1 if context is None else context.num_replicas_in_sync
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if count == 1 or not there:
        return gradients, 1
    out = list(gradients)
    own = [g if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in (out[i] for i in there)]
    for i, total in zip(there, context.all_reduce(tf.distribute.ReduceOp.SUM, own), strict=True):
        out[i] = total
    return out, count


def shared(results: Sequence[Any], count: int) -> list[Any]:
    """This replica's share of a common result; the shares sum to it."""
    return list(results) if count == 1 else [None if whole is None else _share(whole, count) for whole in results]


def _share(whole: Any, count: int) -> Any:
    """An equal part. For rows, all or none, because optimizers square each replica's rows before summing."""
    if not isinstance(whole, tf.IndexedSlices):
        return whole / tf.cast(count, whole.dtype)
    number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)
    rows = tf.where(tf.equal(number, 0), tf.size(whole.indices), 0)
    return tf.IndexedSlices(whole.values[:rows], whole.indices[:rows], whole.dense_shape)


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign mirrored variables to values that are equal in all replicas."""

    def update(strategy: Any, values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, lambda own, new: own.assign(new), args=(value,), group=False)

    _private.maybe_merge_call(update, tf.distribute.get_strategy(), list(values))
