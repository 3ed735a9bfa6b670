"""TensorFlow's and Keras's own clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from parity_page.native import Call, Leaves, Native

Gradients = list[Any]


def _clip_value(grads: Gradients, limit: float) -> Gradients:
    return [tf.clip_by_value(g, -limit, limit) for g in grads]


def _clip_norm(grads: Gradients, limit: float) -> Gradients:
    return [tf.clip_by_norm(g, limit) for g in grads]


def _clip_global_norm(grads: Gradients, limit: float) -> Gradients:
    clipped, _ = tf.clip_by_global_norm(grads, limit)
    return clipped


def _made(function: Callable[[Gradients, float], Gradients], compiled: bool) -> Callable[[float], Call]:
    def with_limit(limit: float) -> Call:
        def work(grads: Gradients) -> Gradients:
            return function(grads, limit)

        return _on_arrays(tf.function(work, autograph=False) if compiled else work)

    return with_limit


def _optimizer(option: str) -> Callable[[float], Call]:
    """What a Keras optimizer does to gradients before its step."""
    return lambda limit: _on_arrays(keras.optimizers.SGD(**{option: limit})._clip_gradients)


def _on_arrays(work: Callable[[Gradients], Gradients]) -> Call:
    def call(grads: Leaves) -> Leaves:
        return [g.numpy() for g in work([tf.constant(g) for g in grads])]

    return call


_FUNCTIONS: Mapping[str, tuple[str, Callable[[Gradients, float], Gradients]]] = {
    "clip_global_norm": ("tf.clip_by_global_norm", _clip_global_norm),
    "clip_norm": ("tf.clip_by_norm", _clip_norm),
    "clip_value": ("tf.clip_by_value", _clip_value),
}
_OPTIONS = {"clip_global_norm": "global_clipnorm", "clip_norm": "clipnorm", "clip_value": "clipvalue"}

NATIVES = (
    *(
        Native(name, "tensorflow", mode, transform, _made(function, mode != "eager"))
        for transform, (name, function) in _FUNCTIONS.items()
        for mode in ("eager", "tf.function")
    ),
    *(
        Native(f"keras.optimizers.SGD({option}=c)", "tensorflow", "eager", transform, _optimizer(option))
        for transform, option in _OPTIONS.items()
    ),
)
