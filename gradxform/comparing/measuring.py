"""How far two leaves are apart: norms, cosine, relative distance and units in the last place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.ulp import ulps

_CHUNK = 1 << 13
"""Elements that stay in a core's cache while they are measured, and are too few for threads of BLAS."""
_BLOCK = 1 << 19
"""Elements that a thread takes at a time."""
_SLOW_ULPS = 1 << 24
"""Elements above which units in the last place are counted in every 16th chunk alone."""
_SAMPLE = 1 << 12
_SQUARED = 400
"""Powers of two beyond which float64 numbers are scaled: sums of squares of a thousandth of them still are numbers."""
_VALUES = 8
"""Values that are enough to tell a format: of 8 in float32, all end in 13 zero bits once in 2 ** 104."""
_DIGITS = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3}
"""From fine to coarse; of two dtypes, units are those of the coarser one."""


class Distance(NamedTuple):
    """Two leaves at one step, measured in float64."""

    norm_a: float
    norm_b: float
    cosine: float
    """Of the two as vectors; 1 for two zeros."""
    difference: float
    """The norm of the difference."""
    ulp: float
    """The largest distance of two elements, in units in the last place of the coarser dtype."""
    largest_a: float
    largest_b: float
    nonfinite_a: int
    nonfinite_b: int
    size: int
    apart: int = 0
    """Elements that are NaN or infinite in one, and another thing in the other."""
    stored: tuple[str, str] = ("", "")
    """The coarser format that all elements of a float32 array are numbers of, if there is one."""

    @property
    def relative(self) -> float:
        """The norm of the difference over the larger norm; 0 for two zeros."""
        scale = max(self.norm_a, self.norm_b)
        return self.difference / scale if scale else 0.0

    @property
    def dot(self) -> float:
        """The dot product; infinite where it is no number in float64."""
        return self.cosine * self.norm_a * self.norm_b

    @property
    def ratio(self) -> float:
        """The norm in B over the norm in A; 1 for two zeros."""
        if self.norm_a == 0:
            return 1.0 if self.norm_b == 0 else float("inf")
        return self.norm_b / self.norm_a


def distance(a: Any, b: Any) -> Distance:
    """Measure two arrays of one shape, in the threads that there are."""
    if a.shape != b.shape:
        raise ValueError(f"two leaves of shapes {a.shape} and {b.shape} were paired; correct the map")
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in (a, b))
    kind, power = _coarser(a.dtype, b.dtype), max(_power(a), _power(b))
    every = 16 if a.size > _SLOW_ULPS else 1
    blocks = [(a[i : i + _BLOCK], b[i : i + _BLOCK], kind, every, power) for i in range(0, a.size, _BLOCK)]
    if len(blocks) < 2:
        total = _sum(map(_of_block, blocks))
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            total = _sum(threads.map(_of_block, blocks))
    norm_a, norm_b, difference = (float(np.sqrt(square)) for square in (total.aa, total.bb, total.squares))
    cosine = total.ab / (norm_a * norm_b) if norm_a * norm_b else float(norm_a == norm_b)
    norms = (float(np.ldexp(norm, power)) for norm in (norm_a, norm_b, difference))
    return Distance(
        next(norms),
        next(norms),
        cosine,
        next(norms),
        total.units,
        total.largest_a,
        total.largest_b,
        int(total.lost_a),
        int(total.lost_b),
        a.size,
        int(total.apart),
        (stored(a), stored(b)),
    )


def _power(x: Any) -> int:
    """The power of two that float64 numbers are divided by, so that their squares are numbers; mostly 0."""
    if x.dtype.name not in ("float64", "complex128"):
        return 0
    wide = np.abs(_wide(x))
    power = int(np.frexp(np.max(wide, where=np.isfinite(wide), initial=0.0))[1])
    return power if abs(power) > _SQUARED else 0


