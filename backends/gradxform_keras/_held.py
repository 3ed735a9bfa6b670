"""A transform whose state lives in an optimizer's variables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from gradxform import GradientTransformation
from gradxform.backend import lookup
from gradxform.core import state as stateful
from gradxform.core.transform import Context, hyperparameters
from gradxform.core.tree import Tree
from gradxform.core.updates import GRADIENTS
from gradxform.core.where import keys_of, path_of
from gradxform.functions.convert import matched
from gradxform.transforms.skipping import is_due
from gradxform_keras import _private


class Held:
    """What an optimizer holds for its transform, hidden from Keras's attribute tracking."""

    on = GRADIENTS

    def __init__(self, tx: GradientTransformation) -> None:
        self.tx = tx
        self.backend = lookup.backend(keras.backend.backend())
        self.given: Sequence[int] = ()
        """Positions of the variables that have gradients."""
        self.stopped: set[int] = set()
        """Positions of the variables whose gradients were stopped."""
        self.due: Any = True
        """Whether the step applies: True, or a bool of the backend."""
        self.replicas = 1
        self.order: list[int] = []
        """Positions of the variables sorted by key, the order of everything else here."""
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.variables: Sequence[Any] = ()
        self._leaves: list[Any] = []
        self._structure: Any = None

    def build(self, optimizer: Any) -> None:
        """Create the variables of the initial state."""
        given = _private.variables_of(optimizer)
        keys = keys_of(list(map(path_of, given)))
        self.order = sorted(range(len(given)), key=keys.__getitem__)
        self.keys, self.variables = [keys[i] for i in self.order], [given[i] for i in self.order]
        self.paths = list(map(path_of, self.variables))
        likes = [(tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for v in self.variables]
        first = stateful.first(self.tx, likes, self.keys, self.paths, self.variables)
        numpy = lookup.backend("numpy")
        found = zip(numpy.flatten(first)[0], numpy.paths(first), strict=True)
        self._leaves = [
            None if leaf is None else _variable(optimizer, np.asarray(leaf), path, self._layout(leaf, path))
            for leaf, path in found
        ]
        self._structure = self.backend.flatten(first)[1]
        for value in hyperparameters(self.tx):  # so that JAX traces limits that are variables
            if isinstance(value, keras.Variable):
                _private.track(optimizer, value)

    def _layout(self, leaf: Any, path: str) -> Any:
        """Sharding of a state leaf: like its variable, if the shapes agree."""
        own = [i for i, key in enumerate(self.keys) if f"/{path}".endswith(f"/{key}")]
        if not own:
            return None
        variable = self.variables[max(own, key=lambda i: len(self.keys[i]))]
        return _private.layout_of(variable) if tuple(variable.shape) == tuple(leaf.shape) else None

    def begin(self, given: Sequence[int]) -> None:
        """Begin a step with gradients of some variables; by default it applies."""
        self.given, self.due = given, True

    def state(self, copied: bool = False) -> Any:
        """The current state, as backend arrays or copies."""
        own = self.backend.dense([value_of(variable) for variable in self._leaves if variable is not None])[0]
        arrays = iter(self.backend.copied(own) if copied else own)
        return self.backend.unflatten(self._structure, [None if v is None else next(arrays) for v in self._leaves])

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """Transform the gradients and keep the new state; stopped gradients are None.

        Raises:
            ValueError: All gradients are stopped.
        """
        gradients = dict(zip(self.given, grads, strict=True))
        slots = [gradients.get(place) for place in self.order]
        with unrecorded(self.backend):
            slots, self.replicas = summed(self.backend, slots)
            structure = self.backend.flatten(self.by_key(slots))[1]
            view = Tree.of(self.backend, slots, structure, lambda: self.paths, owners=self.variables)
            if view is None:
                return list(grads)
            params = self.by_key([value_of(v) for v in self.variables])
            view, new = self.tx.rule(view, self.state(), Context(params, {}))
            results = dict(zip(self.order, view.results(), strict=True))
            self.stopped, self.due = {self.order[i] for i in view.skipped()}, is_due(self.tx, new)
            self.assign(new)
        if self.stopped.issuperset(self.order):
            raise ValueError(
                f"keras.wrap: {self.tx!r} stops the gradients of all variables, so nothing is left to apply; "
                f"the variables are {', '.join(self.paths)}"
            )
        return [None if place in self.stopped else results[place] for place in self.given]

    def finish(self) -> None:
        """End the update of the variables."""

    def restore(self, state: Any) -> None:
        """Continue with a state from elsewhere."""
        self.assign(matched("keras.wrap", _untracked(state), self.state()))

    def assign(self, state: Any) -> None:
        for variable, leaf in zip(self._leaves, self.backend.flatten(state)[0], strict=True):
            if variable is not None:
                variable.assign(leaf)

    def by_key(self, items: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.keys, items, strict=True))

    def when_due(self, variables: Sequence[Any], update: Callable[[], Any]) -> None:
        """Run a function that changes variables, if the step applies."""
        if self.due is True:
            update()
        elif self.replicas > 1:
            raise ValueError(
                f"keras.wrap: {self.tx!r} skips steps, which an optimizer under a tf.distribute strategy with several "
                "replicas cannot do; use a LossScaleOptimizer, or accumulate in your own loop"
            )
        elif self.backend.name != "jax":
            keras.ops.cond(self.due, lambda: _nothing(update()), lambda: None)
        else:  # branches have no side effects
            old = [variable.value for variable in variables]
            update()
            for variable, value in zip(variables, old, strict=True):
                variable.assign(keras.ops.where(self.due, variable.value, value))

    def not_its_own(self, variables: Sequence[Any]) -> list[Any]:
        """Variables outside the transform's state."""
        own = {id(variable) for variable in self._leaves}
        return [variable for variable in variables if id(variable) not in own]

    def take_back(self, iterations: Any) -> None:
        """Uncount a step that did not apply."""
        if self.due is not True:
            iterations.assign_sub(keras.ops.where(self.due, 0, 1))


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


def value_of(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def unrecorded(backend: Any) -> Any:
    """Do not record gradients: PyTorch would keep each step's graph in the state."""
    if backend.name != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def summed(backend: Any, gradients: list[Any]) -> tuple[list[Any], int]:
    """Sums over the replicas of a TensorFlow strategy, and their number."""
    if backend.name != "tensorflow":
        return gradients, 1
    from gradxform_tensorflow import _replicas

    found, count = _replicas.summed(gradients)
    return list(found), count
