"""Inspect a PyTorch optimizer: its parameters, and which of its steps count."""

from __future__ import annotations

from typing import Any

import torch

from gradxform.backend.errors import instead, short
from gradxform_torch._writing import Named

_WRAPPING = ("lightning", "pytorch_lightning", "accelerate")


def is_for_show(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> bool:
    """Whether this is the step on zeros by which `torch.distributed.checkpoint` creates an optimizer's state."""
    if len(args) > 1 or kwargs != {"closure": None} or optimizer.state:
        return False
    if any(group.get("lr", 0.0) != 0.0 for group in optimizer.param_groups):
        return False
    gradients = [parameter.grad for _, parameter in named_of(optimizer)]
    shown = any(gradient is not None for gradient in gradients)  # for a step without gradients, others may wait
    return shown and all(gradient is None or not (gradient.is_sparse or gradient.any()) for gradient in gradients)


def closure_of(args: Any, kwargs: Any) -> Any:
    """The closure among the arguments of a step, or None."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def is_optimizer(given: Any) -> bool:
    """Whether an object is an optimizer, possibly wrapped by Lightning or Accelerate."""
    return isinstance(unwrapped(given), torch.optim.Optimizer)


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside a Lightning or Accelerate wrapper.

    Raises:
        TypeError: The object is not an optimizer.
    """
    found = unwrapped(optimizer)
    if not isinstance(found, torch.optim.Optimizer):
        hint = "; hand in its optimizer" if hasattr(optimizer, "optimizer") else instead(optimizer)
        raise TypeError(
            f"torch.attach: expected a torch.optim optimizer, got {short(optimizer)} of type "
            f"{type(optimizer).__name__}{hint}"
        )
    return found


def unwrapped(optimizer: Any) -> Any:
    """The object inside a Lightning or Accelerate wrapper; other objects unchanged."""
    while hasattr(optimizer, "optimizer") and _is_wrapper(type(optimizer)):
        optimizer = optimizer.optimizer
    return optimizer


def _is_wrapper(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] in _WRAPPING for base in kind.__mro__)


def named_of(optimizer: torch.optim.Optimizer) -> Named:
    """Parameters of all groups, with names or indices."""
    named: list[tuple[str, torch.Tensor]] = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [str(len(named) + i) for i in range(len(group["params"]))]
        named += zip(names, group["params"], strict=True)
    return named


def device_of(named: Named) -> Any:
    """Device of the first parameter."""
    return named[0][1].device if named else None
