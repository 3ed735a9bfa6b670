"""How far two leaves are apart: norms, cosine, relative distance and units in the last place."""

from __future__ import annotations

import heapq
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.layouts import reals
from gradxform.proof.ulp import ulps
from gradxform.recording.reading import Recording

_CHUNK, _FEW = 1 << 13, 64
"""Elements that stay in a core's cache while they are measured, and chunks that are too few for threads."""
_SAMPLE, _LEAVES = 1 << 12, 1 << 8
"""Elements of a leaf, and leaves, that are enough to tell the format that a run computes in."""
_SQUARED = 400
"""Powers of two beyond which float64 numbers are scaled: sums of squares of a thousandth of them still are numbers."""
_VALUES = 8
"""Values that are enough to tell a format: of 8 in float32, all end in 13 zero bits once in 2 ** 104."""
_DIGITS = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3}
"""From fine to coarse; of two dtypes, units are those of the coarser one."""


class Distance(NamedTuple):
    """Two leaves at one step, measured in float64."""

    norms: tuple[float, float]
    """In A and in B."""
    largest: tuple[float, float]
    """The largest magnitudes."""
    nonfinite: tuple[int, int]
    """The elements that are NaN or infinite."""
    cosine: float
    """Of the two as vectors; 1 for two zeros."""
    difference: float
    """The norm of the difference."""
    ulp: float
    """The largest distance of two elements, in units in the last place of the coarser dtype."""
    left: float
    """The part of B, relative to it, that no number times A explains."""
    apart: int
    """Elements that are NaN or infinite in one, and another thing in the other."""
    size: int

    @property
    def relative(self) -> float:
        """The norm of the difference over the larger norm; 0 for two zeros."""
        return self.difference / max(self.norms) if any(self.norms) else 0.0

    @property
    def ratio(self) -> float:
        """The norm in B over the norm in A; 1 for two zeros."""
        a, b = self.norms
        return b / a if a else math.inf if b else 1.0

    @property
    def factor(self) -> float:
        """The number that makes A most like B; of norms alone, their ratio."""
        if not self.norms[0]:
            return float(not self.norms[1])
        return self.ratio * (1.0 if math.isnan(self.cosine) else self.cosine)


def distance(a: Any, b: Any) -> Distance:
    """Measure two arrays of one shape."""
    return next(distances([(a, b)]))[1]


def distances(pairs: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Distance]]:
    """Measure pairs of arrays of one shape: the place of each and its distance, in any order.

    Small ones of one size are measured together, as rows of one array.
    """
    groups: dict[Any, list[tuple[int, Any, Any]]] = {}
    for place, (a, b) in enumerate(pairs):
        if a.shape != b.shape:
            raise ValueError(f"two leaves of shapes {a.shape} and {b.shape} were paired; correct the map")
        key = a.size, a.dtype, b.dtype
        groups.setdefault(key, []).append((place, a.reshape(-1), b.reshape(-1)))
        if len(groups[key]) * (a.size + 1) > _CHUNK:
            yield from _rows(groups.pop(key))
    for group in groups.values():
        yield from _rows(group)


def _rows(group: list[tuple[int, Any, Any]]) -> Iterator[tuple[int, Distance]]:
    """The distances of arrays of one size and their places, in the threads that there are."""
    places, *sides = zip(*group, strict=True)
    a, b = (side[0][None] if len(side) == 1 else np.stack(side) for side in sides)
    size, kind, power = a.shape[1], _coarser(a.dtype, b.dtype), np.maximum(_power(a), _power(b))

    def part(start: int) -> Any:
        chunk = slice(start, start + _CHUNK)
        return _measured(a[:, chunk], b[:, chunk], kind, power)

    starts = range(0, max(size, 1), _CHUNK)
    if len(starts) < _FEW:
        parts = np.array(list(map(part, starts)))
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            parts = np.array(list(threads.map(part, starts)))
    aa, bb, ab, squares, left, *lost, apart = parts[:, :8].sum(0)
    ulp, *largest = parts[:, 8:].max(0)
    with np.errstate(all="ignore"):
        parted = parts[:, 0] * (parts[:, 2] / parts[:, 0] - ab / aa) ** 2  # chunks have factors of their own
        left = np.sqrt(left + np.nansum(parted, 0)) / np.sqrt(bb)
        cosine = ab / (np.sqrt(aa) * np.sqrt(bb))
    alike, one_is_zero = aa == bb, (aa == 0) | (bb == 0)
    cosine, left = (np.where(one_is_zero, x, y) for x, y in ((alike, cosine), (~alike, left)))
    *norms, difference = np.ldexp(np.sqrt([aa, bb, squares]), power[:, 0])
    counted = [np.array(x, np.int64) for x in (*lost, apart)]
    twos = [zip(*(side.tolist() for side in x), strict=True) for x in (norms, largest, counted[:2])]
    ones = (x.tolist() for x in (cosine, difference, ulp, left, counted[2]))
    for place, *numbers in zip(places, *twos, *ones, strict=True):
        yield place, Distance._make((*numbers, size))


