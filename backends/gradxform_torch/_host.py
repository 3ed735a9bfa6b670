"""Kernels for ordinary dense tensors on the CPU outside of compilers, which NumPy reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host import namespace as host
from gradxform.numerics import rescale
from gradxform.numerics.elementwise import Combination
from gradxform_torch import _private, _sums
from gradxform_torch._namespace import Namespace, rounded_number

_NARROW = {torch.float16, torch.bfloat16}
_SMALL = 1 << 13
"""Up to so many elements, two passes in one call for all are faster than one pass in a call each."""


def norms(backend: Any, leaves: Sequence[torch.Tensor]) -> Any:
    """The vector of the leaves' 2-norms."""
    wide = [rescale.in_single(Namespace, leaf) if leaf.dtype in _NARROW else leaf for leaf in leaves]
    try:
        views = [leaf.numpy() for leaf in wide]
    except RuntimeError:  # one asks for a gradient, or negates or conjugates what it sees
        views = list(map(backend.view, wide))
    return host.norms(views, 2.0)


def is_plain(leaves: Sequence[torch.Tensor], factor: float) -> bool:
    """Whether torch multiplies leaves of this dtype by this factor as is wanted, in place too, where they lie so."""
    kind = leaves[0].dtype
    if kind is not torch.float64 and (kind is not torch.float32 or rescale.is_extreme(factor)):
        return False
    return all([leaf.dtype is kind and leaf.is_contiguous() and not leaf.is_neg() for leaf in leaves])


def times_one(leaves: Sequence[torch.Tensor], factor: float, inplace: bool) -> Sequence[torch.Tensor]:
    """Multiply leaves of one device by one fused call."""
    # Of a Python number, torch would make a tensor for each leaf.
    if leaves[0].is_cpu:
        number = torch.from_numpy(np.array(factor, "f" if leaves[0].dtype is torch.float32 else "d"))  # faster
    else:
        number = torch.full((), factor, dtype=leaves[0].dtype, device=leaves[0].device)
    if not inplace:
        return list(_private.foreach_mul(list(leaves), number))
    _private.foreach_mul_(list(leaves), number)
    return list(leaves)


def combined(
    backend: Any,
    formula: Combination,
    columns: Sequence[Sequence[torch.Tensor]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None,
    into: Sequence[Any] | None = None,
) -> list[torch.Tensor] | None:
    """Add up products of columns and weights; None if a weight is on a device, or needs another kernel."""
    given = [backend.view(x) if isinstance(x, torch.Tensor) and x.is_cpu else x for x in (*numbers, *(factors or ()))]
    if any([isinstance(x, torch.Tensor) for x in given]):
        return None
    weights: list[Any] = list(map(float, host.compute(formula.weights, *given[: len(numbers)])))
    if factors is not None:
        first = [weights[0] * float(factor) for factor in given[len(numbers) :]]
        weights[0] = first[0] if len(set(first)) == 1 else first
    return _sums.combined(columns, weights, into)


def between(leaves: Sequence[torch.Tensor], low: Any, high: Any, own: Sequence[bool]) -> list[torch.Tensor]:
    """Each leaf between two numbers, or one; small ones that may be written by two calls for all of them."""
    found = list(leaves)
    for kind in {leaf.dtype for leaf in leaves}:
        bounds = [None if bound is None else rounded_number(bound, kind) for bound in (low, high)]
        small: list[torch.Tensor] = []
        for i, leaf in enumerate(leaves):
            if leaf.dtype is not kind:
                continue
            if not own[i]:
                found[i] = leaf.clamp(*bounds)
            elif leaf.numel() > _SMALL:
                leaf.clamp_(*bounds)
            else:
                small.append(leaf)
        for bound, nearer in zip(bounds, (_private.foreach_clamp_min_, _private.foreach_clamp_max_), strict=True):
            if small and bound is not None:
                nearer(small, bound)
    return found
