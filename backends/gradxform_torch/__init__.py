"""gradxform on PyTorch tensors: pure, and in place on the gradients of parameters."""

from typing import Any

from gradxform.backend import errors
from gradxform_torch.apply_ import apply_, init
from gradxform_torch.attach import Attached, attach
from gradxform_torch.attach import handles_of as handles_of
from gradxform_torch.attach import paths_in as paths_in
from gradxform_torch.dtensor import backend as backend
from gradxform_torch.modules import GradientReversal, GradientTransform

__all__ = ["Attached", "GradientReversal", "GradientTransform", "apply_", "attach", "init"]


def __getattr__(name: str) -> Any:
    """Of a name that is not here, the error says what to write."""
    raise errors.unknown(__name__, name, __all__, "gx.torch.apply_(tx, model) or gx.torch.attach(optimizer, tx)")
