"""Paths of objects that hold variables."""

from __future__ import annotations

from typing import Any

import keras

from gradxform.core.where import path_of
from gradxform_keras import _private


def paths_in(given: Any) -> list[str] | None:
    """Paths of the trainable variables of a layer, model or optimizer; None for other objects.

    Raises:
        ValueError: The object is not built.
    """
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        given = given.inner_optimizer
    if not isinstance(given, (keras.Layer, keras.optimizers.Optimizer)):
        return None
    if not given.built:
        raise ValueError(f"paths: {given.name} is not built and has no variables; call build, or take a step")
    variables = given.trainable_variables if isinstance(given, keras.Layer) else _private.variables_of(given)
    return [path_of(variable) for variable in variables]
