"""The identity with a backward pass of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Callable[..., list[Any]]) -> list[Any]:
    """The tensors as they are; what flows back to them is a function of what flows back, and of numbers."""
    kept = list(map(tf.identity, numbers))  # read here: within a branch or a loop they cannot be read on the way back

    @tf.custom_gradient
    def same(*given: Any) -> Any:
        return list(map(tf.identity, given)), lambda *upstream: function(list(upstream), kept)

    return list(same(*map(tf.convert_to_tensor, leaves)))


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """The values; what flows back to them flows to the leaves."""
    return list(map(_instead, values, leaves))


@tf.custom_gradient
def _instead(value: Any, leaf: Any) -> Any:
    return tf.identity(value), lambda upstream: (None, upstream)
