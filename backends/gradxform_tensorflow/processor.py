"""Transform (gradient, variable) pairs with a state in variables, for checkpoints and SavedModels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.backend.errors import wrong_type
from gradxform.core.foreign import as_transformation
from gradxform.core.holder import Holder, extra_of
from gradxform.core.leaves import put
from gradxform.core.transform import Context
from gradxform.core.where import path_of
from gradxform.functions.convert import matched
from gradxform.transforms.skipping import check_waits, is_due
from gradxform_tensorflow import private, replicas, running
from gradxform_tensorflow.apply import identity_of, read, transformed, variables_of
from gradxform_tensorflow.kernels import backend

_CALLED = "tensorflow.GradientProcessor"


class GradientProcessor(tf.Module):
    """Transform (gradient, variable) pairs, and keep the state in variables.

    It is the stateful counterpart of `apply`, and works in the same places. As a `tf.Module`, it saves its state in a
    `tf.train.Checkpoint` or SavedModel. A restored run continues bit by bit, whatever the order of the variables. Keras
    files (``.keras``, ``.weights.h5``) do not save `tf.Module` objects; use `gradxform.keras.wrap` there. Under a
    `tf.distribute` strategy, create it in the strategy's scope.

    ``state`` can be read, and outside traced code set to a state of the same transform from any framework, such as a
    result of `gradxform.to_numpy`.

    A skipped step (`skip_nonfinite` and its like, `accumulate`) returns zeros, on which momentum and weight decay
    still move weights. ``apply_gradients(optimizer, pairs)`` skips the optimizer too.

    Args:
        tx: A transform.
        variables: All variables that will get gradients, of known shapes: TensorFlow or Keras variables, or a built
            model (its trainable variables).
        name: Name of the module.

    Raises:
        TypeError: `tx` is not a transform, or an item is not a variable.
        ValueError: There are no variables, one is given twice, or a shape is unknown. On a call: as in `apply`, or a
            variable is not among `variables`. The message names the variable.

    Example:
        >>> import tensorflow as tf
        >>> import gradxform as gx
        >>> w = tf.Variable([1.0, 1.0], name="w")
        >>> processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])
        >>> for _ in range(2):
        ...     ((gradient, _),) = processor([(tf.constant([2.0, 4.0]), w)])
        ...     print(gradient.numpy())
        [2. 4.]
        [3. 6.]

    References:
        The slot variables of TensorFlow optimizers.
    """

    def __init__(self, tx: GradientTransformation, variables: Any, name: str | None = None) -> None:
        """Create the variables of the initial state."""
        super().__init__(name=name)
        self.tx = as_transformation(_CALLED, tx, variables, f"gx.{_CALLED}(tx, variables)")
        given = variables_of(_CALLED, variables)
        self._slots = _Slots(self.tx, given, getattr(variables, "variables", ()))
        likes = [(x.shape, tf.as_dtype(x.dtype).base_dtype.name) for x in given]  # a TF1 reference refers to a dtype
        first = self._slots.start(self._slots.init_like(likes))
        with self.name_scope:
            self._state = {path: _variable(leaf, path) for path, leaf in first.items()}

    @property
    def state(self) -> Any:
        """State of the transform, a pytree of tensors, in dicts by path."""
        return self._slots.state({path: tf.convert_to_tensor(own) for path, own in self._state.items()})

    @state.setter
    def state(self, state: Any) -> None:
        if not tf.executing_eagerly():
            advice = "in a Session, save and restore the variables with tf.compat.v1.train.Saver"
            raise RuntimeError(f"{_CALLED}: set the state eagerly, since in a graph nothing would run it; {advice}")
        self._assign(matched(_CALLED, state, self.state))

    def __repr__(self) -> str:
        """Show the transform and the number of variables."""
        count = len(self._slots.variables)
        return f"<tensorflow.GradientProcessor: {self.tx!r}, {count} variable{'s' * (count != 1)}>"

    @tf.autograph.experimental.do_not_convert
    def __call__(
        self, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None, *, value: Any = None
    ) -> list[tuple[Any, Any]]:
        """Transform the gradients of (gradient, variable) pairs, and keep the new state.

        Args:
            grads_and_vars: Pairs, as in `apply`, of all variables or some. A missing pair counts as None.
            params: Parameters, for transforms that need them, in the order of the variables. Default: the variables.
            value: The loss, for transforms that need it: a number or a 0-d tensor.

        Returns:
            A list of pairs, as in `apply`; zeros on a skipped step.
        """
        return self._transformed(grads_and_vars, Context(params, extra_of(value)))[0]

    def _transformed(
        self, grads_and_vars: Iterable[tuple[Any, Any]], context: Context
    ) -> tuple[list[tuple[Any, Any]], Any]:
        """The transformed pairs and the new state, which is kept."""
        old, pairs = self.state, read(_CALLED, grads_and_vars)
        gradients, places = self._slots.spread(pairs)
        made = transformed(_CALLED, self._slots, gradients, old, context)
        graph = _plain_graph()
        self._slots.latest = graph, made.state if graph else None
        # In a TF1 graph, this makes the state advance, and only after it was read.
        with tf.control_dependencies(list(self._slots.arrays(old).values())):
            assigned = self._assign(made.state)
        with tf.control_dependencies(assigned):
            wait = (lambda result: result) if tf.executing_eagerly() else tf.identity
            results = [result if result is None else wait(result) for result in made.gradients]
        both = zip(places, pairs, strict=True)
        return [(results[place], variable) for place, (_, variable) in both if place not in made.stopped], made.state

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None, *, value: Any = None
    ) -> Any:
        """Transform the gradients and apply them; a skipped step skips the optimizer.

        On a step that `skip_nonfinite`, `skip_large` or `accumulate` skips (unless masked), weights, momentum and step
        count keep every bit. In eager code this costs one host sync per step; in graphs, the update is a `tf.cond`
        branch.

        Args:
            optimizer: An optimizer of Keras 3 or `tf.compat.v1`, with ``apply_gradients``.
            grads_and_vars: Pairs, as in a call.
            params: Parameters, as in a call.
            value: The loss, as in a call.

        Returns:
            The result of ``optimizer.apply_gradients``; None if it was not called. In graphs where steps may be
            skipped: the operation to run, or None within a `tf.function`, which runs it automatically.

        Raises:
            TypeError: `optimizer` has no ``apply_gradients``.
            ValueError: As in a call; or steps may be skipped in a graph under a strategy with several replicas.
        """
        if callable(getattr(grads_and_vars, "apply_gradients", None)):
            advice = "write processor.apply_gradients(optimizer, grads_and_vars)"
            raise TypeError(f"{_CALLED}: the arguments are the other way round; {advice}")
        if not callable(getattr(optimizer, "apply_gradients", None)):
            raise wrong_type(_CALLED, "an optimizer with apply_gradients", optimizer)
        return self._applied(optimizer, *self._transformed(grads_and_vars, Context(params, extra_of(value))))

    @tf.autograph.experimental.do_not_convert
    def flush(self, optimizer: Any = None, *, value: Any = None) -> Any:
        """Apply what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

        Args:
            optimizer: If given, it applies the pairs, unless the window is empty.
            value: The loss, as in a call.

        Returns:
            The pairs of all variables, as in a call; with an optimizer, the result of ``apply_gradients`` above.

        Raises:
            TypeError: The transform has no `accumulate`.
        """
        check_waits(_CALLED, self.tx)
        zeros = [(tf.zeros_like(variable), variable) for variable in self._slots.variables]
        found, new = self._transformed(zeros, Context(None, extra_of(value), flushes=True))
        return found if optimizer is None else self._applied(optimizer, found, new)

    def _applied(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], new: Any) -> Any:
        """Apply gradients, unless the new state tells that the step is skipped.

        Raises:
            ValueError: Whether it is skipped is a tensor in a graph under a strategy with several replicas, where
                updates cannot be in a branch.
        """
        due = is_due(self.tx, new)
        if not pairs:  # all that have gradients are stopped
            return tf.no_op()
        if due is True:
            return optimizer.apply_gradients(pairs)
        if tf.executing_eagerly():
            return optimizer.apply_gradients(pairs) if due else None
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync > 1:
            raise ValueError(
                f"{_CALLED}: an optimizer in a graph under a tf.distribute strategy with several replicas cannot skip "
                f"steps; {replicas.ADVICE}"
            )
        if callable(getattr(optimizer, "build", None)) and not getattr(optimizer, "built", True):
            with tf.init_scope():  # Keras makes its variables here; TensorFlow 1's optimizers leave a branch themselves
                optimizer.build(list(self._slots.variables))

        def update() -> list[Any]:
            done = optimizer.apply_gradients(pairs)
            with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
                return [tf.constant(True)]

        (found,) = running.cond(due, update, lambda: [tf.constant(False)])
        return None if running.in_function() else found.op

    @property
    def _step_state(self) -> Any:
        """The state after the step under construction, otherwise the variables' state.

        In a TensorFlow 1 graph, variables are read whenever a run reaches them. These tensors belong to the step
        instead, and fetching them does not advance the state.
        """
        graph, state = self._slots.latest
        return self.state if graph is None or graph is not _plain_graph() else state

    def _assign(self, new: Any) -> list[Any]:
        return [self._state[path].assign(leaf) for path, leaf in self._slots.arrays(new).items()]


def paths_in(given: Any) -> list[str] | None:
    """Paths of the variables of a processor, or of a module's trainable variables; None for other objects."""
    if isinstance(given, GradientProcessor):
        return sorted(given._slots.paths)
    return [path_of(variable) for variable in given.trainable_variables] if isinstance(given, tf.Module) else None


