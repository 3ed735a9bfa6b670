"""gradxform in Keras 3: optimizers and layers with a transform inside, on three Keras backends."""

from typing import Any

from gradxform.backend import errors
from gradxform_keras.layers import GradientReversal, GradientTransform
from gradxform_keras.recording import RecordSteps
from gradxform_keras.wrap import paths_in as paths_in
from gradxform_keras.wrap import wrap

__all__ = ["GradientReversal", "GradientTransform", "RecordSteps", "wrap"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise errors.unknown(__name__, name, __all__, "gx.keras.wrap(optimizer, tx)")
