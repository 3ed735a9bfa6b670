"""gradxform on TensorFlow: lists of (gradient, variable)."""

from gradxform_tensorflow import backend as backend
from gradxform_tensorflow._pairs import apply

__all__ = ["apply"]
