"""The identity with a custom backward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from gradxform.backend.protocol import Backward


def same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], backward: Backward) -> list[Any]:
    """Return the first tensors; a function computes what flows back to both lists."""
    return list(_Same.apply(backward, len(first), *first, *second))  # type: ignore[no-untyped-call]


class _Same(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(function: Backward, count: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Copies: what is written in place into one must not reach the other.
        if len(given) == 1:
            return (given[0].clone(),)
        # Each depends on all of them: under vmap, if one has a batch, all come out with one. Otherwise what flows back
        # to a leaf without a batch would be summed over the batch before it is transformed.
        either = functools.reduce(torch.logical_or, [(tensor.reshape(-1)[:1] == 0).any() for tensor in given])
        return tuple([torch.where(either.to(tensor.device), tensor, tensor) for tensor in given[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        function, count, *given = inputs
        ctx.function, ctx.rest = function, len(given) - count
        ctx.save_for_backward(*given[count:])

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        found, others = ctx.function(list(upstream), list(ctx.saved_tensors))
        return None, None, *(found or [None] * len(upstream)), *(others or [None] * ctx.rest)


def straight_through(values: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """Return the values; their gradients flow to the leaves."""
    return [_Instead.apply(value, leaf) for value, leaf in zip(values, leaves, strict=True)]  # type: ignore[no-untyped-call]


class _Instead(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, upstream
