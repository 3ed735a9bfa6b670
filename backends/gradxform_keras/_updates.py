"""A transform of what an optimizer's step adds to the variables."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from gradxform import GradientTransformation
from gradxform.core import updates
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform.core.updates import GRADIENTS, UPDATES
from gradxform.transforms.skipping import is_due
from gradxform_keras._held import Held, summed, unrecorded, value_of


class HeldUpdates(Held):
    """The same for a transform of updates: variables are copied before the step, and moved after it."""

    on = UPDATES

    def __init__(self, tx: GradientTransformation) -> None:
        super().__init__(tx)
        self._kept: dict[int, tuple[list[Any], list[Any]]] = {}
        """Gradients, and values before the step, by thread: a strategy runs each replica in one.

        In the order of the keys; None if there is no gradient or nothing can change."""

    def begin(self, given: Sequence[int]) -> None:
        """Begin a step."""
        super().begin(given)
        self.stopped = set()

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """Copy the variables, and return the gradients as they are, summed over replicas."""
        given = dict(zip(self.given, grads, strict=True))
        slots = [given.get(place) for place in self.order]
        with unrecorded(self.backend):
            gradients, self.replicas = summed(self.backend, slots)
            there = [gradient is not None for gradient in gradients]
            if self.tx.traits.selections:
                view = self._view(self._read(self.variables))
                mask = [False] * len(there) if view is None else self.tx.reached(view)
                there = [a and b for a, b in zip(there, mask, strict=True)]
            values = self._read([v for v, chosen in zip(self.variables, there, strict=True) if chosen])
            kept = iter(values if self.backend.name == "jax" else self.backend.copied(values))  # JAX's are immutable
            self._kept[threading.get_ident()] = gradients, [next(kept) if chosen else None for chosen in there]
        results = dict(zip(self.order, gradients, strict=True))
        return [results[place] for place in self.given]

    def finish(self) -> None:
        """Transform what the step has added, and assign the variables."""
        gradients, old = self._kept.pop(threading.get_ident())
        there = [i for i, value in enumerate(old) if value is not None]
        with unrecorded(self.backend):
            before = [old[i] for i in there]
            new = self._read([self.variables[i] for i in there])
            slots: list[Any] = [None] * len(old)
            for i, update in zip(there, updates.differences(self.backend, new, before), strict=True):
                slots[i] = update
            view = self._view(slots)
            if view is None:
                return
            extra = {"gradients": self.by_key(gradients)} if "gradients" in self.tx.traits.needs else {}
            view, state = self.tx.rule(view, self.state(), Context(self.by_key(old), extra, added=True))
            due, view = is_due(self.tx, state), view.settled()
            moved = updates.moved(self.backend, view.leaves, new, before, due)
            halted = view.skipped()
            values = [b if i in halted else m for i, b, m in zip(there, before, moved, strict=True)]
            self._place([self.variables[i] for i in there], self.backend.cast(values, before))
            self.stopped = {self.order[i] for i in halted}
            self.assign(state)

    def _read(self, variables: Sequence[Any]) -> Sequence[Any]:
        """The variables' current values."""
        values: Sequence[Any] = self.backend.dense(list(map(value_of, variables)))[0]
        return values

    def _view(self, slots: Sequence[Any]) -> Tree | None:
        structure = self.backend.flatten(self.by_key(slots))[1]
        return Tree.of(self.backend, slots, structure, lambda: self.paths, owners=self.variables)

    def _place(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign variables; under a TensorFlow strategy in all replicas, which have computed the same values."""
        if self.replicas > 1:
            from gradxform_tensorflow import _replicas

            _replicas.assign(list(map(value_of, variables)), values)
            return
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def holder(tx: GradientTransformation, on: str) -> Held:
    """What an optimizer holds for a transform of gradients or of updates."""
    return {GRADIENTS: Held, UPDATES: HeldUpdates}[on](tx)
