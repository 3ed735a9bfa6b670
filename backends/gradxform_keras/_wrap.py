"""Optimizers of Keras with a transformation inside."""

from __future__ import annotations

from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.backend.misplaced import instead, short
from gradxform.core.foreign import as_transformation
from gradxform_keras._expression import warn_if_unsaved
from gradxform_keras._optimizer import Transforming, remade

_BACKENDS = ("tensorflow", "jax", "torch")


def wrap(optimizer: Any, tx: GradientTransformation) -> Any:
    """An optimizer that transforms gradients before it applies them.

    It is of a class derived from the optimizer's own, for `model.compile` and for loops of one's own. The
    transformation stands where Keras's own clipping does: it sees gradients that are unscaled, the mean of accumulated
    ones, and the sum of those of all replicas of a `tf.distribute` strategy; weight decay, the step and averages of the
    weights come after it. Variables whose gradients it stops are left bit by bit as they are, by weight decay as well,
    but not by constraints; the average of such a weight is the weight. A step that it leaves out (`skip_nonfinite`,
    `skip_large`, `accumulate`, unless they are masked) leaves the optimizer alone. Its state is held in the optimizer's
    variables, and saved with them.

    Args:
        optimizer: any Keras 3 optimizer, or the name of one; it is left as it is. Of a
            `keras.optimizers.LossScaleOptimizer` the optimizer inside is wrapped.
        tx: a transformation; a gradient's path is its variable's ``path``, which in a model begins with the model's
            name. A pattern may leave that out. A limit may be a `keras.Variable`, which is not trained, and changes
            without compiling anew. `model.save` saves numbers, strings, patterns, schedules of Keras, its variables,
            and functions that are registered with `keras.saving.register_keras_serializable`. Of anything else
            you are warned here, and `model.save` raises; `model.save_weights` does not look at it.

    Returns:
        A new optimizer with the same options and the same variables' values, whose ``gradient_transformation`` and
        ``gradient_transformation_state`` can be looked at, also through a ``LossScaleOptimizer`` around it. In a new
        process, ``import gradxform_keras`` before `keras.saving.load_model`, so that Keras knows the class.

    Raises:
        TypeError: what is no optimizer of Keras 3 or no transformation; one that is wrapped already; a
            `MultiOptimizer`, which has no gradients of its own; a class that its ``get_config`` cannot make anew.
        RuntimeError: a backend of Keras that does not train.
        ValueError: a pattern that matches no path, if the optimizer is built; else when it is.

    Example:
        >>> import keras, numpy as np
        >>> import gradxform as gx
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(gx.keras.wrap(keras.optimizers.SGD(1.0), gx.clip_global_norm(0.5)), loss="mse")
        >>> _ = model.fit(np.ones((8, 2)), np.full((8, 1), 100.0), epochs=1, batch_size=8, verbose=0)
        >>> float(np.sqrt(sum(np.sum(w**2) for w in model.get_weights())).round(6))
        0.5

    Source:
        The ``clipnorm``, ``global_clipnorm`` and ``clipvalue`` of Keras's optimizers.
    """
    tx = as_transformation("keras.wrap", tx, optimizer, "gx.keras.wrap(optimizer, tx)")
    if keras.backend.backend() not in _BACKENDS:
        raise RuntimeError(
            f"keras.wrap: Keras's backend is {keras.backend.backend()!r}, which does not train; set KERAS_BACKEND to "
            f"one of {', '.join(_BACKENDS)}"
        )
    optimizer = _checked(optimizer)
    warn_if_unsaved("keras.wrap", tx)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        made = type(optimizer)(
            remade(_checked(optimizer.inner_optimizer), tx),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            name=optimizer.name,
        )
        if optimizer.built:
            made.build(optimizer._trainable_variables)
    else:
        made = remade(optimizer, tx)
    for new, old in zip(made.variables, optimizer.variables, strict=False):  # those of the transformation come last
        new.assign(old)
    return made


def _checked(optimizer: Any) -> Any:
    """An optimizer that can be wrapped."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"keras.wrap: an optimizer of Keras 3 is wanted, got {short(optimizer)} of type "
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
