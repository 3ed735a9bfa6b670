"""Wrap Keras optimizers."""

from __future__ import annotations

from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.backend.errors import instead, short
from gradxform.core import updates
from gradxform.core.foreign import as_transformation
from gradxform.core.updates import GRADIENTS
from gradxform.core.where import path_of
from gradxform_keras import _private
from gradxform_keras._expression import warn_if_unsaved
from gradxform_keras._optimizer import Transforming, remade

_BACKENDS = ("tensorflow", "jax", "torch")


def wrap(optimizer: Any, tx: GradientTransformation, *, on: str = GRADIENTS) -> Any:
    """Wrap an optimizer so that it transforms gradients before it applies them, or the updates that it applies.

    Use the result in `model.compile` or in your own loop. Its class derives from the optimizer's class.

    The transform runs where Keras clips. It sees unscaled gradients, the mean of accumulated gradients, and the sum
    over the replicas of a `tf.distribute` strategy. Weight decay, the update and weight averages follow.

    Variables with stopped gradients keep every bit, also under weight decay, but not under constraints; the average of
    such a weight is the weight. A step that the transform skips (`skip_nonfinite`, `skip_large`, `accumulate`, unless
    masked) skips the optimizer. The transform's state is part of the optimizer's variables and is saved with them.

    With ``on="updates"`` the transform sees what the step has added, new minus old variables, learning rate and weight
    decay included; constraints and weight averages follow. Elements that it leaves unchanged are the optimizer's own,
    bit for bit; others are old variable plus transformed update, rounded once. Stopped variables and skipped steps
    keep every bit of the variables, while the optimizer's own state advances and the step counts. A step holds a copy
    of the variables that the transform can change (`masked`, `partition` and `freeze` choose), and their updates.

    Args:
        optimizer: Any Keras 3 optimizer, or its name; the original is not modified. For a
            `keras.optimizers.LossScaleOptimizer`, the inner optimizer is wrapped.
        tx: A transform. A gradient's path is its variable's ``path``, which in a model begins with the model's name;
            patterns may omit that name. A limit may be a non-trainable `keras.Variable`, and changes without
            recompiling. `model.save` saves numbers, strings, patterns, Keras schedules, Keras variables, and functions
            registered with `keras.saving.register_keras_serializable`. For anything else this function warns, and
            `model.save` raises an error; `model.save_weights` works.
        on: What to transform: "gradients" or "updates". Updates of half-precision variables are float32. Transforms
            that need parameters get those before the step.

    Returns:
        A new optimizer with the same options and variable values. It has the properties ``gradient_transformation`` and
        ``gradient_transformation_state``, also through a ``LossScaleOptimizer``. In a new process,
        ``import gradxform_keras`` before `keras.saving.load_model` to register the class.

    Raises:
        TypeError: `optimizer` is not a Keras 3 optimizer, is wrapped already, is a `MultiOptimizer` (which has no
            gradients of its own), or cannot be copied by ``get_config``; or `tx` is not a transform.
        RuntimeError: The Keras backend cannot train.
        ValueError: `on` is neither of the two; or a pattern matches no path, raised when the optimizer is built, or
            here if it already is.

    Example:
        >>> import keras, numpy as np
        >>> import gradxform as gx
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(gx.keras.wrap(keras.optimizers.SGD(1.0), gx.clip_global_norm(0.5)), loss="mse")
        >>> _ = model.fit(np.ones((8, 2)), np.full((8, 1), 100.0), epochs=1, batch_size=8, verbose=0)
        >>> float(np.sqrt(sum(np.sum(w**2) for w in model.get_weights())).round(6))
        0.5

    References:
        ``clipnorm``, ``global_clipnorm`` and ``clipvalue`` of Keras optimizers.
    """
    tx = as_transformation("keras.wrap", tx, optimizer, "gx.keras.wrap(optimizer, tx)")
    if keras.backend.backend() not in _BACKENDS:
        raise RuntimeError(
            f"keras.wrap: Keras's backend is {keras.backend.backend()!r}, which does not train; set KERAS_BACKEND to "
            f"one of {', '.join(_BACKENDS)}"
        )
    updates.check_place("keras.wrap", on, tx)
    optimizer = _checked(optimizer)
    warn_if_unsaved("keras.wrap", tx)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        made = type(optimizer)(
            remade(_checked(optimizer.inner_optimizer), tx, on),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            name=optimizer.name,
        )
        if optimizer.built:
            made.build(_private.variables_of(optimizer))
    else:
        made = remade(optimizer, tx, on)
    for new, old in zip(made.variables, optimizer.variables, strict=False):  # the transform's variables come last
        new.assign(old)
    return made


def _checked(optimizer: Any) -> Any:
    """Check that an optimizer can be wrapped."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"keras.wrap: optimizer must be a Keras 3 optimizer, got {short(optimizer)} of type "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}{instead(optimizer)}"
        )
    if isinstance(optimizer, Transforming):
        raise TypeError(
            f"keras.wrap: {optimizer.name} is wrapped already, with {optimizer.gradient_transformation!r}; wrap an "
            "optimizer once, with chain(...)"
        )
    if type(optimizer).apply not in (keras.optimizers.Optimizer.apply, keras.optimizers.LossScaleOptimizer.apply):
        raise TypeError(
            f"keras.wrap: {type(optimizer).__name__} hands gradients on in an apply() of its own; wrap the optimizers "
            "that it hands them to, each with a transformation of its own"
        )
    return optimizer


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
