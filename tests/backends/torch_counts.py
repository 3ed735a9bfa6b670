"""Count launches, copies and memory of PyTorch on a missing device, under FakeTensorMode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from devices import update
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_counting import Counted

import gradxform as gx


class Still(torch.optim.Optimizer):
    """Steps do nothing but call hooks."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Leave the parameters as they are."""


def counted(
    tx: gx.GradientTransformation, shapes: Sequence[tuple[int, ...]], dtype: str, device: str, how: str = "apply_"
) -> Counted:
    """The counts of one step of a transform: `apply_`, `update`, or a step with `attach` on gradients or updates."""
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(s, dtype=getattr(torch, dtype), device=device)) for s in shapes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        named = [(f"layer.{i}", parameter) for i, parameter in enumerate(parameters)]
        count = Counted()
        if how in ("attach", "updates"):
            optimizer = Still(named, {})
            gx.torch.attach(optimizer, tx, on="updates" if how == "updates" else "gradients")
            with count:
                optimizer.step()
            return count
        state = gx.torch.init(tx, named) if tx.stateful else None
        if how == "apply_":
            with count:
                gx.torch.apply_(tx, named, state)
            return count
        gradients, values = ({n: t.detach() for n, t in pairs} for pairs in (_gradients(named), named))
        with torch.no_grad(), count:
            update(tx, gradients, state, values)
    return count


def _gradients(named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]
