"""The same step for transformations that keep a state: in variables, which checkpoints and SavedModels hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.core import state as stateful
from gradxform.core.foreign import as_transformation
from gradxform.core.variables import keys_of, path_of
from gradxform.functions.convert import matched
from gradxform.functions.former import former
from gradxform.transforms.applied import is_due
from gradxform_tensorflow import _applied as applied
from gradxform_tensorflow import _pairs as pairs
from gradxform_tensorflow._pairs import Pairs
from gradxform_tensorflow.kernels import backend


class GradientProcessor(tf.Module):
    """A transformation whose state is kept in variables, called with (gradient, variable) pairs.

    It is what `apply` is to a stateless transformation, and works wherever that does. It is a `tf.Module`: a
    `tf.train.Checkpoint`, or a SavedModel, that holds it holds the state, and a run that is restored goes on bit by
    bit, whatever the order of the variables. Keras's own files, ``.keras`` and ``.weights.h5``, hold no `tf.Module`:
    there it is `gradxform.keras.wrap` that saves a state. Under a `tf.distribute` strategy, make it within its scope.
    Its ``state`` can be read, and, outside of traced code, set to a state of the same transformation from anywhere,
    such as what `gradxform.to_numpy` gave.

    A step that the transformation leaves out (`skip_nonfinite`, `skip_large`, `accumulate`) comes out as zeros, and
    momentum and weight decay move weights on zeros too. ``apply_gradients(optimizer, pairs)`` leaves the optimizer
    alone on such a step.

    Args:
        tx: a transformation.
        variables: all variables that gradients will come for, of known shapes; TensorFlow's or Keras's. Or a model that
            is built: its trainable variables.
        name: the name of the module.

    Raises:
        TypeError: what is no transformation, or no variable.
        ValueError: no variables, one twice, or one of unknown shape. On a call, all that `apply` raises, and a variable
            the processor was not made for. The message names the variable.

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

    Source:
        The slot variables of TensorFlow's optimizers.
    """

    def __init__(self, tx: GradientTransformation, variables: Any, name: str | None = None) -> None:
        """Makes the variables of the first state."""
        super().__init__(name=name)
        call = "gx.tensorflow.GradientProcessor(tx, variables)"
        self.tx = as_transformation("tensorflow.GradientProcessor", tx, variables, call)
        self._step: _Step | None = None
        self._slots = _Slots(variables)
        slots = self._slots
        first = stateful.first(self.tx, slots.likes, slots.keys, slots.paths, slots.variables)
        leaves, self._slots.structure = backend.flatten(first)
        paths = backend.paths(first)
        in_files = former(paths)  # so that checkpoints are read by what wrote them before, and what reads them now
        self._slots.places_of_state = [
            None if leaf is None else in_files.get(path, path) for leaf, path in zip(leaves, paths, strict=True)
        ]
        with self.name_scope:
            self._state = {
                path: _variable(leaf, path)
                for leaf, path in zip(leaves, self._slots.places_of_state, strict=True)
                if path is not None
            }

    @property
    def state(self) -> Any:
        """The state of the transformation now, a pytree of tensors; its trees are dicts by path."""
        paths = self._slots.places_of_state
        values = [None if path is None else tf.convert_to_tensor(self._state[path]) for path in paths]
        return backend.unflatten(self._slots.structure, values)

    @state.setter
    def state(self, state: Any) -> None:
        if not tf.executing_eagerly():
            raise RuntimeError(
                "tensorflow.GradientProcessor: a state is set eagerly; within a graph nothing would run it. In a "
                "Session, save and restore the variables with tf.compat.v1.train.Saver"
            )
        self._assign(matched("tensorflow.GradientProcessor", state, self.state))

    def __repr__(self) -> str:
        """What transforms, and for how many variables."""
        count = len(self._slots.keys)
        return f"<tensorflow.GradientProcessor: {self.tx!r}, {count} variable{'s' * (count != 1)}>"

    @tf.autograph.experimental.do_not_convert
    def __call__(self, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None) -> list[tuple[Any, Any]]:
        """Transform the gradients of (gradient, variable) pairs, and keep the new state.

        Args:
            grads_and_vars: pairs as `apply` takes them, of all the variables or some: no pair is as good as None.
            params: the parameters, for transforms that need them, in the order that the variables were given in; by
                default these variables.

        Returns:
            A list of pairs as `apply` returns it; zeros on a step that is left out.
        """
        return self._transformed(grads_and_vars, params)[0]

    def _transformed(self, grads_and_vars: Iterable[tuple[Any, Any]], params: Any) -> tuple[list[tuple[Any, Any]], Any]:
        """The pairs after the transformation, and the new state, which is kept."""
        given = pairs.read("tensorflow.GradientProcessor", grads_and_vars)
        slots, places = self._slots.spread(given)
        old = self.state
        params = None if params is None else self._slots.sorted(params)
        keys = self._slots.keys
        results, skipped, new = pairs.transformed("tensorflow.GradientProcessor", self.tx, slots, old, params, keys)
        self._step = _Step.here(new)
        # In a TF1 graph nothing else makes sure that the state moves on, and only after it has been read.
        with tf.control_dependencies([leaf for leaf in backend.flatten(old)[0] if leaf is not None]):
            assigned = self._assign(new)
        with tf.control_dependencies(assigned):
            results = [_after(result) for result in results]
        both = zip(places, given.variables, strict=True)
        return [(results[place], variable) for place, variable in both if place not in skipped], new

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]], params: Any = None) -> Any:
        """Transform the gradients, and hand them to an optimizer; a step that is left out leaves it alone.

        On a step that `skip_nonfinite`, `skip_large` or `accumulate` leaves out (unless they are masked), the optimizer
        is not called: weights, momentum and the count of steps stay bit by bit as they are. In eager code this costs
        one bool that is read; in graphs, the update is a branch of `tf.cond`.

        Args:
            optimizer: a Keras 3 optimizer, or one of `tf.compat.v1`: what has ``apply_gradients``.
            grads_and_vars: pairs as a call takes them.
            params: as a call takes them.

        Returns:
            What ``optimizer.apply_gradients`` returns, None where it was not called; in graphs where a step may be left
            out, the operation to run, or None within a `tf.function`, which runs it by itself.

        Raises:
            TypeError: what has no ``apply_gradients``.
            ValueError: all that a call raises; steps left out in a graph under a strategy of several replicas.
        """
        if not callable(getattr(optimizer, "apply_gradients", None)):
            raise TypeError(
                "tensorflow.GradientProcessor: an optimizer with apply_gradients is wanted, got "
                f"{optimizer!r:.80} of type {type(optimizer).__name__}"
            )
        found, new = self._transformed(grads_and_vars, params)
        return applied.when(is_due(self.tx, new), optimizer, found, self._slots.variables)

    @property
    def _step_state(self) -> Any:
        """The state after the step that is being built; that of the variables otherwise.

        In a graph of TensorFlow 1, variables are read whenever a run comes to them, but these are tensors of the step:
        they belong to whatever is fetched with them, and moving the state on is not among it.
        """
        return self._step.state if self._step is not None and self._step.is_here() else self.state

    def _assign(self, new: Any) -> list[Any]:
        moved = zip(self._slots.places_of_state, backend.flatten(new)[0], strict=True)
        return [self._state[path].assign(leaf) for path, leaf in moved if path is not None]


def paths_in(given: Any) -> list[str] | None:
    """The paths of the variables of a processor, or of those of a module that are trained; None for anything else."""
    if isinstance(given, GradientProcessor):
        return list(given._slots.paths)
    return [path_of(variable) for variable in given.trainable_variables] if isinstance(given, tf.Module) else None


class _Step:
    """The state that a call gave in a graph of TensorFlow 1, out of sight of what tracks a module's own."""

    def __init__(self, state: Any, graph: Any) -> None:
        self.state = state
        self._graph = weakref.ref(graph)

    @classmethod
    def here(cls, state: Any) -> _Step | None:
        """The state of the graph that is built now; None where a variable tells it as well."""
        graph = _plain_graph()
        return None if graph is None else cls(state, graph)

    def is_here(self) -> bool:
        """Whether what is built now can read its tensors."""
        graph = _plain_graph()
        return graph is not None and self._graph() is graph


