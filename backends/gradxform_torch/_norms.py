"""Norms that are right to the last bit of float32 at any size.

Traced, a leaf is converted to float64 where it is read, and the compiler makes one pass of it. Eager on the CPU, NumPy
reads the tensors' memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host import norms as host
from gradxform.numerics.double_double import Pair
from gradxform.numerics.sums import in_units, length, root, total, total_squares
from gradxform_torch import _sharded, _sharded_norms
from gradxform_torch._readable import readable
from gradxform_torch._scalars import Namespace

_DOUBLE = {torch.float64, torch.complex128}
_NARROW = {torch.float16, torch.bfloat16}
_REAL = _NARROW | {torch.float32, torch.float64}


def norms(leaves: Sequence[torch.Tensor], ord: float) -> Any:
    """The leaves' norms: a float64 tensor, or a NumPy vector where values may be read."""
    if _sharded.any_sharded(leaves):
        return _sharded_norms.norms(leaves, ord, norms)
    kinds = {leaf.dtype for leaf in leaves}
    real = leaves if kinds <= _REAL else [_real(leaf, ord) for leaf in leaves]
    if ord != 2 or not readable(leaves):
        return _traced(real, ord)
    wide = real if kinds.isdisjoint(_NARROW) else [leaf.float() if leaf.itemsize == 2 else leaf for leaf in real]
    with np.errstate(all="ignore"):
        return host.norms(_views(wide), ord)


def _views(leaves: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors' memory as NumPy arrays; of views that negate what they see, copies."""
    try:
        return [leaf.numpy() for leaf in leaves]
    except RuntimeError:  # one asks for a gradient, or negates
        return [leaf.detach().resolve_neg().numpy() for leaf in leaves]


def _traced(leaves: Sequence[torch.Tensor], ord: float) -> torch.Tensor | Pair:
    """The norms as tensors on the first leaf's device; roots are taken of all sums together."""
    device = leaves[0].device
    sums = [_sum(leaf, None, ord) for leaf in leaves]
    highs, lows, units = (torch.stack([part[i].to(device).reshape(()) for part in sums]) for i in range(3))
    return _rooted(Pair(highs, lows), units, ord, any(leaf.dtype in _DOUBLE for leaf in leaves))


def norm_over(leaf: torch.Tensor, axes: tuple[int, ...], ord: float) -> torch.Tensor | Pair:
    """Norms over some axes, in float64, the axes kept as ones."""
    if _sharded.is_sharded(leaf):
        return _sharded_norms.norm_over(leaf, axes, ord, norm_over(_sharded.local(leaf), axes, ord))
    high, low, unit = _sum(leaf, axes, ord)
    return _rooted(Pair(high, low), unit, ord, leaf.dtype in _DOUBLE)


def _real(leaf: torch.Tensor, ord: float) -> torch.Tensor:
    """A complex leaf as pairs of real numbers, which have the same 2-norm."""
    return torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() and ord == 2 else leaf


def _sum(leaf: torch.Tensor, axes: tuple[int, ...] | None, ord: float) -> tuple[Any, Any, Any]:
    """The sum of powers whose root is the norm, in two parts, and its unit: one, or near the largest."""
    over: Any = tuple(range(leaf.ndim)) if axes is None else axes
    size = _size(leaf)
    one = torch.ones((), dtype=torch.float64, device=leaf.device)

    def add(values: torch.Tensor) -> torch.Tensor:
        return values.sum(over, keepdim=True)

    def parts(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if leaf.dtype in _DOUBLE and ord in (1, 2):
            space = Namespace(leaf.device)
            found = total(space, values, add) if ord == 1 else total_squares(space, [values], add)
            return found.high, found.low
        return add(values if ord == 1 else values**ord), torch.zeros_like(one)

    if leaf.numel() == 0 or (ord == 1 and leaf.dtype not in _DOUBLE):
        return *parts(size), one
    if ord == math.inf:
        return size.amax(over, keepdim=True), torch.zeros_like(one), one
    if ord == 2 and leaf.dtype not in _DOUBLE:
        return add(size * size), torch.zeros_like(one), one
    largest = size.detach().amax(over, keepdim=True)
    unit = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))
    if ord in (1, 2):
        unit = _power_of_two(unit)
    return *parts(size / unit), unit


def _size(leaf: torch.Tensor) -> torch.Tensor:
    """Absolute values in float64."""
    size = (leaf.to(torch.complex128) if leaf.is_complex() else leaf.double()).abs()
    if leaf.dtype != torch.complex128:
        return size
    plain = size.detach()
    unit = torch.where((plain > 0) & torch.isfinite(plain), plain, torch.ones_like(plain))
    return length(Namespace(leaf.device), size, _power_of_two(unit), (leaf.real, leaf.imag))


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The largest power of two that is not above a positive float64 number: its exponent's bits.

    Inductor cannot compile frexp and ldexp of vectors.
    """
    bits = x.clamp(min=2.0**-1022).contiguous().view(torch.int64) & 0x7FF0000000000000
    return bits.view(torch.float64)


def _rooted(sums: Pair, unit: torch.Tensor, ord: float, wide: bool) -> torch.Tensor | Pair:
    """The norms from the sums of powers; as pairs for float64 gradients."""
    space = Namespace(sums.high.device)
    if not wide:
        return sums.high if ord in (1, math.inf) else unit * _safe_root(sums.high, ord)
    if ord == 2:
        sums = root(space, sums)
    elif ord not in (1, math.inf):
        high = _safe_root(sums.high, ord)
        sums = Pair(high, torch.zeros_like(high))
    return in_units(space, sums, unit)


def _safe_root(total: torch.Tensor, ord: float) -> torch.Tensor:
    """A root, with the derivative zero at zero."""
    zero = total == 0
    safe = torch.where(zero, torch.ones_like(total), total)
    return torch.where(zero, torch.zeros_like(total), safe.sqrt() if ord == 2 else safe ** (1 / ord))
