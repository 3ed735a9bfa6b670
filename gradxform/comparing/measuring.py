"""How far two leaves are apart: norms, cosine, relative distance and units in the last place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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
_VALUES = 8
"""Values that are enough to tell a format: of 8 in float32, all end in 13 zero bits once in 2 ** 104."""
_DIGITS = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3}
"""From fine to coarse; of two dtypes, units are those of the coarser one."""


class Distance(NamedTuple):
    """Two leaves at one step, measured in float64."""

    norm_a: float
    norm_b: float
    dot: float
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
    def cosine(self) -> float:
        """The cosine of the two as vectors; 1 for two zeros."""
        scale = self.norm_a * self.norm_b
        return self.dot / scale if scale else float(self.norm_a == self.norm_b)

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
    kind, about = _coarser(a.dtype, b.dtype), {"size": a.size, "stored": (stored(a), stored(b))}
    every = 16 if a.size > _SLOW_ULPS else 1
    blocks = [(a[i : i + _BLOCK], b[i : i + _BLOCK], kind, every) for i in range(0, a.size, _BLOCK)]
    if len(blocks) < 2:
        return _distance(_of_block(block) for block in blocks)._replace(**about)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return _distance(threads.map(_of_block, blocks))._replace(**about)


def stored(x: Any) -> str:
    """The coarser format that a float32 array was rounded to, by its bits: no sum in float32 leaves them zero."""
    if x.dtype != np.float32:
        return ""
    sample = x[:: max(1, x.size // _SAMPLE)]
    sample = sample[np.isfinite(sample) & (sample != 0)]
    if np.unique(sample).size < _VALUES:
        return ""
    if not (sample.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(sample.astype(np.float16).astype(np.float32), sample) else ""


def _of_block(block: tuple[Any, Any, np.dtype[Any], int]) -> list[float]:
    a, b, kind, every = block
    starts = range(0, a.size, _CHUNK)
    return _sum(_measured(a[i : i + _CHUNK], b[i : i + _CHUNK], kind, (i // _CHUNK) % every == 0) for i in starts)


def _coarser(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    if one.kind == "c" or other.kind == "c":
        return np.dtype(np.result_type(one, other))
    return max(one, other, key=lambda dtype: _DIGITS.get(dtype.name, 0))


def _measured(a: Any, b: Any, kind: np.dtype[Any], with_ulps: bool) -> tuple[float, ...]:
    """Sums of squares, the dot product, that of the difference, units, largest magnitudes and counts of a chunk."""
    with np.errstate(all="ignore"):
        wide_a, wide_b = _wide(a), _wide(b)
        units = 0.0
        if with_ulps:
            alike = (a, b) if a.dtype == b.dtype == kind else (a.astype(kind), b.astype(kind))
            units = float(np.max(ulps(*alike), initial=0.0))
        aa, bb = float(wide_a @ wide_a), float(wide_b @ wide_b)
        lost_a = lost_b = apart = 0
        if not (np.isfinite(aa) and np.isfinite(bb)):
            finite_a, finite_b = np.isfinite(wide_a), np.isfinite(wide_b)
            lost_a, lost_b = int((~finite_a).sum()), int((~finite_b).sum())
            same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
            apart = int((~(finite_a & finite_b) & ~same).sum())
            wide_a, wide_b = np.where(finite_a, wide_a, 0.0), np.where(finite_b, wide_b, 0.0)
            aa, bb = float(wide_a @ wide_a), float(wide_b @ wide_b)
        delta = wide_a - wide_b
        largest = (float(np.abs(x).max(initial=0.0)) for x in (wide_a, wide_b))
        return aa, bb, float(wide_a @ wide_b), float(delta @ delta), units, *largest, lost_a, lost_b, apart


def _wide(x: Any) -> Any:
    """Real numbers in float64; of complex ones, their parts."""
    return x.astype(np.complex128).view(np.float64) if x.dtype.kind == "c" else x.astype(np.float64)


def _sum(parts: Iterable[Sequence[float]]) -> list[float]:
    """Sums, and the largest of what are largest ones."""
    total = [0.0] * 10
    for part in parts:
        for i, value in enumerate(part):
            total[i] = max(total[i], value) if 4 <= i <= 6 else total[i] + value
    return total


def _distance(parts: Iterable[Sequence[float]]) -> Distance:
    aa, bb, dot, squares, units, largest_a, largest_b, lost_a, lost_b, apart = _sum(parts)
    norms = float(np.sqrt(aa)), float(np.sqrt(bb)), dot, float(np.sqrt(squares))
    return Distance(*norms, units, largest_a, largest_b, int(lost_a), int(lost_b), 0, int(apart))


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
