"""Kernels for ordinary dense tensors on the CPU outside of compilers, which NumPy reads; a plan has checked that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.backend.host import namespace as host
from gradxform.backend.host import norms as host_norms
from gradxform.numerics import rescale
from gradxform_torch import _fused, _private
from gradxform_torch._namespace import Namespace, rounded_number
from gradxform_torch._readable import is_writable

_NARROW = {torch.float16, torch.bfloat16}
_SMALL = 1 << 13


def norms(backend: Any, leaves: Sequence[torch.Tensor], ord: float) -> Any:
    """The vector of the leaves' norms."""
    if ord != 2:
        return backend.view(backend.norms(leaves, ord))
    kinds = {leaf.dtype for leaf in leaves}
    wide = leaves if kinds.isdisjoint(_NARROW) else [rescale.in_single(Namespace, leaf) for leaf in leaves]
    try:
        views = [leaf.numpy() for leaf in wide]
    except RuntimeError:  # one asks for a gradient, or negates or conjugates what it sees
        views = list(map(backend.view, wide))
    return host_norms.norms(views, ord)


def compute(backend: Any, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """Evaluate a formula of numbers and of vectors, which are NumPy's or a state's."""
    seen = [operand.numpy() if isinstance(operand, torch.Tensor) else operand for operand in operands]
    return host.evaluated(formula, seen, static)


def multiply(backend: Any, leaves: Sequence[torch.Tensor], factors: Any, inplace: bool) -> Sequence[torch.Tensor]:
    """Each leaf times its factor."""
    if type(factors) is float:
        if factors == 1:
            return leaves
        if is_plain(leaves, factors):
            return times_one(leaves, factors, inplace)
    return backend.multiply(leaves, factors, inplace)


def is_plain(leaves: Sequence[torch.Tensor], factor: float) -> bool:
    """Whether torch multiplies leaves of this dtype by this factor as is wanted, in place too, where they lie so."""
    kinds = {leaf.dtype for leaf in leaves}
    right = kinds == {torch.float64} or (kinds == {torch.float32} and not rescale.is_extreme(factor))
    return right and all([leaf.is_contiguous() and not leaf.is_neg() for leaf in leaves])


def times_one(leaves: Sequence[torch.Tensor], factor: float, inplace: bool) -> Sequence[torch.Tensor]:
    """Multiply leaves of one device by one fused call."""
    # Of a Python number, torch would make a tensor for each leaf.
    number = torch.full((), factor, dtype=leaves[0].dtype, device=leaves[0].device)
    if not inplace:
        return list(_private.foreach_mul(list(leaves), number))
    _private.foreach_mul_(list(leaves), number)
    return list(leaves)


def clip(
    backend: Any, leaves: Sequence[torch.Tensor], low: Any, high: Any, factors: Any, inplace: bool
) -> Sequence[torch.Tensor]:
    """min(max(factor * leaf, low), high)."""
    if factors is not None or not _fused.are_numbers(low, high):
        return backend.clip(leaves, low, high, factors, inplace)
    if inplace and in_cache(leaves):
        return _fused.clip(leaves, low, high, [is_writable(leaf) for leaf in leaves])
    found = list(leaves)
    for kind in {leaf.dtype for leaf in leaves}:
        bounds = [None if bound is None else rounded_number(bound, kind) for bound in (low, high)]
        for i, leaf in enumerate(leaves):
            if leaf.dtype is kind:
                found[i] = leaf.clamp_(*bounds) if inplace and is_writable(leaf) else leaf.clamp(*bounds)
    return found


def in_cache(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether leaves are so small that two passes in one call are faster than one pass in a call each."""
    return len(leaves) > 1 and all([leaf.numel() <= _SMALL for leaf in leaves])
