"""A transformation with its state in the variables of an optimizer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from gradxform import GradientTransformation
from gradxform.backend import lookup
from gradxform.core import operands
from gradxform.core import state as stateful
from gradxform.core.flat import Flat
from gradxform.core.transformation import Context
from gradxform.core.variables import keys_of, path_of
from gradxform.functions.convert import matched
from gradxform.transforms.applied import is_due


class Held:
    """What an optimizer holds for its transformation, out of sight of what tracks its attributes."""

    def __init__(self, tx: GradientTransformation) -> None:
        self.tx = tx
        self.backend = lookup.backend(keras.backend.backend())
        self.given: Sequence[int] = ()
        """The places of the variables whose gradients are given, among all."""
        self.stopped: set[int] = set()
        """The places of those whose gradients were stopped."""
        self.due: Any = True
        """Whether the step is to be applied: True, or a bool of the backend."""
        self._replicas = 1
        self._order: list[int] = []
        """The places of the variables in the order of their keys, in which all else here is."""
        self._keys: list[str] = []
        self._paths: list[str] = []
        self._variables: Sequence[Any] = ()
        self._leaves: list[Any] = []
        self._structure: Any = None

    def build(self, optimizer: Any) -> None:
        """Make the variables of the first state."""
        given = optimizer._trainable_variables
        keys = keys_of(list(map(path_of, given)))
        self._order = sorted(range(len(given)), key=keys.__getitem__)
        self._keys, self._variables = [keys[i] for i in self._order], [given[i] for i in self._order]
        self._paths = list(map(path_of, self._variables))
        likes = [(tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for v in self._variables]
        first = stateful.first(self.tx, likes, self._keys, self._paths, self._variables)
        numpy = lookup.backend("numpy")
        found = zip(numpy.flatten(first)[0], numpy.paths(first), strict=True)
        self._leaves = [
            None if leaf is None else _variable(optimizer, np.asarray(leaf), path, self._layout(leaf, path))
            for leaf, path in found
        ]
        self._structure = self.backend.flatten(first)[1]
        for value in operands.values(self.tx):  # so that JAX is handed a limit that is a variable
            if isinstance(value, keras.Variable):
                optimizer._track_variable(value)

    def _layout(self, leaf: Any, path: str) -> Any:
        """How a leaf of the state is spread over devices: as the variable that it is of, if it has its shape."""
        own = [i for i, key in enumerate(self._keys) if f"/{path}".endswith(f"/{key}")]
        if not own:
            return None
        variable = self._variables[max(own, key=lambda i: len(self._keys[i]))]
        return getattr(variable, "_layout", None) if tuple(variable.shape) == tuple(leaf.shape) else None

    def begin(self, given: Sequence[int]) -> None:
        """A step with gradients of some variables; it is to be applied, as long as nothing says otherwise."""
        self.given, self.due = given, True

    def state(self, copied: bool = False) -> Any:
        """The state now, in arrays of the backend, or in copies of them."""
        own = self.backend.dense([_value(variable) for variable in self._leaves if variable is not None])[0]
        arrays = iter(self.backend.copied(own) if copied else own)
        return self.backend.unflatten(self._structure, [None if v is None else next(arrays) for v in self._leaves])

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients after the transformation, None for those it stops; keeps the new state.

        Raises:
            ValueError: all gradients are stopped.
        """
        gradients = dict(zip(self.given, grads, strict=True))
        slots = [gradients.get(place) for place in self._order]
        with _unrecorded(self.backend):
            slots, self._replicas = _summed(self.backend, slots)
            structure = self.backend.flatten(self._by_key(slots))[1]
            view = Flat.of(self.backend, slots, structure, lambda: self._paths, owners=self._variables)
            if view is None:
                return list(grads)
            params = self._by_key([_value(v) for v in self._variables])
            view, new = self.tx.rule(view, self.state(), Context(params, {}))
            results = dict(zip(self._order, view.results(), strict=True))
            self.stopped, self.due = {self._order[i] for i in view.skipped()}, is_due(self.tx, new)
            self._assign(new)
        if self.stopped.issuperset(self._order):
            raise ValueError(
                f"keras.wrap: {self.tx!r} stops the gradients of all variables, and nothing is left to apply; "
                f"the variables are {', '.join(self._paths)}"
            )
        return [None if place in self.stopped else results[place] for place in self.given]

    def restore(self, state: Any) -> None:
        """Go on with a state from elsewhere."""
        self._assign(matched("keras.wrap", _untracked(state), self.state()))

    def _assign(self, state: Any) -> None:
        for variable, leaf in zip(self._leaves, self.backend.flatten(state)[0], strict=True):
            if variable is not None:
                variable.assign(leaf)

    def _by_key(self, items: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._keys, items, strict=True))

    def when_due(self, variables: Sequence[Any], update: Callable[[], Any]) -> None:
        """Do what changes some variables if the step is to be applied."""
        if self.due is True:
            update()
        elif self._replicas > 1:
            raise ValueError(
                f"keras.wrap: {self.tx!r} leaves steps out, which an optimizer under a tf.distribute strategy of "
                "several replicas cannot; use a LossScaleOptimizer, or accumulate in a loop of your own"
            )
        elif self.backend.name != "jax":
            keras.ops.cond(self.due, lambda: _nothing(update()), lambda: None)
        else:  # where a branch has no side effects
            old = [variable.value for variable in variables]
            update()
            for variable, value in zip(variables, old, strict=True):
                variable.assign(keras.ops.where(self.due, variable.value, value))

    def not_its_own(self, variables: Sequence[Any]) -> list[Any]:
        """Variables that are not those of the transformation's state."""
        own = {id(variable) for variable in self._leaves}
        return [variable for variable in variables if id(variable) not in own]

    def take_back(self, iterations: Any) -> None:
        """Count a step that was not applied off again."""
        if self.due is not True:
            iterations.assign_sub(keras.ops.where(self.due, 0, 1))


def _untracked(node: Any) -> Any:
    """A state of Python's own containers, for which Keras puts its own in whatever is set as an attribute."""
    if isinstance(node, dict):
        return {key: _untracked(part) for key, part in node.items()}
    if isinstance(node, (tuple, list)):
        parts = list(map(_untracked, node))
        return type(node)(*parts) if hasattr(node, "_fields") else parts if isinstance(node, list) else tuple(parts)
    return node


def _nothing(_: Any) -> None:
    """The result of a branch that is there for what it does."""


def _variable(optimizer: Any, leaf: Any, path: str, layout: Any) -> Any:
    return optimizer.add_variable(
        shape=leaf.shape,
        **({} if layout is None else {"layout": layout}),
        initializer=lambda shape, dtype=None: keras.ops.convert_to_tensor(leaf, dtype),
        dtype=leaf.dtype.name,
        aggregation="only_first_replica",  # all replicas come to the same state
        name="gradxform_" + re.sub(r"[^A-Za-z0-9_.-]", "_", path),  # what TensorFlow accepts in a scope's name
    )


def _value(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _unrecorded(backend: Any) -> Any:
    """PyTorch would keep the graph of every step in the state."""
    if backend.name != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def _summed(backend: Any, gradients: list[Any]) -> tuple[list[Any], int]:
    """In TensorFlow, the sums over the replicas of a strategy, and their number."""
    if backend.name != "tensorflow":
        return gradients, 1
    from gradxform_tensorflow import _replicas

    found, count = _replicas.summed(gradients)
    return list(found), count
