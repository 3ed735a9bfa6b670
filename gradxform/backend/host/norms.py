"""Norms of NumPy arrays, accurate to the last bit of float32 at any size, in one read of memory.

Small arrays are concatenated in float64, and one call sums their squares: a call costs more than a few numbers. A
larger float32 array is viewed as rows of 256. NumPy sums the squares of each row in float32 with little rounding, and
the rows are added in float64. The few rows that dominate the sum are summed again in float64, to remove their
rounding from the result. If the sum leaves the range of float32, the array is summed again in float64.

For NumPy, and for frameworks whose CPU arrays NumPy can read without a copy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import threads, together
from gradxform.backend.host.namespace import Namespace
from gradxform.numerics.norms import sizes_of

_SMALL = 1 << 13
"""Arrays up to this size are read together."""
_MANY = 12
"""Fewer arrays are faster one by one."""
_ROW = 256
_SHORT_ROW = 16
_BLOCK = 1 << 16
"""Float64 elements that fit the cache."""
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""If a sum of n float32 squares is above n times this, underflow lost less than rounding."""
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_WIDE = {np.dtype(np.float64), np.dtype(np.complex128)}
_ALONE = _WIDE | {np.dtype(np.complex64)}


def norms(leaves: Sequence[Any], ord: float) -> Any:
    """Return the arrays' norms as a float64 vector."""
    if ord == 2 and len(leaves) < _MANY and _are_small(leaves):  # fewer calls
        return np.array([_norm32(leaf) for leaf in leaves])
    with np.errstate(all="ignore"):
        return _norms(leaves, ord)


def _norms(leaves: Sequence[Any], ord: float) -> Any:
    kinds = {leaf.dtype for leaf in leaves}
    if not all([kind.isnative for kind in kinds]):
        return _norms([leaf.astype(leaf.dtype.newbyteorder("=")) for leaf in leaves], ord)
    found, alone = np.empty(len(leaves)), set(range(len(leaves)))
    if ord == 2 and len(leaves) >= _MANY and kinds.isdisjoint(_ALONE):
        for _, places in together.groups(leaves, [None] * len(leaves)):
            flat = np.concatenate([leaves[i] for i in places], axis=None, dtype=np.float64, casting="unsafe")
            found[places] = _norms_together(flat, [leaves[i].size for i in places])
            alone.difference_update(places)
    if alone:
        rest = sorted(alone)
        sizes = [leaves[i].size for i in rest]
        found[rest] = threads.spread(functools.partial(_norm, ord=ord), [leaves[i] for i in rest], sizes)
    return found


def _are_small(leaves: Sequence[Any]) -> bool:
    """Whether these are float32 arrays with fewer elements than threads are worth."""
    total = 0
    for leaf in leaves:
        if leaf.dtype is not _FLOAT32:
            return False
        total += leaf.size
    return total < threads.WORTH


def _norms_together(flat: Any, sizes: Sequence[int]) -> Any:
    """Return the 2-norms of parts of a float64 array, and overwrite it; its values come from a narrower dtype."""
    np.square(flat, out=flat)
    lengths = np.array(sizes)
    found, some = np.zeros(len(lengths)), lengths > 0
    if len(flat):
        found[some] = np.add.reduceat(flat, (np.cumsum(lengths) - lengths)[some])  # reduceat cannot sum empty parts
    return np.sqrt(found)


def _norm(leaf: Any, ord: float) -> Any:
    """Return the norm of one array."""
    flat = _real(leaf, ord)
    if flat.size == 0:
        return 0.0
    if ord != 2:
        return _other_norm(flat, ord)
    if flat.dtype == np.float64:
        return _norm64(flat)
    return _norm32(flat) if flat.dtype == _FLOAT32 else math.sqrt(sum(map(_dot64, _blocks(flat))))


def _norm32(leaf: Any) -> float:
    """Return the 2-norm of float32 numbers."""
    flat = leaf.ravel("K")
    if flat.size > _SMALL:
        return _norm_by_rows(flat)
    wide = flat.astype(_FLOAT64)
    return math.sqrt(wide.dot(wide))


def _norm_by_rows(flat: Any) -> float:
    cut = flat.size // _ROW * _ROW
    rows = flat[:cut].reshape(-1, _ROW)
    with np.errstate(all="ignore"):
        sums = np.vecdot(rows, rows)
        total = float(np.add.reduce(sums, dtype=np.float64))
        if not (cut * _ONLY_ROUNDING_LOST < total < math.inf and np.maximum.reduce(sums) < total * _HEAVY):
            total = _again(rows, sums.astype(np.float64), total)
    return math.sqrt(total if cut == flat.size else total + _dot64(flat[cut:].astype(np.float64)))


def _again(rows: Any, sums: Any, total: float) -> float:
    """Sum the squares of rows again whose own sums are too inaccurate."""
    if math.isnan(total):
        return total
    if not rows.size * _ONLY_ROUNDING_LOST < total < math.inf:
        return sum(map(_dot64, _blocks(rows.reshape(-1))))
    heavy = np.flatnonzero(sums >= total * _HEAVY)
    exact = rows[heavy].astype(np.float64)
    return total + float((np.vecdot(exact, exact) - sums[heavy]).sum())


def _real(leaf: Any, ord: float) -> Any:
    """Flatten an array; a complex one to its parts for the 2-norm, else to absolute values."""
    flat = np.asarray(leaf).ravel(order="K")
    if flat.dtype.kind != "c":
        return flat
    return flat.view(flat.real.dtype) if ord == 2 else sizes_of(Namespace, flat)


def _blocks(flat: Any) -> Iterator[Any]:
    """Yield the array in float64, in blocks that fit the cache."""
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK].astype(np.float64)


def _dot64(block: Any) -> float:
    return float(np.dot(block, block))


def _norm64(flat: Any) -> float:
    """Return the 2-norm of float64 numbers, scaled by a power of two where squares would leave the range."""
    total = _squares64(flat)
    if flat.size * 2.0**-960 < total < math.inf or math.isnan(total):
        return math.sqrt(total)
    largest = float(np.max(np.abs(flat)))
    if not 0 < largest < math.inf:
        return largest
    exponent = math.frexp(largest)[1]
    return float(np.ldexp(math.sqrt(_squares64(np.ldexp(flat, -exponent))), exponent))


def _squares64(flat: Any) -> float:
    """Return the sum of squares: of short rows, which are then added pairwise."""
    cut = flat.size // _SHORT_ROW * _SHORT_ROW
    rows = flat[:cut].reshape(-1, _SHORT_ROW)
    return float(np.add.reduce(np.vecdot(rows, rows))) + _dot64(flat[cut:])


def _other_norm(flat: Any, ord: float) -> float:
    largest = float(np.max(np.abs(flat)))
    if ord == math.inf or not 0 < largest < math.inf:
        return largest
    if ord == 1:
        return math.fsum(float(np.add.reduce(np.abs(block))) for block in _blocks(flat))
    powers = (float(np.add.reduce((np.abs(block) / largest) ** ord)) for block in _blocks(flat))
    return float(largest * math.fsum(powers) ** (1 / ord))
