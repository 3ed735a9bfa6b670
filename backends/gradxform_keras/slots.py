"""The transform of an optimizer, whose state is in the optimizer's variables."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import keras
import numpy as np

from gradxform import GradientTransformation
from gradxform.backend import lookup
from gradxform.core.holder import GRADIENTS, UPDATES, Holder, extra_of, with_updates
from gradxform.core.leaves import put
from gradxform.core.transform import Context, hyperparameters
from gradxform.core.where import path_of
from gradxform.functions.convert import matched
from gradxform.transforms.skipping import check_waits, is_due
from gradxform_keras import private


class Step(threading.local):
    """What concerns one step; a TensorFlow strategy runs each replica in a thread."""

    given: Sequence[int] = ()
    """Positions of the variables that have gradients."""
    stopped: Set[int] = frozenset()
    """Positions of the variables whose gradients, or updates, were stopped."""
    due: Any = True
    """Whether the step applies: True, or a bool of the backend."""
    flushes = False
    """Whether it applies an unfinished window."""
    value: Any = None
    """The loss, if it was given."""
    replicas = 1
    gradients: Sequence[Any] = ()
    """For a transform of updates, the gradients of all variables."""
    old: Sequence[Any] = ()
    """And their values before the step; None if there is no gradient or nothing can change."""


class Slots:
    """An optimizer's transform and its state, hidden from Keras's attribute tracking.

    A transform of gradients runs before the step. For one of updates, variables are copied before the step, and moved
    after it.
    """

    holder: Holder

    def __init__(self, tx: GradientTransformation, on: str) -> None:
        self.tx, self.on, self.step = tx, on, Step()
        self.backend = lookup.backend(keras.backend.backend())
        self.variables: Sequence[Any] = ()
        self._state: dict[str, Any] = {}
        """The variables of the state, by path."""

    def build(self, optimizer: Any) -> None:
        """Create the variables of the initial state."""
        self.variables = list(private.variables_of(optimizer))
        self.holder = Holder(self.tx, self.backend, list(map(path_of, self.variables)), self.variables, sort=True)
        likes = [(v.shape, keras.backend.standardize_dtype(v.dtype)) for v in self.variables]
        first = self.holder.start(self.holder.init_like(likes))
        self._state = {
            path: _variable(optimizer, np.asarray(leaf), path, self._layout(leaf, path)) for path, leaf in first.items()
        }
        for value in hyperparameters(self.tx):  # so that JAX traces limits that are variables
            if isinstance(value, keras.Variable):
                private.track(optimizer, value)

    def _layout(self, leaf: Any, path: str) -> Any:
        """Sharding of a state leaf: like its variable, if the shapes agree."""
        own = [(len(key), i) for i, key in enumerate(self.holder.keys) if f"/{path}".endswith(f"/{key}")]
        variable = self.variables[max(own)[1]] if own else None
        alike = variable is not None and tuple(variable.shape) == tuple(leaf.shape)
        return private.layout_of(variable) if alike else None

    def begin(self, given: Sequence[int]) -> None:
        """Begin a step with gradients of some variables; by default it applies."""
        self.step.given, self.step.stopped, self.step.due = given, set(), True

    @contextlib.contextmanager
    def during(self, **given: Any) -> Iterator[None]:
        """Give a step its loss, or what else concerns it; without one, it is that of the step around it."""
        before = {name: getattr(self.step, name) for name in given}
        vars(self.step).update((name, value) for name, value in given.items() if value is not None)
        try:
            yield
        finally:
            vars(self.step).update(before)

    def state(self, copied: bool = False) -> Any:
        """The current state, as backend arrays or copies."""
        own = _values(self.backend, self._state.values())
        return self.holder.state(dict(zip(self._state, self.backend.copied(own) if copied else own, strict=True)))

    def _summed(self, grads: Sequence[Any]) -> Sequence[Any]:
        """One gradient per variable; sums over the replicas of a TensorFlow strategy."""
        slots: Sequence[Any] = put([None] * len(self.variables), self.step.given, grads)
        if self.backend.name == "tensorflow":
            from gradxform_tensorflow import replicas

            slots, self.step.replicas = replicas.summed(slots)
        return slots

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """Transform the gradients and keep the new state; stopped gradients are None.

        For a transform of updates: copy the variables, and return the gradients as they are, summed over replicas.

        Raises:
            ValueError: All variables are stopped.
        """
        if all(gradient is None for gradient in grads):
            return list(grads)
        with _unrecorded(self.backend):
            gradients = self._summed(grads)
            if self.on == UPDATES:
                self.step.gradients, self.step.old = gradients, self._copies(gradients)
                return [gradients[place] for place in self.step.given]
            made = self.holder.step("keras.wrap", gradients, self.state(), self._context())
            self.step.stopped, self.step.due = made.stopped, is_due(self.tx, made.state)
            self._assign(made.state)
        return [None if place in made.stopped else made.gradients[place] for place in self.step.given]

    def _context(self) -> Context:
        return Context(list(map(_value_of, self.variables)), extra_of(self.step.value), flushes=self.step.flushes)

    def _copies(self, gradients: Sequence[Any]) -> list[Any]:
        """The values of the variables that have a gradient and may change; None for the others."""
        now = _values(self.backend, self.variables)
        reached = self.holder.reached(now)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None and reached[i]]
        old = [now[i] for i in there]
        return put([None] * len(now), there, old if self.backend.name == "jax" else self.backend.copied(old))

    def finish(self) -> None:
        """For a transform of updates: transform what the step has added, and assign the variables."""
        old, gradients, self.step.old, self.step.gradients = self.step.old, self.step.gradients, (), ()
        if not old:
            return
        with _unrecorded(self.backend):
            now = _values(self.backend, self.variables)
            made = self.holder.added(old, now, self.state(), gradients, self._context())
            if made is None:
                return
            view, there = made.after.settled(), self.holder.positions(made.after.source.kept)
            new, before = [now[i] for i in there], [old[i] for i in there]
            moved = with_updates(self.backend, view.leaves, new, before, is_due(self.tx, made.state))
            self.step.stopped = set(self.holder.positions(view.skipped()))
            ends = [b if i in self.step.stopped else m for i, b, m in zip(there, before, moved, strict=True)]
            self._place([self.variables[i] for i in there], self.backend.cast(ends, before))
            self._assign(made.state)

    def _place(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign variables; under a TensorFlow strategy in all replicas, which have computed the same values."""
        if self.step.replicas > 1:
            from gradxform_tensorflow import replicas

            replicas.assign(list(map(_value_of, variables)), values)
            return
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def flush(self, optimizer: Any) -> None:
        """Apply what an unfinished window holds; with a transform of updates, the optimizer takes no step."""
        check_waits("keras.wrap", self.tx)
        zeros = [keras.ops.zeros_like(_value_of(variable)) for variable in self.variables]
        if self.on == GRADIENTS:
            optimizer.apply(zeros, self.variables)
        else:
            self.begin(range(len(zeros)))
            self.transformed(zeros)
            self.finish()

    def restore(self, state: Any) -> None:
        """Continue with a state from elsewhere."""
        self._assign(matched("keras.wrap", _untracked(state), self.state()))

    def _assign(self, state: Any) -> None:
        for path, leaf in self.holder.arrays(state).items():
            self._state[path].assign(leaf)

    def when_due(self, optimizer: Any, update: Callable[[], Any]) -> None:
        """Run a function that changes variables, if the step applies."""
        due = self.step.due
        if due is True:
            update()
        elif self.step.replicas > 1:
            from gradxform_tensorflow import replicas

            raise ValueError(
                f"keras.wrap: {self.tx!r} skips steps, which an optimizer under a tf.distribute strategy with several "
                f"replicas cannot do; use a LossScaleOptimizer against infinities, or {replicas.ADVICE}"
            )
        elif self.backend.name != "jax":
            keras.ops.cond(due, lambda: _nothing(update()), lambda: None)
        else:  # branches have no side effects
            before = [(variable, variable.value) for variable in (*self.variables, *optimizer.variables)]
            update()
            for variable, value in before:
                if variable.value is not value:
                    variable.assign(keras.ops.where(due, variable.value, value))