def stored(x: Any) -> str:
    """The coarser format that a float32 array was rounded to, by its bits: no sum in float32 leaves them zero."""
    if x.dtype != np.float32:
        return ""
    sample = x[:: max(1, x.size // _SAMPLE)]
    sample = sample[np.isfinite(sample) & (sample != 0)]
    if np.unique(sample).size < _VALUES or not np.mod(sample / np.abs(sample).min(), 1).any():
        return ""  # too few values, or multiples of one: counts, steps of a quantizer
    if not (sample.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(sample.astype(np.float16).astype(np.float32), sample) else ""


class _Sums(NamedTuple):
    """Of a chunk: sums of squares, of products and of squared differences, the largest magnitudes, counts."""

    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0
    squares: float = 0.0
    lost_a: int = 0
    lost_b: int = 0
    apart: int = 0
    units: float = 0.0
    largest_a: float = 0.0
    largest_b: float = 0.0


def _of_block(block: tuple[Any, Any, np.dtype[Any], int, int]) -> _Sums:
    a, b, kind, every, power = block
    starts = range(0, a.size, _CHUNK)
    return _sum(
        _measured(a[i : i + _CHUNK], b[i : i + _CHUNK], kind, (i // _CHUNK) % every == 0, power) for i in starts
    )


def _sum(parts: Iterable[_Sums]) -> _Sums:
    """Sums, and the largest of what are largest ones."""
    columns = list(zip(*parts, strict=True)) or [(0.0,)] * len(_Sums._fields)
    return _Sums(*(sum(column) for column in columns[:7]), *(max(column) for column in columns[7:]))


def _coarser(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    if one.kind == "c" or other.kind == "c":
        return np.dtype(np.result_type(one, other))
    return max(one, other, key=lambda dtype: _DIGITS.get(dtype.name, 0))


def _measured(a: Any, b: Any, kind: np.dtype[Any], with_ulps: bool, power: int) -> _Sums:
    with np.errstate(all="ignore"):
        wide_a, wide_b = _wide(a), _wide(b)
        units = 0.0
        if with_ulps:
            alike = (a, b) if a.dtype == b.dtype == kind else (a.astype(kind), b.astype(kind))
            units = float(np.max(ulps(*alike), initial=0.0))
        finite_a, finite_b = np.isfinite(wide_a), np.isfinite(wide_b)
        lost_a, lost_b = int((~finite_a).sum()), int((~finite_b).sum())
        apart = 0
        if lost_a or lost_b:
            same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
            apart = int((~(finite_a & finite_b) & ~same).sum())
            wide_a, wide_b = np.where(finite_a, wide_a, 0.0), np.where(finite_b, wide_b, 0.0)
        largest = (float(np.abs(x).max(initial=0.0)) for x in (wide_a, wide_b))
        if power:
            wide_a, wide_b = np.ldexp(wide_a, -power), np.ldexp(wide_b, -power)
        delta = wide_a - wide_b
        sums = (float(x @ y) for x, y in ((wide_a, wide_a), (wide_b, wide_b), (wide_a, wide_b), (delta, delta)))
        return _Sums(*sums, lost_a, lost_b, apart, units, *largest)


def _wide(x: Any) -> Any:
    """Real numbers in float64; of complex ones, their parts."""
    return x.astype(np.complex128).view(np.float64) if x.dtype.kind == "c" else x.astype(np.float64)


def of_norms(a: Any, b: Any, size: int) -> Distance:
    """What can be said of two leaves of which a norm and the largest magnitude were recorded: no angle, no units."""
    (norm_a, largest_a), (norm_b, largest_b) = map(float, a), map(float, b)
    lost = [size * (not np.isfinite(norm)) for norm in (norm_a, norm_b)]
    apart = size * (any(lost) and not np.array_equal(norm_a, norm_b, equal_nan=True))
    norm_a, norm_b = (norm if np.isfinite(norm) else 0.0 for norm in (norm_a, norm_b))
    unknown = float("nan")
    return Distance(
        norm_a, norm_b, unknown, abs(norm_a - norm_b), unknown, largest_a, largest_b, lost[0], lost[1], size, apart
    )
