"""The identity with a custom backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform.backend.protocol import Backward


def same(first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
    """Return the first tensors; a function computes what flows back to both lists."""
    count, first = len(first), list(map(tf.convert_to_tensor, first))
    kept = list(map(tf.identity, second))  # read here: inside a branch or loop, the backward pass cannot read them

    @tf.custom_gradient
    def identity(*given: Any) -> Any:
        def flowing(*upstream: Any) -> list[Any]:
            found, others = backward(list(upstream), kept)
            return [*(found or [None] * count), *(others or [None] * len(kept))]

        return list(map(tf.identity, given[:count])), flowing

    return list(identity(*first, *map(tf.convert_to_tensor, second)))


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Return the values; their gradients flow to the leaves."""
    return list(map(_instead, values, leaves))


@tf.custom_gradient
def _instead(value: Any, leaf: Any) -> Any:
    return tf.identity(value), lambda upstream: (None, upstream)