def _untracked(node: Any) -> Any:
    """A state in plain Python containers: Keras replaces containers that are set as attributes."""
    if isinstance(node, dict):
        return {key: _untracked(part) for key, part in node.items()}
    if isinstance(node, (tuple, list)):
        parts = list(map(_untracked, node))
        return type(node)(*parts) if hasattr(node, "_fields") else parts if isinstance(node, list) else tuple(parts)
    return node


def _nothing(_: Any) -> None:
    """Result of a branch that is run for its side effects."""


def _variable(optimizer: Any, leaf: Any, path: str, layout: Any) -> Any:
    return optimizer.add_variable(
        shape=leaf.shape,
        **({} if layout is None else {"layout": layout}),
        initializer=lambda shape, dtype=None: keras.ops.convert_to_tensor(leaf, dtype),
        dtype=leaf.dtype.name,
        aggregation="only_first_replica",  # all replicas compute the same state
        name="gradxform_" + re.sub(r"[^A-Za-z0-9_.-]", "_", path),  # TensorFlow rejects other characters
    )


def _values(backend: Any, variables: Iterable[Any]) -> Sequence[Any]:
    """The current values of variables."""
    found = list(map(_value_of, variables))
    return found if backend.dense is None else backend.dense(found)[0]


def _value_of(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _unrecorded(backend: Any) -> Any:
    """Do not record gradients: PyTorch would keep each step's graph in the state."""
    if backend.name != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()
