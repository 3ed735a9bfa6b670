"""A transform of what an optimizer's step adds to the variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradxform import GradientTransformation
from gradxform.core import updates
from gradxform.core.updates import GRADIENTS, UPDATES
from gradxform.transforms.skipping import is_due
from gradxform_keras._held import Held, unrecorded, value_of, values


class HeldUpdates(Held):
    """The same for a transform of updates: variables are copied before the step, and moved after it."""

    on = UPDATES

    def transformed(self, grads: Sequence[Any]) -> list[Any]:
        """Copy the variables, and return the gradients as they are, summed over replicas."""
        with unrecorded(self.backend):
            gradients, now = self.summed(grads), values(self.backend, self.variables)
            reached = self.holder.reached(now)
            there = [i for i, gradient in enumerate(gradients) if gradient is not None and reached[i]]
            old = [now[i] for i in there]
            kept = dict(zip(there, old if self.backend.name == "jax" else self.backend.copied(old), strict=True))
        self.step.gradients, self.step.old = gradients, [kept.get(i) for i in range(len(now))]
        return [gradients[place] for place in self.step.given]

    def finish(self) -> None:
        """Transform what the step has added, and assign the variables."""
        old, gradients, self.step.old, self.step.gradients = self.step.old, self.step.gradients, (), ()
        with unrecorded(self.backend):
            now = values(self.backend, self.variables)
            made = self.holder.added(old, now, self.state(), gradients)
            if made is None:
                return
            view, there = made.after.settled(), self.holder.positions(made.after.source.kept)
            new, before = [now[i] for i in there], [old[i] for i in there]
            moved = updates.moved(self.backend, view.leaves, new, before, is_due(self.tx, made.state))
            self.step.stopped = set(self.holder.positions(view.skipped()))
            ends = [b if i in self.step.stopped else m for i, b, m in zip(there, before, moved, strict=True)]
            self._place([self.variables[i] for i in there], self.backend.casts(ends, before))
            self.assign(made.state)

    def _place(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign variables; under a TensorFlow strategy in all replicas, which have computed the same values."""
        if self.step.replicas > 1:
            from gradxform_tensorflow import _replicas

            _replicas.assign(list(map(value_of, variables)), values)
            return
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def holder(tx: GradientTransformation, on: str) -> Held:
    """What an optimizer holds for a transform of gradients or of updates."""
    return {GRADIENTS: Held, UPDATES: HeldUpdates}[on](tx)
