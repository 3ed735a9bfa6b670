"""How far two leaves are apart: norms, cosine, relative distance and units in the last place."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.ulp import ulps

_CHUNK, _FEW = 1 << 13, 64
"""Elements that stay in a core's cache while they are measured, and chunks that are too few for threads."""
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
    def norms(self) -> tuple[float, float]:
        """The norms in A and B."""
        return self.norm_a, self.norm_b

    @property
    def largest(self) -> tuple[float, float]:
        """The largest magnitudes in A and B."""
        return self.largest_a, self.largest_b

    @property
    def nonfinite(self) -> tuple[int, int]:
        """The elements that are NaN or infinite in A and B."""
        return self.nonfinite_a, self.nonfinite_b

    @property
    def relative(self) -> float:
        """The norm of the difference over the larger norm; 0 for two zeros."""
        scale = max(self.norm_a, self.norm_b)
        return self.difference / scale if scale else 0.0

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

    def part(start: int) -> tuple[float, ...]:
        chunk = slice(start, start + _CHUNK)
        return _measured(a[chunk], b[chunk], kind, start // _CHUNK % every == 0, power)

    starts = range(0, max(a.size, 1), _CHUNK)
    if len(starts) < _FEW:
        parts = list(map(part, starts))
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            parts = list(threads.map(part, starts))
    columns = list(zip(*parts, strict=True))
    aa, bb, ab, squares, lost_a, lost_b, apart = map(sum, columns[:7])
    units, largest_a, largest_b = map(max, columns[7:])
    scale = math.sqrt(aa) * math.sqrt(bb)
    norm_a, norm_b, difference = (float(np.ldexp(math.sqrt(x), power)) for x in (aa, bb, squares))
    cosine = ab / scale if scale else float(norm_a == norm_b)
    lost, formats = (int(lost_a), int(lost_b)), (stored(a), stored(b))
    return Distance(norm_a, norm_b, cosine, difference, units, largest_a, largest_b, *lost, a.size, int(apart), formats)


def _power(x: Any) -> int:
    """The power of two that float64 numbers are divided by, so that their squares are numbers; mostly 0."""
    if x.dtype not in (np.float64, np.complex128):
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
    with np.errstate(over="ignore", invalid="ignore"):
        few = sample.size < _VALUES or np.unique(sample).size < _VALUES
        if few or not np.mod(sample / np.abs(sample).min(), 1).any():
            return ""  # too few values, or multiples of one: counts, steps of a quantizer
        if not (sample.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        return "float16" if np.array_equal(sample.astype(np.float16).astype(np.float32), sample) else ""


def _coarser(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    if one.kind == "c" or other.kind == "c":
        return np.dtype(np.result_type(one, other))
    return one if one == other else max(one, other, key=lambda dtype: _DIGITS.get(dtype.name, 0))


def _measured(a: Any, b: Any, kind: np.dtype[Any], with_ulps: bool, power: int) -> tuple[float, ...]:
    """Sums of squares, of products, of squared differences and of what is not finite; units, largest magnitudes."""
    with np.errstate(all="ignore"):
        wide_a, wide_b = _wide(a), _wide(b)
        units = float(np.max(ulps(a.astype(kind), b.astype(kind)), initial=0.0)) if with_ulps else 0.0
        finite_a, finite_b = np.isfinite(wide_a), np.isfinite(wide_b)
        lost_a, lost_b, apart = int((~finite_a).sum()), int((~finite_b).sum()), 0
        if lost_a or lost_b:
            same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
            apart = int((~(finite_a & finite_b) & ~same).sum())
            wide_a, wide_b = np.where(finite_a, wide_a, 0.0), np.where(finite_b, wide_b, 0.0)
        largest = (float(np.abs(x).max(initial=0.0)) for x in (wide_a, wide_b))
        if power:
            wide_a, wide_b = np.ldexp(wide_a, -power), np.ldexp(wide_b, -power)
        delta = wide_a - wide_b
        sums = (float(x @ y) for x, y in ((wide_a, wide_a), (wide_b, wide_b), (wide_a, wide_b), (delta, delta)))
        return *sums, lost_a, lost_b, apart, units, *largest


def _wide(x: Any) -> Any:
    """Real numbers in float64; of complex ones, their parts."""
    return x.astype(np.complex128).view(np.float64) if x.dtype.kind == "c" else x.astype(np.float64)


def of_norms(a: tuple[float, float], b: tuple[float, float], size: int) -> Distance:
    """What can be said of two leaves of which a norm and the largest magnitude were recorded: no angle, no units."""
    lost_a, lost_b = (size * (not np.isfinite(norm)) for norm, _ in (a, b))
    apart = size * bool((lost_a or lost_b) and not np.array_equal(a[0], b[0], equal_nan=True))
    norm_a, norm_b = (norm if np.isfinite(norm) else 0.0 for norm, _ in (a, b))
    gap, unknown = abs(norm_a - norm_b), float("nan")
    return Distance(norm_a, norm_b, unknown, gap, unknown, a[1], b[1], lost_a, lost_b, size, apart)
