"""What Keras does not document and this package needs, in one place.

Each name has a test in tests/backends/test_private.py that says what breaks when Keras changes it.

`apply` of an optimizer calls these steps in this order: ``_backend_apply_gradients``, ``_clip_gradients``,
``_apply_weight_decay``, ``_backend_update_step``, ``_update_model_variables_moving_average``. Keras has no public way
to transform gradients after it unscales, sums and averages them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from keras.optimizers import Optimizer
else:
    Optimizer = object

_BOOKKEEPING = ("built", "_tracker", "_variables", "_exclude_from_weight_decay_cache", "_distribution_strategy")
_PREFIXES = ("_self_", "_obj_", "_trainable_variables")


class Steps(Optimizer):
    """Mixin that transforms gradients, or updates, in the steps of an optimizer."""

    _gradxform: Any
    """The `Slots` of the optimizer."""

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        self._gradxform.begin([self._get_variable_index(variable) for variable in trainable_variables])
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        return self._gradxform.transformed(super()._clip_gradients(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        """Return the sums over replicas in TensorFlow, which the transform has already seen."""
        return grads_and_vars

    def _apply_weight_decay(self, variables: Any) -> None:
        moving, decay = _moving(self, variables), super()._apply_weight_decay
        if moving:
            self._gradxform.when_due(self, lambda: decay(moving))

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        moving, update = _moving(self, trainable_variables), super()._backend_update_step
        grads = [gradient for gradient in grads if gradient is not None]
        if moving:
            self._gradxform.when_due(self, lambda: update(grads, moving, learning_rate))
        self._gradxform.finish()
        if self.gradient_accumulation_steps:  # the rest runs outside the branch, and the step counts
            self._gradxform.step.due = True

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        if not self.use_ema:
            return
        averages, update = self._model_variables_moving_average, super()._update_model_variables_moving_average
        self._gradxform.when_due(self, lambda: update(trainable_variables))
        for place in self._gradxform.step.stopped:  # exact average of weights that do not move
            averages[place].assign(keras.ops.copy(self._trainable_variables[place]))

    def apply(self, grads: Any, trainable_variables: Any = None, value: Any = None) -> None:
        """Update the variables; a skipped step does not count. The value is the loss."""
        if len(grads) == 0 and not (self.built and not variables_of(self)):  # as JAX's fit of frozen models
            raise ValueError(
                "keras.wrap: there are no gradients; write optimizer.apply(gradients, variables), one for each variable"
            )
        self._gradxform.begin(())
        with self._gradxform.during(value=value):
            super().apply(grads, trainable_variables)
        due = self._gradxform.step.due
        if due is not True:
            self._iterations.assign_sub(keras.ops.where(due, 0, 1))

    def apply_gradients(self, grads_and_vars: Any, *given: Any, value: Any = None, **named: Any) -> Any:
        """Update the variables of pairs, with the loss; Keras fails where there are none."""
        pairs = list(grads_and_vars)
        if not pairs:
            used = "an iterator such as zip(...) is used up after one pass: write list(zip(gradients, variables))"
            raise ValueError(f"keras.wrap: there are no pairs; {used}")
        with self._gradxform.during(value=value):
            return super().apply_gradients(pairs, *given, **named)

    def stateless_apply(self, *given: Any, value: Any = None, **named: Any) -> Any:
        """Return updated variables, with the loss."""
        with self._gradxform.during(value=value):
            return super().stateless_apply(*given, **named)


def _moving(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """The variables that are not stopped in this step."""
    return [v for v in variables if optimizer._get_variable_index(v) not in optimizer._gradxform.step.stopped]


def missing_steps(kind: type[Any]) -> list[str]:
    """The methods of `Steps` that a class of optimizers lacks; only TensorFlow's optimizers sum over replicas."""
    steps = [name for name, value in vars(Steps).items() if callable(value)]
    if keras.backend.backend() != "tensorflow":
        steps.remove("_all_reduce_sum_gradients")
    return [name for name in steps if not hasattr(kind, name)]


def variables_of(optimizer: Any) -> list[Any]:
    """The variables that an optimizer updates; its public ``variables`` are its own."""
    found: list[Any] = optimizer._trainable_variables
    return found


def track(optimizer: Any, variable: Any) -> None:
    """Add a variable to an optimizer's, without a new value."""
    optimizer._track_variable(variable)


def layout_of(variable: Any) -> Any:
    """Sharding of a variable; None without a distribution."""
    return getattr(variable, "_layout", None)


def options_of(optimizer: Any) -> dict[str, Any]:
    """An optimizer's configuration, with a learning rate that is a function as it was given, not serialized."""
    rate = optimizer._learning_rate
    if not callable(rate) or isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return dict(optimizer.get_config())
    optimizer._learning_rate = None
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        optimizer._learning_rate = rate


def is_bookkeeping(name: str) -> bool:
    """Whether an attribute of an optimizer is one that a new optimizer makes itself."""
    return name in _BOOKKEEPING or name.startswith(_PREFIXES)


def unpickled(base: Any, buffer: Any) -> Any:
    """The optimizer that Keras pickled."""
    return base._unpickle_model(buffer)
