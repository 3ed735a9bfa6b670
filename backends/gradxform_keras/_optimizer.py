"""Add a transform to an optimizer, through the steps that Keras optimizers consist of.

`apply` calls them in this order: ``_backend_apply_gradients``, ``_clip_gradients``, ``_apply_weight_decay``,
``_backend_update_step``, ``_update_model_variables_moving_average``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from gradxform import GradientTransformation
from gradxform_keras._expression import registered, restored, written
from gradxform_keras._held import Held

if TYPE_CHECKING:
    from keras.optimizers import Optimizer
else:
    Optimizer = object

_HOOKS = (
    "_backend_apply_gradients",
    "_clip_gradients",
    "_apply_weight_decay",
    "_backend_update_step",
    "_update_model_variables_moving_average",
)


class Transforming(Optimizer):
    """Mixin that applies a transform where Keras clips gradients."""

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

    def __repr__(self) -> str:
        """Show the transform and the optimizer."""
        return f"<keras.wrap: {self._gradxform.tx!r} in {self._base.__name__}>"

    def build(self, variables: Sequence[Any]) -> None:
        """Create the optimizer's variables, then those of the transform's state."""
        if not self.built:
            super().build(variables)
            self._gradxform.build(self)

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        self._gradxform.begin([self._get_variable_index(variable) for variable in trainable_variables])
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        return self._gradxform.transformed(super()._clip_gradients(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        """Return the sums over replicas in TensorFlow, which the transform has already seen."""
        return grads_and_vars

    def _apply_weight_decay(self, variables: Any) -> None:
        moving, decay = self._moving(variables), super()._apply_weight_decay
        if moving:
            self._gradxform.when_due(moving, lambda: decay(moving))

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        moving, update = self._moving(trainable_variables), super()._backend_update_step
        grads = [gradient for gradient in grads if gradient is not None]
        if moving:
            changed = [*moving, *self._gradxform.not_its_own(self._variables)]
            self._gradxform.when_due(changed, lambda: update(grads, moving, learning_rate))
        if self.gradient_accumulation_steps:  # the rest runs outside the branch, and the step counts
            self._gradxform.due = True

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        if not self.use_ema:
            return
        averages, update = self._model_variables_moving_average, super()._update_model_variables_moving_average
        self._gradxform.when_due([v for v in averages if v is not None], lambda: update(trainable_variables))
        for place in self._gradxform.stopped:  # exact average of weights that do not move
            averages[place].assign(keras.ops.copy(self._trainable_variables[place]))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update the variables; a skipped step does not count."""
        self._gradxform.begin(())
        super().apply(grads, trainable_variables)
        self._gradxform.take_back(self._iterations)

    def _moving(self, variables: Sequence[Any]) -> list[Any]:
        return [v for v in variables if self._get_variable_index(v) not in self._gradxform.stopped]

    def get_config(self) -> dict[str, Any]:
        """Return the optimizer's configuration, with the expression that builds the transform.

        Raises:
            ValueError: The transform holds a function or an array, and cannot be saved.
        """
        base, expression = self._base, written("keras.wrap", self._gradxform.tx)
        shell = base.__new__(base)  # only class and configuration are serialized
        object.__setattr__(shell, "get_config", super().get_config)
        return {"optimizer": keras.saving.serialize_keras_object(shell), "transformation": expression}

    def __reduce__(self) -> Any:
        """Pickle like the optimizer's own class, by a function of this module that a new process imports."""
        return _unpickled, (self._base, *super().__reduce__()[1])

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Build the wrapped optimizer, of any class, from a configuration."""
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        return remade(optimizer, restored(config["transformation"], custom_objects))


registered("Transforming")(Transforming)


def _unpickled(base: Any, buffer: Any) -> Any:
    return base._unpickle_model(buffer)


@functools.cache
def _derived(base: Any) -> Any:
    """The class of wrapped optimizers for an optimizer class."""
    missing = [name for name in _HOOKS if not hasattr(base, name)]
    if missing:
        raise RuntimeError(f"keras.wrap: Keras {keras.__version__} lacks {', '.join(missing)}; install another version")
    own = {"__module__": __name__, "__doc__": base.__doc__, "_base": base}
    made = type(f"Transforming{base.__name__}", (Transforming, base), own)
    return registered("Transforming")(made)


def remade(optimizer: Any, tx: GradientTransformation) -> Any:
    """Copy an optimizer, its options and its variables' values, with a transform inside."""
    base: Any = type(optimizer)
    try:
        made = base.from_config.__func__(_derived(base), _options(optimizer))
    except TypeError as error:
        raise TypeError(f"keras.wrap: {base.__name__} cannot be rebuilt from its get_config(): {error}") from error
    for name, value in vars(optimizer).items():  # attributes that are not in the configuration
        if not _is_keras_s(name, value) and vars(made).get(name) is not value:
            setattr(made, name, type_(value) if (type_ := _container(value)) else value)
    made._gradxform = Held(tx)
    if optimizer.built:
        made.build(optimizer._trainable_variables)
    return made


def _container(value: Any) -> type[Any] | None:
    """Plain copy of a list, dict or set: Keras ties its own containers to one optimizer."""
    return next((kind for kind in (list, dict, set) if isinstance(value, kind)), None)


def _is_keras_s(name: str, value: Any) -> bool:
    """Whether an attribute is Keras's bookkeeping about variables, which the new optimizer makes itself."""
    if name in ("built", "_tracker", "_variables", "_exclude_from_weight_decay_cache", "_distribution_strategy"):
        return True
    if name.startswith(("_self_", "_obj_", "_trainable_variables", "_gradxform")):
        return True
    return any(isinstance(leaf, (keras.Variable, keras.optimizers.Optimizer)) for leaf in keras.tree.flatten(value))


def _options(optimizer: Any) -> dict[str, Any]:
    rate = optimizer._learning_rate
    if not callable(rate) or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return dict(optimizer.get_config())
    optimizer._learning_rate = None  # a function is passed on, not serialized
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        optimizer._learning_rate = rate
