"""Kernels for tensors on an accelerator: few launches, no copy of a leaf in a wider dtype, nothing read or sent.

Norms are taken by one multi-tensor call that accumulates in float64. For products see `_products.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from gradxform.numerics import sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.formats import FLOAT64
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
    if any([device.type in _PLAIN or not (narrow or _namespace.base_of(device) is FLOAT64) for device in devices]):
        return False
    return not (torch.is_grad_enabled() and any([t.requires_grad for t in given]))


def norms(leaves: Sequence[torch.Tensor], ord: float) -> torch.Tensor | Pair | None:
    """The vector of the leaves' norms in float64; None where one of them, or the order, needs the plain kernel.

    With float64 leaves, of which only the largest elements are found so, it is a pair.
    """
    wide = ord == math.inf and any([leaf.dtype == torch.float64 for leaf in leaves])
    if ord not in (1, 2, math.inf) or not (REAL | {torch.float64} if wide else REAL).issuperset(
        {leaf.dtype for leaf in leaves}
    ):
        return None
    if ord == math.inf and not all([leaf.numel() for leaf in leaves]):
        return None
    found: list[Any] = [None] * len(leaves)
    for places in by_dtype(leaves).values():
        for i, norm in zip(places, _private.foreach_norm([leaves[i] for i in places], ord, torch.float64), strict=True):
            found[i] = norm
    home = leaves[0].device
    vector = torch.stack([norm.to(home) for norm in found])
    if not wide:
        return vector
    return sums.in_units(
        _namespace.Namespace(home, lasting=False), Pair(vector, torch.zeros_like(vector)), torch.ones_like(vector)
    )


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


def are_combined(columns: Sequence[Any]) -> bool:
    """Whether `combined` takes the elements of two columns."""
    return all([column.dtype in REAL and column.ndim for column in columns])


class Weights(NamedTuple):
    """The weights of a sum of two elements, each cut in two; the first is none where it is one."""

    first: Any
    first_cut: tuple[torch.Tensor, torch.Tensor] | None
    second_cut: tuple[torch.Tensor, torch.Tensor]


def weights(xp: Any, first: Any, second: Any) -> Weights:
    """Weights on the device of the elements."""
    one = isinstance(first, float) and first == 1.0
    return Weights(xp.float64(first), None if one else _cut(xp.float64(first)), _cut(xp.float64(second)))


def combined(x: torch.Tensor, y: torch.Tensor, by: Weights, factor: Any) -> torch.Tensor:
    """Two columns of elements, a * factor * x + b * y, rounded to float64 once, and then to float32.

    Products with the upper parts of weights are exact, and so is what their sum's rounding takes (for terms of which
    the second is at most 512 times as large).

    Source: Dekker, A floating-point technique for extending the available precision, 1971.
    """
    upper, lower = by.second_cut
    cut = by.first_cut if factor is None else _cut(by.first * factor.double())
    if cut is None:
        total = torch.addcmul(x, y, upper)
        lost = torch.addcmul(x - total, y, upper)
    else:
        lost = torch.mul(y, upper)
        total = torch.addcmul(lost, x, cut[0])
        torch.addcmul(lost.sub_(total), x, cut[0], out=lost)
        torch.addcmul(lost, x, cut[1], out=lost)
    torch.addcmul(lost, y, lower, out=lost)
    lost.nan_to_num_(0.0, 0.0, 0.0)  # of a total that is not finite
    return torch.add(total, lost, out=torch.empty_like(total, dtype=torch.float32))


def _cut(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper 20 bits of a float64 number and the rest, as tensors that have an axis."""
    upper = (weight.view(torch.int64) & -(1 << 33)).view(torch.float64)
    return upper.reshape(-1), (weight - upper).reshape(-1)


def copied(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves in memory of their own."""
    return casts(leaves, leaves)


def casts(leaves: Sequence[torch.Tensor], likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves rounded to the dtypes of others."""
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
