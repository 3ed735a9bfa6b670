"""Expose the transform and its state through the `LossScaleOptimizer` that Keras puts around a wrapped optimizer.

`Model.compile` adds one under the policy "mixed_float16". With the same two properties, code works with and without
loss scaling. An optimizer that is not wrapped has neither.
"""

from __future__ import annotations

from typing import Any

import keras

_NAMES = ("gradient_transformation", "gradient_transformation_state")


def add_properties() -> None:
    """Add the properties to Keras's class."""
    for name in _NAMES:
        if not hasattr(keras.optimizers.LossScaleOptimizer, name):
            setattr(keras.optimizers.LossScaleOptimizer, name, _of_inner(name))


def _of_inner(name: str) -> property:
    def get(self: Any) -> Any:
        inner = self.inner_optimizer
        if not hasattr(type(inner), name):
            raise AttributeError(
                f"{type(self).__name__!r} has no {name!r}: {inner.name} was not wrapped by gx.keras.wrap"
            )
        return getattr(inner, name)

    def put(self: Any, value: Any) -> None:
        setattr(self.inner_optimizer, name, value)

    return property(get, put if name.endswith("state") else None, doc="That of the wrapped optimizer inside.")
