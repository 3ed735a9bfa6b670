"""Whether values may be read: never under tracing, where gradients flow, or off the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

PLAIN = {torch.Tensor, torch.nn.Parameter}


def traced() -> bool:
    """Whether what runs now is recorded, transformed or watched: by torch.compile, torch.func, dual numbers, a mode."""
    return bool(transformed() or torch._C._len_torch_dispatch_stack())


def transformed() -> bool:
    """Whether a compiler, a tracer, torch.func or dual numbers make something else of what runs now."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def readable(tensors: Iterable[Any]) -> bool:
    """Whether these are ordinary tensors on the CPU that no gradient is asked of; of none, not within a compiler."""
    given = list(tensors)
    if not given:
        return not torch.compiler.is_compiling()
    if traced():
        return False
    if not (PLAIN.issuperset({type(t) for t in given}) and all([t.is_cpu for t in given])):
        return False
    return not (torch.is_grad_enabled() and any([t.requires_grad for t in given]))
