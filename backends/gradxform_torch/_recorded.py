"""What an attached transformation records: what comes in, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradxform.functions.convert import to_numpy
from gradxform_torch._parameters import paths_of

if TYPE_CHECKING:
    from gradxform.recording.recorder import Recorder

Named = Sequence[tuple[str, torch.Tensor]]
Tensors = Sequence[torch.Tensor | None]


class Recorded:
    """A recorder and the number of the next step."""

    def __init__(self, recorder: Recorder, step: int) -> None:
        """Keeps the two."""
        self.recorder, self.step = recorder, step
        self._trees: dict[str, Any] = {}

    def is_due(self) -> bool:
        """Whether the next step is written."""
        return self.recorder.is_due(self.step)

    def before(self, named: Named, scale: Any) -> None:
        """Copies the gradients, which the transformation overwrites, divided by the scale of a loss scaler."""
        if self.is_due():
            gradients = _gradients(named)
            if scale is not None:
                gradients = {path: None if g is None else g / scale for path, g in gradients.items()}
            self._trees = {"gradients": list(to_numpy(gradients).items())}  # pairs keep their order

    def after(self, named: Named, updates: Tensors | None = None, old: Tensors | None = None) -> None:
        """Writes the step; by default the updates are the gradients, and the parameters have not moved."""
        if self.is_due():
            own = [p.detach() if q is None else q for (_, p), q in zip(named, old or [None] * len(named), strict=True)]
            parameters = dict(zip(paths_of(named), own, strict=True))
            found = _gradients(named) if updates is None else dict(zip(paths_of(named), updates, strict=True))
            self.recorder(self.step, **self._trees, updates=found, parameters=parameters)
        self.step += 1


def _gradients(named: Named) -> dict[str, torch.Tensor | None]:
    return dict(zip(paths_of(named), (parameter.grad for _, parameter in named), strict=True))
