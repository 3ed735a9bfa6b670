"""PyTorch's own clipping, in place on the gradients of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from parity_page.native import Call, Leaves, Native
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from gradxform_torch.kernels import backend


def _made(function: Callable[[list[torch.nn.Parameter], float], Any]) -> Callable[[float], Call]:
    def with_limit(limit: float) -> Call:
        def call(grads: Leaves) -> Leaves:
            parameters = [_parameter(g) for g in grads]
            function(parameters, limit)
            return [backend.to_numpy(parameter.grad) for parameter in parameters if parameter.grad is not None]

        return call

    return with_limit


def _parameter(gradient: Any) -> torch.nn.Parameter:
    """A parameter with a gradient; its own values are not looked at."""
    tensor = backend.from_numpy(gradient)
    parameter = torch.nn.Parameter(torch.empty_like(tensor))
    parameter.grad = tensor
    return parameter


NATIVES = (
    Native("torch.nn.utils.clip_grad_norm_", "torch", "eager", "clip_global_norm", _made(clip_grad_norm_)),
    Native("torch.nn.utils.clip_grad_value_", "torch", "eager", "clip_value", _made(clip_grad_value_)),
)
