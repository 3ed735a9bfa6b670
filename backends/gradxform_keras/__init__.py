"""gradxform in Keras 3: optimizers and layers with a transform inside, on three Keras backends."""

from gradxform.backend import errors
from gradxform_keras.layers import GradientReversal, GradientTransform
from gradxform_keras.recording import RecordSteps
from gradxform_keras.wrap import paths_in as paths_in
from gradxform_keras.wrap import wrap

__all__ = ["GradientReversal", "GradientTransform", "RecordSteps", "wrap"]
__getattr__ = errors.of_module(__name__, __all__, "gx.keras.wrap(optimizer, tx)")
