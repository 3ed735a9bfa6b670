"""gradxform on TensorFlow: lists of (gradient, variable)."""

from gradxform.backend import errors
from gradxform_tensorflow.apply import apply
from gradxform_tensorflow.kernels import backend as backend
from gradxform_tensorflow.override import gradient_function, override_gradients
from gradxform_tensorflow.plain import TracingType as TracingType
from gradxform_tensorflow.processor import GradientProcessor
from gradxform_tensorflow.processor import paths_in as paths_in

__all__ = ["GradientProcessor", "apply", "gradient_function", "override_gradients"]
__getattr__ = errors.of_module(__name__, __all__, "gx.tensorflow.apply(tx, grads_and_vars)")
