"""gradxform on PyTorch tensors: pure, and in place on the gradients of parameters."""

from gradxform_torch import backend as backend
from gradxform_torch._modules import GradientReversal, GradientTransform
from gradxform_torch._parameters import apply_, attach

__all__ = ["GradientReversal", "GradientTransform", "apply_", "attach"]
