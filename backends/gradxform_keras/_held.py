"""A transformation with its state in the variables of an optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from gradxform import GradientTransformation, _backend, _flat
from gradxform import _stateful as stateful
from gradxform._transformation import Context
from gradxform._variables import path_of


class Held:
    """What an optimizer holds for its transformation, out of sight of what tracks its attributes."""

    def __init__(self, tx: GradientTransformation) -> None:
        self.tx = tx
        self.backend = _backend.backend(keras.backend.backend())
        self.given: Sequence[int] = ()
        """The places of the variables whose gradients are given, among all."""
        self.stopped: set[int] = set()
        """The places of those whose gradients were stopped."""
        self._variables: Sequence[Any] = ()
        self._paths: list[str] = []
        self._leaves: list[Any] = []
        self._structure: Any = None

    def build(self, optimizer: Any) -> None:
        """Make the variables of the first state."""
        self._variables = optimizer._trainable_variables
        self._paths = list(map(path_of, self._variables))
        likes = [(tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for v in self._variables]
        first = stateful.first(self.tx, likes, self._paths)
        numpy = _backend.backend("numpy")
        found = zip(numpy.flatten(first)[0], numpy.paths(first), strict=True)
        self._leaves = [None if leaf is None else _variable(optimizer, np.asarray(leaf), path) for leaf, path in found]
        self._structure = self.backend.flatten(first)[1]

    def state(self) -> Any:
        """The state now, in arrays of the backend."""
        arrays = iter(self.backend.dense([_value(variable) for variable in self._leaves if variable is not None])[0])
        return self.backend.unflatten(self._structure, [None if v is None else next(arrays) for v in self._leaves])

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients after the transformation, None for those it stops; keeps the new state.

        Raises:
            ValueError: all gradients are stopped.
        """
        slots: list[Any] = [None] * len(self._variables)
        for place, gradient in zip(self.given, grads, strict=True):
            slots[place] = gradient
        with _unrecorded(self.backend):
            slots = _summed(self.backend, slots)
            view = _flat.from_leaves(self.backend, slots, self.backend.flatten(slots)[1], lambda: self._paths)
            if view is None:
                return list(grads)
            old = self.state()
            view, new = self.tx.rule(view, old, Context([_value(v) for v in self._variables], {}))
            results, self.stopped = view.results(), view.skipped()
            for variable, leaf in zip(self._leaves, self.backend.flatten(new)[0], strict=True):
                if variable is not None:
                    variable.assign(leaf)
        if self.stopped.issuperset(self.given):
            raise ValueError(
                f"keras.wrap: {self.tx!r} stops the gradients of all variables, and nothing is left to apply; "
                f"the variables are {', '.join(self._paths)}"
            )
        return [None if place in self.stopped else results[place] for place in self.given]


def _variable(optimizer: Any, leaf: Any, path: str) -> Any:
    return optimizer.add_variable(
        shape=leaf.shape,
        initializer=lambda shape, dtype=None: keras.ops.convert_to_tensor(leaf, dtype),
        dtype=leaf.dtype.name,
        aggregation="only_first_replica",  # all replicas come to the same state
        name="gradxform_" + path.replace("/", "_"),
    )


def _value(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _unrecorded(backend: Any) -> Any:
    """PyTorch would keep the graph of every step in the state."""
    if backend.name != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def _summed(backend: Any, gradients: list[Any]) -> list[Any]:
    """In TensorFlow, the sums over the replicas of a strategy."""
    if backend.name != "tensorflow":
        return gradients
    from gradxform_tensorflow import _replicas

    return list(_replicas.summed(gradients)[0])