def _power(x: Any) -> Any:
    """The powers of two that rows in float64 are divided by, so that their squares are numbers; mostly 0."""
    if x.dtype not in (np.float64, np.complex128):
        return np.zeros((len(x), 1), np.int64)
    wide = np.abs(reals(x))
    power = np.frexp(np.max(wide, axis=1, keepdims=True, where=np.isfinite(wide), initial=0.0))[1]
    return np.where(np.abs(power) > _SQUARED, power, 0)


def stored_as(recording: Recording, tree: str, step: int) -> str:
    """The coarser format that most elements of a run's float32 leaves are numbers of; empty if there is none."""
    sizes = Counter[str]()
    shapes = {path: math.prod(shape) for path, shape in recording.shapes(step, tree).items()}
    for path in heapq.nlargest(_LEAVES, shapes, key=lambda path: shapes[path]):
        sizes[stored(recording.read(step, tree, path))] += shapes[path]
    ((name, count),) = sizes.most_common(1) or [("", 0)]
    return name if 2 * count > sizes.total() else ""


def stored(x: Any) -> str:
    """The coarser format that a float32 array was rounded to, by its bits: no sum in float32 leaves them zero."""
    if x.dtype != np.float32:
        return ""
    x = x.reshape(-1)
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


def _measured(a: Any, b: Any, kind: np.dtype[Any], power: Any) -> Any:
    """Of each row, sums and maxima.

    Sums of squares, of products, of squared differences, of squares that no factor explains, and of what is not finite;
    the largest units and magnitudes.
    """
    with np.errstate(all="ignore"):
        wide_a, wide_b, none = reals(a), reals(b), np.zeros(len(a))
        units = np.max(ulps(a.astype(kind), b.astype(kind)), axis=1, initial=0.0)
        finite_a, finite_b = np.isfinite(wide_a), np.isfinite(wide_b)
        lost_a = lost_b = apart = none
        if not (finite_a.all() and finite_b.all()):
            same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
            lost_a, lost_b, apart = ((~x).sum(1) for x in (finite_a, finite_b, same | (finite_a & finite_b)))
            wide_a, wide_b = np.where(finite_a, wide_a, 0.0), np.where(finite_b, wide_b, 0.0)
        largest = (np.abs(x).max(axis=1, initial=0.0) for x in (wide_a, wide_b))
        if power.any():
            wide_a, wide_b = np.ldexp(wide_a, -power), np.ldexp(wide_b, -power)
        aa, bb, ab = (np.vecdot(x, y) for x, y in ((wide_a, wide_a), (wide_b, wide_b), (wide_a, wide_b)))
        rest = wide_b - np.nan_to_num(ab / aa)[:, None] * wide_a
        delta = wide_a - wide_b
        return np.array(
            [aa, bb, ab, np.vecdot(delta, delta), np.vecdot(rest, rest), lost_a, lost_b, apart, units, *largest]
        )


def of_norms(a: tuple[float, float], b: tuple[float, float], size: int) -> Distance:
    """What can be said of two leaves of which a norm and the largest magnitude were recorded: no angle, no units."""
    one, other = (norm if np.isfinite(norm) else 0.0 for norm, _ in (a, b))
    lost = size * (not np.isfinite(a[0])), size * (not np.isfinite(b[0]))
    apart = size * (any(lost) and not np.array_equal(a[0], b[0], equal_nan=True))
    left, gap, unknown = float((one == 0) != (other == 0)), abs(one - other), math.nan
    return Distance((one, other), (a[1], b[1]), lost, unknown, gap, unknown, left, apart, size)
