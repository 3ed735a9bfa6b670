"""gradxform on TensorFlow: lists of (gradient, variable)."""

from gradxform_tensorflow._apply import apply
from gradxform_tensorflow._override import gradient_function, override_gradients
from gradxform_tensorflow._processor import GradientProcessor
from gradxform_tensorflow._processor import paths_in as paths_in
from gradxform_tensorflow._tracing import TracingType as TracingType
from gradxform_tensorflow.kernels import backend as backend

__all__ = ["GradientProcessor", "apply", "gradient_function", "override_gradients"]