def _plain_graph() -> Any:
    """The graph that is built now, if it is run whenever it is fetched: in no function, and in no loop or branch."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    return None if graph.building_function or graph._get_control_flow_context() is not None else graph


class _Slots:
    """The variables of a processor in the order of their paths, out of sight of what tracks a module's own."""

    def __init__(self, variables: Any) -> None:
        variables = getattr(variables, "trainable_variables", variables)  # of a model
        if not isinstance(variables, Iterable):
            raise TypeError(f"tensorflow.GradientProcessor: variables must be a list of them, got {variables!r:.100}")
        given = list(variables.values() if isinstance(variables, Mapping) else variables)
        for i, variable in enumerate(given):
            if not hasattr(variable, "assign"):
                raise TypeError(
                    f"tensorflow.GradientProcessor: item {i} of variables is no variable: {variable!r:.100}"
                )
        keys = keys_of([path_of(variable) for variable in given])
        self.order = sorted(range(len(given)), key=keys.__getitem__)
        self.keys = self.sorted(keys)
        self.variables = self.sorted(given)
        self.places_of_state: list[str | None] = []
        self.paths = [path_of(variable) for variable in self.variables]
        self.places = {pairs.identity_of(variable): i for i, variable in enumerate(self.variables)}
        self.structure: Any = None
        if not self.variables:
            raise ValueError(
                "tensorflow.GradientProcessor: variables are wanted, got none; a model has some once it is built: "
                "model.build(shape), or a first call"
            )
        for i, (variable, path) in enumerate(zip(self.variables, self.paths, strict=True)):
            if self.places[pairs.identity_of(variable)] != i:
                raise ValueError(f"tensorflow.GradientProcessor: the variable {path!r} is given twice")
            if not tf.TensorShape(variable.shape).is_fully_defined():
                raise ValueError(
                    f"tensorflow.GradientProcessor: the shape of the variable {path!r} is not known: {variable.shape}"
                )

    def sorted(self, given: Iterable[Any]) -> list[Any]:
        """What was given in the order of the variables, in the order of their paths."""
        items = list(given)
        return [items[i] for i in self.order]

    @property
    def likes(self) -> list[tuple[Sequence[int], str]]:
        """Shapes and dtypes; a TF1 reference's is that of what it refers to."""
        dtypes = [tf.as_dtype(variable.dtype).base_dtype.name for variable in self.variables]
        return [(tuple(variable.shape), dtype) for variable, dtype in zip(self.variables, dtypes, strict=True)]

    def spread(self, given: Pairs) -> tuple[Pairs, list[int]]:
        """The pairs as one gradient a variable, None where there is no pair, and the place of each pair."""
        gradients: list[Any] = [None] * len(self.variables)
        places = []
        for gradient, variable, path in zip(*given, strict=True):
            place = self.places.get(pairs.identity_of(variable))
            if place is None:
                raise ValueError(
                    f"tensorflow.GradientProcessor: it was not made for the variable {path!r}; "
                    f"its variables are {', '.join(self.paths)}"
                )
            gradients[place] = gradient
            places.append(place)
        return Pairs(gradients, self.variables, self.paths), places


def _variable(leaf: Any, path: str) -> Any:
    # All replicas of a strategy come to the same state.
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    name = "".join(c if c.isalnum() else "_" for c in path) or "state"
    return tf.Variable(np.asarray(leaf), trainable=False, name=name, aggregation=first)


def _after(gradient: Any) -> Any:
    """A gradient that is there only when the control dependencies are."""
    if gradient is None or tf.executing_eagerly():
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)
