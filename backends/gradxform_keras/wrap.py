"""Wrap Keras optimizers: add a transform to an optimizer."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.backend.errors import wrong_type
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import GRADIENTS, check_place
from gradxform.core.where import path_of
from gradxform.transforms.combining import pausing
from gradxform_keras import private
from gradxform_keras.expression import registered, restored, warn_if_unsaved, written
from gradxform_keras.slots import Slots

_BACKENDS = ("tensorflow", "jax", "torch")


def wrap(optimizer: Any, tx: GradientTransformation, *, on: str = GRADIENTS) -> Any:
    """Wrap an optimizer so that it transforms gradients before it applies them, or the updates that it applies.

    Use the result in `model.compile` or in your own loop. Its class derives from the optimizer's class.

    The transform runs where Keras clips. It sees unscaled gradients, the mean of accumulated gradients, and the sum
    over the replicas of a `tf.distribute` strategy. Weight decay, the update and weight averages follow.

    Variables with stopped gradients keep every bit, also under weight decay, but not under constraints; the average of
    such a weight is the weight. A step that the transform skips (`skip_nonfinite` and its like, `accumulate`, unless
    masked) skips the optimizer. The transform's state is part of the optimizer's variables and is saved with them.

    A transform that needs the loss, as `skip_spikes` may, gets it in your own loop or ``train_step``, where all
    replicas of a strategy give the same: ``optimizer.apply(gradients, variables, value=loss)``. ``apply_gradients``,
    ``stateless_apply`` and ``flush`` take ``value`` too. `Model.fit` alone gives no loss, which is an error at its
    first step.

    With ``on="updates"`` the transform sees what the step has added, new minus old variables, learning rate and weight
    decay included; constraints and weight averages follow. Elements that it leaves unchanged are the optimizer's own,
    bit for bit; others are old variable plus transformed update, rounded once. Stopped variables and skipped steps
    keep every bit of the variables, while the optimizer's own state advances and the step counts. A step holds a copy
    of the variables that the transform can change (`masked`, `partition` and `freeze` choose), and their updates.

    Args:
        optimizer: Any Keras 3 optimizer, or its name; the original is not modified. For a
            `keras.optimizers.LossScaleOptimizer`, the inner optimizer is wrapped.
        tx: A transform. A gradient's path is its variable's ``path``, which may begin with the model's name; leave that
            name out of patterns, since a `keras.Sequential` that is loaded has paths without it. A limit may be a
            non-trainable `keras.Variable`, and changes without recompiling. `model.save` saves numbers, strings,
            patterns, Keras schedules, Keras variables, and functions registered with
            `keras.saving.register_keras_serializable`. For anything else this function warns, and `model.save` raises
            an error; `model.save_weights` works.
        on: What to transform: "gradients" or "updates". Updates of half-precision variables are float32. Transforms
            that need parameters get those before the step.

    Returns:
        A new optimizer with the same options and variable values. It has the properties ``gradient_transformation`` and
        ``gradient_transformation_state``, also through a ``LossScaleOptimizer``. In a new process,
        ``import gradxform_keras`` before `keras.saving.load_model` to register the class.

    Warns:
        UserWarning: The optimizer has a clip of Keras, which runs before a transform of gradients, or
            ``gradient_accumulation_steps`` and the transform skips or accumulates; or functions cannot be saved.

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
    check_place("keras.wrap", on, tx)
    optimizer = _checked(optimizer)
    if "value" in tx.traits.needs and isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"keras.wrap: {tx!r} needs the loss, which a LossScaleOptimizer keeps back; write of='norm'")
    warn_if_unsaved("keras.wrap", tx)
    own = getattr(optimizer, "inner_optimizer", optimizer)
    clips = [name for name in _CLIPS if getattr(own, name, None)]
    if clips and on == GRADIENTS:
        warnings.warn(
            f"keras.wrap: {optimizer.name} has {clips[0]} and clips before the transform; leave it out of the "
            "optimizer, and put a clip into the transform",
            stacklevel=2,
        )
    if own.gradient_accumulation_steps and on == GRADIENTS and (paused := pausing(tx)) is not None:
        seen = "which accumulates again" if tx.traits.waits else "and a step that it skips counts"
        warnings.warn(
            f"keras.wrap: {optimizer.name} has gradient_accumulation_steps and accumulates before {paused!r}, {seen}; "
            "write gradient_accumulation_steps=None, and accumulate by gx.accumulate",
            stacklevel=2,
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        made = type(optimizer)(
            _remade(_checked(optimizer.inner_optimizer), tx, on),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            name=optimizer.name,
        )
        if optimizer.built:
            made.build(private.variables_of(optimizer))
    else:
        made = _remade(optimizer, tx, on)
    for new, old in zip(made.variables, optimizer.variables, strict=False):  # the transform's variables come last
        new.assign(old)
    return made


def _checked(optimizer: Any) -> Any:
    """Check that an optimizer can be wrapped."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise wrong_type("keras.wrap", "a Keras 3 optimizer", optimizer)
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
    variables = given.trainable_variables if isinstance(given, keras.Layer) else private.variables_of(given)
    return [path_of(variable) for variable in variables]


# --- wrapped optimizers ----------------------------------------------------------------------------------------


class Transforming(private.Steps):
    """Mixin that applies a transform where Keras clips gradients, or to the updates."""

    _base: Any
    """Class of the wrapped optimizer."""
    _gradxform: Slots

    @property
    def gradient_transformation(self) -> GradientTransformation:
        """The transform."""
        return self._gradxform.tx

    @property
    def gradient_transformation_state(self) -> Any:
        """State of the transform, a pytree of backend arrays, in dicts by path. None before the optimizer is built.

        Set it to a state of the same transform from any framework, such as a result of `gradxform.to_numpy`.
        """
        try:
            return self._gradxform.state(copied=True) if self.built else None
        except TypeError as error:  # of a variable without a value
            where = "is held by JAX's fit; in a callback write self.model.optimizer, which gets it back"
            raise RuntimeError(f"keras.wrap: the state {where}") from error

    @gradient_transformation_state.setter
    def gradient_transformation_state(self, state: Any) -> None:
        if not self.built:
            raise ValueError("keras.wrap: the optimizer has no state yet; call optimizer.build(variables) first")
        self._gradxform.restore(state)

    def flush(self, value: Any = None) -> None:
        """Take a step with what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        In `Model.fit`, call it in a callback's ``on_epoch_end``. With ``on="updates"`` the held updates are applied,
        and the optimizer takes no step.

        Args:
            value: The loss, for transforms that need it.

        Raises:
            TypeError: The transform has no `accumulate`.
        """
        with self._gradxform.during(value=value, flushes=True):
            self._gradxform.flush(self)

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        where = "in" if self._gradxform.on == GRADIENTS else "on updates of"
        return f"<keras.wrap: {self._gradxform.tx!r} {where} {self._base.__name__}>"

    def build(self, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables, then those of the transform's state."""
        if not self.built:
            super().build(variables)
            self._gradxform.build(self)

    def get_config(self) -> dict[str, Any]:
        """Return the optimizer's configuration, with the expression that builds the transform.

        Raises:
            ValueError: The transform holds a function or an array, and cannot be saved.
        """
        base, expression = self._base, written("keras.wrap", self._gradxform.tx)
        shell = base.__new__(base)  # only class and configuration are serialized
        object.__setattr__(shell, "get_config", super().get_config)
        own = {"optimizer": keras.saving.serialize_keras_object(shell), "transformation": expression}
        return own if self._gradxform.on == GRADIENTS else {**own, "on": self._gradxform.on}

    def __reduce__(self) -> Any:
        """Pickle like the optimizer's own class, by a function of this package that a new process imports."""
        return private.unpickled, (self._base, *super().__reduce__()[1])

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Build the wrapped optimizer, of any class, from a configuration."""
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        return _remade(optimizer, restored(config["transformation"], custom_objects), config.get("on", GRADIENTS))


registered("Transforming")(Transforming)
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
"""Keras's own clips, which run before the transform."""


@functools.cache
def _derived(base: Any) -> Any:
    """The class of wrapped optimizers for an optimizer class."""
    missing = private.missing_steps(base)
    if missing:
        raise RuntimeError(f"keras.wrap: Keras {keras.__version__} lacks {', '.join(missing)}; install another version")
    own = {"__module__": __name__, "__doc__": base.__doc__, "_base": base}
    made = type(f"Transforming{base.__name__}", (Transforming, base), own)
    return registered("Transforming")(made)


def _remade(optimizer: Any, tx: GradientTransformation, on: str) -> Any:
    """Copy an optimizer, its options and its variables' values, with a transform inside."""
    base: Any = type(optimizer)
    try:
        made = base.from_config.__func__(_derived(base), private.options_of(optimizer))
    except TypeError as error:
        raise TypeError(f"keras.wrap: {base.__name__} cannot be rebuilt from its get_config(): {error}") from error
    for name, value in vars(optimizer).items():  # attributes that are not in the configuration
        if not _is_bookkeeping(name, value) and vars(made).get(name) is not value:
            own = next((kind for kind in (list, dict, set) if isinstance(value, kind)), None)
            setattr(made, name, value if own is None else own(value))  # Keras ties its containers to one optimizer
    made._gradxform = Slots(tx, on)
    for name in ("flush", "gradient_transformation", "gradient_transformation_state"):
        if not hasattr(keras.optimizers.LossScaleOptimizer, name):
            setattr(keras.optimizers.LossScaleOptimizer, name, _of_inner(name))
    if optimizer.built:
        made.build(private.variables_of(optimizer))
    return made


def _of_inner(name: str) -> property:
    """That of the optimizer inside: `Model.compile` puts a `LossScaleOptimizer` around it for "mixed_float16"."""
    get = operator.attrgetter(f"inner_optimizer.{name}")
    return property(get, lambda self, value: setattr(self.inner_optimizer, name, value))


def _is_bookkeeping(name: str, value: Any) -> bool:
    """Whether an attribute is Keras's bookkeeping about variables, which the new optimizer makes itself."""
    if private.is_bookkeeping(name) or name.startswith("_gradxform"):
        return True
    return any(isinstance(leaf, (keras.Variable, keras.optimizers.Optimizer)) for leaf in keras.tree.flatten(value))
