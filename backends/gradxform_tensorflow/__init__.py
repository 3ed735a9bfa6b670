"""gradxform on TensorFlow: lists of (gradient, variable)."""

from gradxform_tensorflow import backend as backend
from gradxform_tensorflow._pairs import apply
from gradxform_tensorflow._tracing import tracing_type as tracing_type

__all__ = ["apply"]
