"""Whether values may be read: never under tracing, where gradients flow, or off the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def readable(tensors: Iterable[Any]) -> bool:
    """Whether these are ordinary tensors on the CPU that no gradient is asked of."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    recording = torch.is_grad_enabled()
    return all(type(t) in _PLAIN and t.device.type == "cpu" and not (recording and t.requires_grad) for t in tensors)
