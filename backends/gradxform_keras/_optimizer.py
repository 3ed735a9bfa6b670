"""Add a transform to an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras

from gradxform import GradientTransformation
from gradxform.core.updates import GRADIENTS
from gradxform_keras import _private
from gradxform_keras._expression import registered, restored, written
from gradxform_keras._held import HELD, Held


class Transforming(_private.Steps):
    """Mixin that applies a transform where Keras clips gradients, or to the updates."""

    _base: Any
    """Class of the wrapped optimizer."""
    _gradxform: Held

    @property
    def gradient_transformation(self) -> GradientTransformation:
        """The transform."""
        return self._gradxform.tx

    @property
    def gradient_transformation_state(self) -> Any:
        """State of the transform, a pytree of backend arrays, in dicts by path. None before the optimizer is built.

        Set it to a state of the same transform from any framework, such as a result of `gradxform.to_numpy`.
        """
        return self._gradxform.state(copied=True) if self.built else None

    @gradient_transformation_state.setter
    def gradient_transformation_state(self, state: Any) -> None:
        if not self.built:
            raise ValueError("keras.wrap: the optimizer has no state yet; call optimizer.build(variables) first")
        self._gradxform.restore(state)

    def flush(self) -> None:
        """Take a step with what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        In `Model.fit`, call it in a callback's ``on_epoch_end``. With ``on="updates"`` the held updates are applied,
        and the optimizer takes no step.

        Raises:
            TypeError: The transform has no `accumulate`.
        """
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
        """Pickle like the optimizer's own class, by a function of this module that a new process imports."""
        return _unpickled, (self._base, *super().__reduce__()[1])

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Build the wrapped optimizer, of any class, from a configuration."""
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        return remade(optimizer, restored(config["transformation"], custom_objects), config.get("on", GRADIENTS))


registered("Transforming")(Transforming)


def _unpickled(base: Any, buffer: Any) -> Any:
    return _private.unpickled(base, buffer)


@functools.cache
def _derived(base: Any) -> Any:
    """The class of wrapped optimizers for an optimizer class."""
    missing = _private.missing_steps(base)
    if missing:
        raise RuntimeError(f"keras.wrap: Keras {keras.__version__} lacks {', '.join(missing)}; install another version")
    own = {"__module__": __name__, "__doc__": base.__doc__, "_base": base}
    made = type(f"Transforming{base.__name__}", (Transforming, base), own)
    return registered("Transforming")(made)


def remade(optimizer: Any, tx: GradientTransformation, on: str) -> Any:
    """Copy an optimizer, its options and its variables' values, with a transform inside."""
    base: Any = type(optimizer)
    try:
        made = base.from_config.__func__(_derived(base), _options(optimizer))
    except TypeError as error:
        raise TypeError(f"keras.wrap: {base.__name__} cannot be rebuilt from its get_config(): {error}") from error
    for name, value in vars(optimizer).items():  # attributes that are not in the configuration
        if not _is_keras_s(name, value) and vars(made).get(name) is not value:
            setattr(made, name, type_(value) if (type_ := _container(value)) else value)
    made._gradxform = HELD[on](tx)
    for name in ("flush", "gradient_transformation", "gradient_transformation_state"):
        if not hasattr(keras.optimizers.LossScaleOptimizer, name):
            setattr(keras.optimizers.LossScaleOptimizer, name, _of_inner(name))
    if optimizer.built:
        made.build(_private.variables_of(optimizer))
    return made


def _of_inner(name: str) -> property:
    """That of the optimizer inside: `Model.compile` puts a `LossScaleOptimizer` around it for "mixed_float16"."""

    def get(self: Any) -> Any:
        inner = self.inner_optimizer
        if not isinstance(inner, Transforming):
            raise AttributeError(
                f"{type(self).__name__!r} has no {name!r}: {inner.name} was not wrapped by gx.keras.wrap"
            )
        return getattr(inner, name)

    def put(self: Any, value: Any) -> None:
        setattr(self.inner_optimizer, name, value)

    return property(get, put)


def _container(value: Any) -> type[Any] | None:
    """Plain copy of a list, dict or set: Keras ties its own containers to one optimizer."""
    return next((kind for kind in (list, dict, set) if isinstance(value, kind)), None)


def _is_keras_s(name: str, value: Any) -> bool:
    """Whether an attribute is Keras's bookkeeping about variables, which the new optimizer makes itself."""
    if _private.is_bookkeeping(name) or name.startswith("_gradxform"):
        return True
    return any(isinstance(leaf, (keras.Variable, keras.optimizers.Optimizer)) for leaf in keras.tree.flatten(value))


def _options(optimizer: Any) -> dict[str, Any]:
    rate = _private.learning_rate_of(optimizer)
    if not callable(rate) or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return dict(optimizer.get_config())
    with _private.without_learning_rate(optimizer):  # a function is passed on, not serialized
        return {**optimizer.get_config(), "learning_rate": rate}