def _plain_graph() -> Any:
    """The current graph, if it runs whenever it is fetched: not in a function, loop or branch."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    return None if graph.building_function or private.control_flow_of(graph) else graph


class _Slots(Holder):
    """Variables of a processor, and the state after a step, hidden from the module's attribute tracking."""

    def __init__(self, tx: GradientTransformation, variables: Sequence[Any], every: Sequence[Any]) -> None:
        def absent() -> dict[str, str]:
            """Variables of a model without a gradient; its own have their paths."""
            own = set(map(identity_of, variables))
            return {path_of(each): "is not trainable" for each in every if identity_of(each) not in own}

        super().__init__(tx, backend, list(map(path_of, variables)), variables, sort=True, absent=absent)
        self.latest: tuple[Any, Any] = None, None
        """A TensorFlow 1 graph and the state after the step in it; elsewhere the variables give the same."""
        self.places = {identity_of(variable): i for i, variable in enumerate(variables)}
        if not variables:
            advice = "build the model first: model.build(shape), or a first call"
            raise ValueError(f"{_CALLED}: variables must not be empty; {advice}")
        for i, (variable, path) in enumerate(zip(variables, self.paths, strict=True)):
            if self.places[identity_of(variable)] != i:
                raise ValueError(f"{_CALLED}: the variable {path!r} is given twice")
            if not tf.TensorShape(variable.shape).is_fully_defined():
                raise ValueError(f"{_CALLED}: the shape of the variable {path!r} is unknown: {variable.shape}")

    def spread(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[int]]:
        """One gradient per variable (None if missing), and the position of each pair."""
        for _, variable in pairs:
            if identity_of(variable) not in self.places:
                own = f"its variables are {', '.join(self.paths)}; for others write gx.{_CALLED}(tx, variables)"
                raise ValueError(f"{_CALLED}: it was not made for the variable {path_of(variable)!r}; {own}")
        places = [self.places[identity_of(variable)] for _, variable in pairs]
        return put([None] * len(self.variables), places, [gradient for gradient, _ in pairs]), places


def _variable(leaf: Any, path: str) -> Any:
    # All replicas of a strategy compute the same state.
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    name = "".join(c if c.isalnum() else "_" for c in path) or "state"
    return tf.Variable(np.asarray(leaf), trainable=False, name=name, aggregation=first)
