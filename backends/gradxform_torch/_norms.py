"""Norms that are right to the last bit of float32 at any size.

Traced, a leaf is converted to float64 where it is read, and the compiler makes one pass of it. Eager on the CPU, small
leaves are read in float64 by one fused call; a large one is seen as rows of 256 whose norms are taken in float32 and
added in float64; the few rows that hold much of the sum, and an array that left the range of float32, are read again
in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradxform._pairs import Pair, length, root, total, total_squares
from gradxform_torch._readable import readable
from gradxform_torch._scalars import Vectors

_ROW = 256
_SMALL = 1 << 14
_HEAVY = 1 / 64
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""
_DOUBLE = (torch.float64, torch.complex128)
_SINGLE = (torch.float32, torch.float16, torch.bfloat16)


def norms(leaves: Sequence[torch.Tensor], ord: float) -> Any:
    """The leaves' norms: a float64 tensor, or a NumPy vector where values may be read."""
    real = [_real(leaf, ord) for leaf in leaves]
    if ord != 2 or not readable(leaves):
        return _traced(real, ord)
    out = np.zeros(len(leaves), np.longdouble if any(leaf.dtype == torch.float64 for leaf in real) else np.float64)
    with torch.no_grad(), np.errstate(all="ignore"):
        small = [i for i, leaf in enumerate(real) if leaf.numel() <= _SMALL and leaf.dtype in _SINGLE]
        if small:
            out[small] = torch.stack(torch._foreach_norm([real[i] for i in small], 2, dtype=torch.float64)).numpy()
        for i in set(range(len(leaves))).difference(small):
            out[i] = _norm64(real[i]) if real[i].dtype == torch.float64 else math.sqrt(_squares32(real[i]))
    return out


def _traced(leaves: Sequence[torch.Tensor], ord: float) -> torch.Tensor | Pair:
    """The norms as tensors on the first leaf's device; roots are taken of all sums together."""
    device = leaves[0].device
    sums = [_sum(leaf, None, ord) for leaf in leaves]
    highs, lows, units = (torch.stack([part[i].to(device).reshape(()) for part in sums]) for i in range(3))
    return _rooted(Pair(highs, lows), units, ord, any(leaf.dtype in _DOUBLE for leaf in leaves))


def norm_over(leaf: torch.Tensor, axes: tuple[int, ...], ord: float) -> torch.Tensor | Pair:
    """Norms over some axes, in float64, the axes kept as ones."""
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
            space = Vectors(leaf.device)
            high, low = total(space, values, add) if ord == 1 else total_squares(space, [values], add)
            return high, low
        return add(values if ord == 1 else values**ord), torch.zeros_like(one)

    if leaf.numel() == 0 or ord == 1:
        return *parts(size), one
    if ord == math.inf:
        return size.amax(over, keepdim=True), torch.zeros_like(one), one
    if ord == 2 and leaf.dtype not in _DOUBLE:
        return add(size * size), torch.zeros_like(one), one
    largest = size.detach().amax(over, keepdim=True)
    unit = torch.where(torch.isfinite(largest) & (largest > 0), largest, torch.ones_like(largest))
    if ord == 2:
        unit = _power_of_two(unit)
    return *parts(size / unit), unit


def _size(leaf: torch.Tensor) -> torch.Tensor:
    """Absolute values in float64."""
    size = (leaf.to(torch.complex128) if leaf.is_complex() else leaf.double()).abs()
    if leaf.dtype != torch.complex128:
        return size
    plain = size.detach()
    unit = torch.where((plain > 0) & torch.isfinite(plain), plain, torch.ones_like(plain))
    return length(Vectors(leaf.device), size, _power_of_two(unit), (leaf.real, leaf.imag))


def _power_of_two(x: torch.Tensor) -> torch.Tensor:
    """The largest power of two that is not above a positive float64 number: its exponent's bits.

    Inductor cannot compile frexp and ldexp of vectors.
    """
    bits = x.clamp(min=2.0**-1022).contiguous().view(torch.int64) & 0x7FF0000000000000
    return bits.view(torch.float64)


def _rooted(sums: Pair, unit: torch.Tensor, ord: float, wide: bool) -> torch.Tensor | Pair:
    """The norms from the sums of powers; as pairs for float64 gradients."""
    if ord == 2 and wide:
        found = root(Vectors(sums.high.device), sums)
        return Pair(found.high * unit, found.low * unit)
    if ord == 1 and wide:
        return sums
    norms = sums.high if ord in (1, math.inf) else unit * _safe_root(sums.high, ord)
    return Pair(norms, torch.zeros_like(norms)) if wide else norms


def _safe_root(total: torch.Tensor, ord: float) -> torch.Tensor:
    """A root, with the derivative zero at zero."""
    zero = total == 0
    safe = torch.where(zero, torch.ones_like(total), total)
    return torch.where(zero, torch.zeros_like(total), safe.sqrt() if ord == 2 else safe ** (1 / ord))


def _rows(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, the squares of their norms in float64, and the rest."""
    cut = flat.numel() // _ROW * _ROW
    rows = flat[:cut].view(-1, _ROW)
    return rows, torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).double().square_(), flat[cut:].double()


def _squares32(leaf: torch.Tensor) -> float:
    flat = leaf.reshape(-1)
    rows, squares, rest = _rows(flat)
    total = float(squares.sum())
    if math.isnan(total):
        return total
    if not flat.numel() * _ONLY_ROUNDING_LOST < total < math.inf:
        wide = flat.double()
        return float(torch.dot(wide, wide))
    heavy = (squares > total * _HEAVY).nonzero()[:, 0]
    if heavy.numel():
        total += float((rows[heavy].double().square_().sum(1) - squares[heavy]).sum())
    return total + float(torch.dot(rest, rest))


def _norm64(leaf: torch.Tensor) -> Any:
    """The 2-norm of float64 numbers, in NumPy's longdouble."""
    flat = leaf.reshape(-1)
    total = _squares64(flat)
    if not flat.numel() or flat.numel() * 2.0**-960 < total < math.inf or math.isnan(total):
        return np.sqrt(total)
    largest = float(flat.abs().max())
    if not 0 < largest < math.inf:
        return largest
    exponent = math.frexp(largest)[1]
    return np.ldexp(np.sqrt(_squares64(torch.ldexp(flat, torch.tensor(-exponent)))), exponent)


def _squares64(flat: torch.Tensor) -> Any:
    array = flat.numpy()
    width = _ROW if array.size > _SMALL else 16
    cut = array.size // width * width
    rows, rest = array[:cut].reshape(-1, width), array[cut:]
    return np.sum(np.vecdot(rows, rows), dtype=np.longdouble) + np.dot(rest, rest)
