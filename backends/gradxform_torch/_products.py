"""Products of leaves and factors on an accelerator: float32, or float64 in registers; rounded once.

A large leaf takes one launch. Small leaves times one factor are multiplied together, by two float32 numbers where one
has not the range of the factor. Small leaves that lie alike, with a factor each, are copied into one array: PyTorch's
multi-tensor functions take a list of factors from the host alone, and of tensors on a device launch a kernel each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.numerics import formulas, rescale
from gradxform_torch import _fused, _packed, _private, _stacked
from gradxform_torch._fused import REAL, by_dtype

_LEAST, _MOST = 2.0**-126, 2.0**126


def multiply(leaves: Sequence[torch.Tensor], factors: torch.Tensor, own: Sequence[bool]) -> list[torch.Tensor] | None:
    """Each leaf times a factor on a device, in place for owned leaves; None for complex leaves."""
    if any([leaf.is_complex() for leaf in leaves]):
        return None
    if not all([_fused.has_float64(leaf.device) for leaf in leaves]):
        each_factor = list(factors.unbind()) if factors.ndim else [factors] * len(leaves)
        return _in_parts(leaves, each_factor, own)
    out = [leaf if mine else torch.empty_like(leaf) for leaf, mine in zip(leaves, own, strict=True)]
    if factors.ndim:
        each(torch.mul, leaves, factors.unbind(), out)
        return out
    small = [leaf.dtype in REAL and leaf.numel() < _fused.LARGE for leaf in leaves]
    for i in [i for i, there in enumerate(small) if not there]:
        torch.mul(leaves[i], _beside(leaves[i], factors), out=out[i])
    together = [i for i, there in enumerate(small) if there]
    if together:
        _multiply_together(leaves, together, factors, out)
    return out


def each(
    function: Callable[..., torch.Tensor],
    leaves: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> None:
    """Apply a binary function to each leaf and a float64 tensor that broadcasts, rounded once."""
    groups, shared = _stacked.alike(leaves, others, out), []
    for places in groups:
        if len(places) > 1:
            shared.append(places)
            continue
        (i,) = places
        function(leaves[i], _beside(leaves[i], others[i]), out=out[i])
    for dtype in dict.fromkeys([out[places[0]].dtype for places in shared]):
        some = [places for places in shared if out[places[0]].dtype == dtype]
        for part in _stacked.stacks(leaves, some, dtype):
            for own, array in part:
                other = torch.stack([others[i] for i in own]).to(array.device)
                function(array, other.reshape(-1, *(other.shape[1:] or (1,) * (array.ndim - 1))), out=array)
            _stacked.put(out, part)


def _beside(leaf: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Give a factor the leaf's axes; PyTorch then computes in the factor's dtype."""
    factor = factor.to(leaf.device)
    return factor if factor.ndim else factor.reshape((1,) * leaf.ndim)


def by_number(leaves: Sequence[torch.Tensor], factor: float, own: Sequence[bool]) -> list[torch.Tensor] | None:
    """Multiply each leaf by a Python number; None for numbers and leaves that take float64, where the device has it."""
    half = [leaf.itemsize == 2 and _fused.has_float64(leaf.device) for leaf in leaves]
    if rescale.is_extreme(factor) or any(half) or any([leaf.is_complex() for leaf in leaves]):
        return None
    out = list(leaves)
    for (_, dtype), places in by_dtype(leaves).items():
        if dtype.itemsize == 2:
            some = [leaves[i] for i in places]
            found = _in_parts(some, [factor] * len(some), [own[i] for i in places])
        else:
            written, made = ([i for i in places if own[i] is mine] for mine in (True, False))
            if written:
                _private.foreach_mul_([leaves[i] for i in written], factor)
            places, found = made, list(_private.foreach_mul([leaves[i] for i in made], factor)) if made else []
        for i, new in zip(places, found, strict=True):
            out[i] = new
    return out


def _in_parts(leaves: Sequence[torch.Tensor], factors: Sequence[Any], own: Sequence[bool]) -> list[torch.Tensor]:
    """Multiply leaves in float32, rounded once; small ones together."""
    known = isinstance(factors[0], float)

    def times(_: Any, rows: Sequence[Sequence[torch.Tensor]], by: Any) -> list[torch.Tensor]:
        (leaf,) = rows[0]
        return [(leaf.float() * (factors[0] if known else by[0])).to(leaf.dtype)]

    into = [leaf if mine else None for leaf, mine in zip(leaves, own, strict=True)]
    return _packed.in_parts(times, formulas.same, [leaves], None if known else factors, into)


def _multiply_together(
    leaves: Sequence[torch.Tensor], places: Sequence[int], factor: torch.Tensor, out: list[torch.Tensor]
) -> None:
    """Small leaves times one factor."""
    made = [i for i in places if out[i] is not leaves[i]]
    if made:
        _private.foreach_copy_([out[i] for i in made], [leaves[i] for i in made])
    size = factor.abs().clamp(_LEAST, _MOST)
    rest = factor / size  # 1 or -1, but for extreme factors; not so small that infinity times it would be NaN
    parts = size.float(), (rest.sign() * rest.abs().clamp(min=2.0**-149)).float()
    for (device, dtype), group in by_dtype(out, places).items():
        given = [out[i] for i in group]
        if dtype == torch.bfloat16:  # which CUDA's kernel for float16 does not take
            _packed.in_parts(functools.partial(_product, factor), formulas.same, [given], None, given)
            continue
        for part in (part.to(device) for part in parts):
            if dtype == torch.float32:
                _private.foreach_mul_(given, part)
            else:  # in float32 inside, and rounded once
                found = torch.zeros((), dtype=torch.float32, device=device)
                _private.unscale_(given, found, part)


def _product(factor: torch.Tensor, _: Any, rows: Any, by: Any) -> list[torch.Tensor]:
    """Multiply a leaf by a float64 number in one launch, rounded once."""
    leaf = rows[0][0]
    return [torch.mul(leaf, _beside(leaf, factor), out=torch.empty_like(leaf))]
