"""gradxform on PyTorch tensors: pure, and in place on the gradients of parameters."""

from gradxform.backend import errors
from gradxform_torch.apply_ import apply_, init
from gradxform_torch.attach import Attached, attach
from gradxform_torch.attach import handles_of as handles_of
from gradxform_torch.attach import paths_in as paths_in
from gradxform_torch.kernels import backend as backend
from gradxform_torch.modules import GradientReversal, GradientTransform

__all__ = ["Attached", "GradientReversal", "GradientTransform", "apply_", "attach", "init"]
__getattr__ = errors.of_module(__name__, __all__, "gx.torch.apply_(tx, model) or gx.torch.attach(optimizer, tx)")
