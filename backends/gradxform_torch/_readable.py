"""Whether values may be read: never under tracing, where gradients flow, or off the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gradxform_torch import _private

PLAIN = {torch.Tensor, torch.nn.Parameter}


def traced() -> bool:
    """Whether current code is recorded or transformed: by torch.compile, torch.func, dual numbers or a mode."""
    return transformed() or _private.is_in_mode()


def transformed() -> bool:
    """Whether a compiler, a tracer, torch.func or dual numbers transform current code."""
    return torch.compiler.is_compiling() or _private.is_in_transform()


def readable(tensors: Iterable[Any]) -> bool:
    """Whether all are ordinary CPU tensors without gradients; with no tensors, whether no compiler is active."""
    given = list(tensors)
    if not given:
        return not torch.compiler.is_compiling()
    if traced() or not (PLAIN.issuperset(map(type, given)) and all([t.is_cpu for t in given])):
        return False
    return not (torch.is_grad_enabled() and any([t.requires_grad for t in given]))


def is_writable(leaf: torch.Tensor) -> bool:
    """Whether each element has memory of its own, which holds its value, and no gradient is asked of it."""
    if not torch.compiler.is_compiling() and (leaf.is_neg() or leaf.is_conj()):  # Dynamo cannot trace the question
        return False
    if not leaf.is_contiguous():
        if not all([stride or size < 2 for stride, size in zip(leaf.stride(), leaf.shape, strict=True)]):
            return False
    return not (torch.is_grad_enabled() and leaf.requires_grad)
