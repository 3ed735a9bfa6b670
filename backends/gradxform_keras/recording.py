"""A callback of Keras that records the steps of `fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from gradxform.core.where import path_of
from gradxform.functions.convert import to_numpy
from gradxform.transforms.averaging import TraceState

if TYPE_CHECKING:
    from gradxform.recording.recorder import Recorder


class RecordSteps(keras.callbacks.Callback):
    """Records each batch of `fit`: parameters before the step, gradients, and the mean loss of the epoch so far.

    Their names are ``parameters``, ``gradients`` and ``mean_loss``.
    Keras hands no gradients to callbacks. They come from the optimizer's state: wrap it with ``gx.trace(0.0)``, first
    in a chain for the gradients that come in. Without it, parameters and loss alone are recorded.
    The number of a step is the optimizer's count before it. With ``steps_per_execution`` above 1, the last of each
    execution is recorded under the number of its first.

    Args:
        recorder: what `gradxform.record` returned.

    Example:
        >>> import tempfile
        >>> import keras, numpy as np
        >>> import gradxform as gx
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> optimizer = gx.keras.wrap(keras.optimizers.SGD(0.1), gx.chain(gx.trace(0.0), gx.clip_global_norm(1.0)))
        >>> model.compile(optimizer, loss="mse")
        >>> recorder = gx.record(tempfile.mkdtemp())
        >>> steps = [gx.keras.RecordSteps(recorder)]
        >>> _ = model.fit(np.ones((4, 2)), np.ones(4), batch_size=2, verbose=0, callbacks=steps)
        >>> recorder.steps
        [0, 1]

    Source:
        `keras.callbacks.Callback`.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Keeps the recorder."""
        super().__init__()
        self.recorder = recorder
        self._step = 0
        self._before: list[tuple[str, Any]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Copies the parameters, if the step is due."""
        optimizer = self.model.optimizer  # or the one inside of one that scales the loss
        self._step = int(to_numpy(getattr(optimizer, "inner_optimizer", optimizer).iterations))
        if self.recorder.is_due(self._step):
            self._before = [(path_of(v), to_numpy(v)) for v in self.model.trainable_variables]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes the step."""
        if self.recorder.is_due(self._step):
            state = getattr(self.model.optimizer, "gradient_transformation_state", None)
            trees = {"gradients": _traced(state), "mean_loss": (logs or {}).get("loss")}
            self.recorder(self._step, parameters=self._before, **trees)


def _traced(state: Any) -> Any:
    """The gradients in the first state of `trace` within a state; None if there is none."""
    if isinstance(state, TraceState):
        return state.trace
    children = state if isinstance(state, (tuple, list)) else ()
    return next((found for found in map(_traced, children) if found is not None), None)
