"""Gradients under `tf.distribute`: the sum over the replicas, which is what an optimizer applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def summed(gradients: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The sums of gradients over the replicas, None where they were, and the number of replicas."""
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
