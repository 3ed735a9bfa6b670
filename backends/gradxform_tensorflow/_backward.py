"""The identity with a backward pass of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Callable[..., list[Any]]) -> list[Any]:
    """The tensors as they are; what flows back to them is a function of what flows back."""

    @tf.custom_gradient
    def same(*given: Any) -> Any:
        return list(map(tf.identity, given)), lambda *upstream: function(list(upstream), numbers)

    return list(same(*map(tf.convert_to_tensor, leaves)))
