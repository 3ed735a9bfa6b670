"""Modules that pass their input through and transform the gradient."""

from __future__ import annotations

from typing import Any

import torch

from gradxform import GradientTransformation, on_backward, reverse_gradient
from gradxform.core import arguments


class GradientTransform(torch.nn.Module):
    """Pass the input through and transform the gradient: `gradxform.on_backward` as a module.

    Args:
        tx: A stateless transform.

    Raises:
        TypeError: `tx` is stateful.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), gx.torch.GradientTransform(gx.clip_norm(1.0)))
        >>> model[1]
        GradientTransform(clip_norm(1.0))

    References:
        `gradxform.on_backward`.
    """

    def __init__(self, tx: GradientTransformation) -> None:
        """Store the transform."""
        super().__init__()
        on_backward(tx)  # refuses what it cannot take
        self.tx = tx

    def forward(self, x: Any) -> Any:
        """Return a tensor, or a structure of tensors, unchanged."""
        return on_backward(self.tx)(x)

    def extra_repr(self) -> str:
        """Show the transform."""
        return repr(self.tx)


class GradientReversal(torch.nn.Module):
    """Pass the input through and reverse the gradient: `gradxform.reverse_gradient` as a module.

    Args:
        scale: Factor of the reversed gradient. It is a buffer: ``module.scale.fill_(0.5)`` changes it between steps
            without recompiling.

    Raises:
        TypeError: a scale that is no number.

    Example:
        >>> import torch
        >>> import gradxform as gx
        >>> x = torch.ones(2, requires_grad=True)
        >>> gx.torch.GradientReversal(0.5)(x).sum().backward()
        >>> x.grad
        tensor([-0.5000, -0.5000])

    References:
        Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, 2015.
    """

    scale: torch.Tensor

    def __init__(self, scale: float = 1.0) -> None:
        """Store the factor."""
        super().__init__()
        factor: Any = arguments.number("GradientReversal", "scale", scale)
        self.register_buffer("scale", torch.tensor(float(factor)))

    def forward(self, x: Any) -> Any:
        """Return a tensor, or a structure of tensors, unchanged."""
        return reverse_gradient(x, self.scale)

    def extra_repr(self) -> str:
        """Show the factor."""
        return f"scale={self.scale.item()!r}"
