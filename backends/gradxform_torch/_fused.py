"""Kernels for tensors on an accelerator: few launches, no copy of a leaf in a wider dtype, nothing read or sent.

Norms are taken by one multi-tensor call that accumulates in float64. For products see `_products.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradxform_torch import _namespace, _private
from gradxform_torch._namespace import rounded_number
from gradxform_torch._readable import PLAIN, transformed

_HERE = PLAIN | {_private.FakeTensor}
_PLAIN = {"cpu"}
"""Devices whose operations cost little to start."""

LARGE = 1 << 18
"""Elements from which a leaf has a launch of its own, which then takes no longer than to read and write it."""
REAL = {torch.float16, torch.bfloat16, torch.float32}
"""Dtypes whose products with a float64 number fit float64."""
Groups = dict[tuple[torch.device, torch.dtype], list[int]]


def on_device(tensors: Iterable[torch.Tensor], narrow: bool = False) -> bool:
    """Whether these are ordinary tensors on an accelerator, and no derivative is asked of them.

    It has float64 and multi-tensor kernels; if narrow, it may be without (Apple's).
    """
    given = list(tensors)
    if not given or given[0].device.type in _PLAIN or transformed():  # the first tells, of thousands on the CPU
        return False
    if not _HERE.issuperset({type(t) for t in given}):
        return False
    devices = {t.device for t in given}
    if any([device.type in _PLAIN or not (narrow or has_float64(device)) for device in devices]):
        return False
    return not (torch.is_grad_enabled() and any([t.requires_grad for t in given]))


def has_float64(device: torch.device) -> bool:
    """Whether a device has float64."""
    return _namespace.widest_on(device) == "float64"


def norms(leaves: Sequence[torch.Tensor], ord: float) -> torch.Tensor | None:
    """The vector of the leaves' norms in float64; None where one of them, or the order, needs the plain kernel."""
    kinds = REAL | {torch.float64} if ord == math.inf else REAL
    if ord not in (1, 2, math.inf) or not kinds.issuperset({leaf.dtype for leaf in leaves}):
        return None
    if ord == math.inf and not all([leaf.numel() for leaf in leaves]):
        return None
    found: list[Any] = [None] * len(leaves)
    for places in by_dtype(leaves).values():
        for i, norm in zip(places, _private.foreach_norm([leaves[i] for i in places], ord, torch.float64), strict=True):
            found[i] = norm
    return torch.stack([norm.to(leaves[0].device) for norm in found])


def are_numbers(*bounds: Any) -> bool:
    """Whether bounds are numbers or none."""
    return all([bound is None or isinstance(bound, (int, float)) for bound in bounds])


def clip(leaves: Sequence[torch.Tensor], least: Any, most: Any, own: Sequence[bool]) -> list[torch.Tensor]:
    """Each leaf between two numbers, or one, as its dtype has them; NaN stays."""
    out = list(leaves)
    for (_, dtype), places in by_dtype(leaves).items():
        low, high = (None if bound is None else rounded_number(bound, dtype) for bound in (least, most))
        for mine in (True, False):
            group = [i for i in places if own[i] is mine]
            given = [leaves[i] for i in group]
            written = mine
            for bound, fresh, in_place in (
                (low, _private.foreach_clamp_min, _private.foreach_clamp_min_),
                (high, _private.foreach_clamp_max, _private.foreach_clamp_max_),
            ):
                if bound is None or not group:
                    continue
                if written:
                    in_place(given, bound)
                else:
                    given, written = list(fresh(given, bound)), True
            for i, new in zip(group, given, strict=True):
                out[i] = new
    return out


def cast(leaves: Sequence[torch.Tensor], likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the leaves, rounded to the dtypes of others."""
    out = [torch.empty_like(leaf, dtype=like.dtype) for leaf, like in zip(leaves, likes, strict=True)]
    _private.foreach_copy_(out, list(leaves))
    return out


def zeros(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Zeros in memory of their own."""
    out = [torch.empty_like(leaf, requires_grad=False) for leaf in leaves]
    _private.foreach_zero_(out)
    return out


def by_dtype(tensors: Sequence[torch.Tensor], places: Iterable[int] | None = None) -> Groups:
    """The positions of tensors by device and dtype."""
    found: Groups = {}
    for i in range(len(tensors)) if places is None else places:
        found.setdefault((tensors[i].device, tensors[i].dtype), []).append(i)
    return found
