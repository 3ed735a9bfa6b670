"""How far two leaves are apart: norms, cosine, relative distance and units in the last place."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.layouts import few, reals
from gradxform.proof.ulp import ulps
from gradxform.recording.reading import Recording

_CHUNK, _FEW, _THREADS = 1 << 13, 64, 8
"""Elements that stay in a core's cache while they are measured, and chunks that are too few for threads."""
_SAMPLE, _LEAVES = 1 << 12, 1 << 8
"""Elements of a leaf, and leaves, that are enough to tell the format that a run computes in."""
_SQUARED = 400
"""Powers of two beyond which float64 numbers are scaled: sums of squares of a thousandth of them still are numbers."""
_VALUES = 8
"""Values that are enough to tell a format: of 8 in float32, all end in 13 zero bits once in 2 ** 104."""
_DIGITS = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3, "complex128": 4, "complex64": 5}
"""From fine to coarse; of two dtypes, units are those of the coarser one, and complex ones if one is complex."""


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
        """The number that makes A most like B."""
        return self.ratio * self.cosine if self.norms[0] else float(not self.norms[1])

    @property
    def left(self) -> float:
        """The part of B, relative to it, that no number times A explains."""
        return math.sqrt(max(0.0, 1.0 - self.cosine**2))


ABSENT = Distance((0.0, 0.0), (0.0, 0.0), (0, 0), 1.0, 0.0, 0.0, 0, 0)
"""Of a leaf that one of two runs lacks at a step: no elements, so no difference."""


def distance(a: Any, b: Any) -> Distance:
    """Measure two arrays of one shape."""
    return distances([(a, b)])[0]


def distances(pairs: Iterable[Sequence[Any]]) -> list[Distance]:
    """Measure pairs of arrays of one shape; small ones of one size together, as rows of one array."""
    groups: dict[Any, list[tuple[int, Any, Any]]] = {}
    found: dict[int, Distance] = {}
    for place, (a, b) in enumerate(pairs):
        if a.shape != b.shape:
            raise ValueError(f"two leaves of shapes {a.shape} and {b.shape} were paired; correct the map")
        key = a.size, a.dtype, b.dtype
        groups.setdefault(key, []).append((place, a.reshape(-1), b.reshape(-1)))
        if len(groups[key]) * (a.size + 1) > _CHUNK:
            found |= _rows(groups.pop(key))
    for group in groups.values():
        found |= _rows(group)
    return [found[place] for place in range(len(found))]


def _rows(group: list[tuple[int, Any, Any]]) -> dict[int, Distance]:
    """The distances of arrays of one size by their places, in threads where they are large."""
    places, *sides = zip(*group, strict=True)
    a, b = (side[0][None] if len(side) == 1 else np.stack(side) for side in sides)
    kind = max(a.dtype, b.dtype, key=lambda dtype: _DIGITS.get(dtype.name, 0))
    size, power = a.shape[1], np.maximum(_power(a), _power(b))

    def part(start: int) -> Any:
        chunk = slice(start, start + _CHUNK)
        return _measured(a[:, chunk], b[:, chunk], kind, power)

    starts = range(0, max(size, 1), _CHUNK)
    with ThreadPoolExecutor(_THREADS) as threads:  # which starts none before it is used
        parts = np.array(list((threads.map if len(starts) > _FEW else map)(part, starts)))
    aa, bb, ab, squares, *lost = parts[:, :7].sum(0)
    ulp, *largest = parts[:, 7:].max(0)
    with np.errstate(all="ignore"):
        cosine = np.where((aa == 0) | (bb == 0), aa == bb, ab / (np.sqrt(aa) * np.sqrt(bb)))
    *norms, difference = np.ldexp(np.sqrt([aa, bb, squares]), power[:, 0])
    both: Any = (zip(*np.array(x).tolist(), strict=True) for x in (norms, largest, np.int64(lost[:2])))
    ones = (x.tolist() for x in (cosine, difference, ulp, np.int64(lost[2]), np.full(len(places), size)))
    return dict(zip(places, map(Distance._make, zip(*both, *ones, strict=True)), strict=True))


def _power(x: Any) -> Any:
    """The powers of two that rows in float64 are divided by, so that their squares are numbers; mostly 0."""
    if x.dtype not in (np.float64, np.complex128):
        return np.zeros((len(x), 1), np.int64)
    wide = np.abs(reals(x))
    power = np.frexp(np.max(wide, axis=1, keepdims=True, where=np.isfinite(wide), initial=0.0))[1]
    return np.where(np.abs(power) > _SQUARED, power, 0)


def _measured(a: Any, b: Any, kind: Any, power: Any) -> Any:
    """Of each row, sums and maxima.

    Sums of squares, of products, of squared differences, and of what is not finite; the largest units and magnitudes.
    """
    with np.errstate(all="ignore"):
        units = np.max(ulps(a.astype(kind), b.astype(kind)), axis=1, initial=0.0)
        wide = np.stack([reals(a), reals(b)])
        finite, lost = np.isfinite(wide), np.zeros((3, len(a)))
        if not finite.all():
            same = (wide[0] == wide[1]) | np.isnan(wide).all(0) | finite.all(0)
            lost = np.sum(~np.stack([*finite, same]), -1)
            wide = np.where(finite, wide, 0.0)
        largest = np.abs(wide).max(-1, initial=0.0)
        wide = np.ldexp(wide, -power) if power.any() else wide
        delta = wide[0] - wide[1]
        return np.array([*np.vecdot(wide, wide), np.vecdot(*wide), np.vecdot(delta, delta), *lost, units, *largest])


def stored_as(recording: Recording, tree: str, step: int) -> str:
    """The coarser format that most elements of a run's float32 leaves are numbers of; empty if there is none."""
    shapes, sizes = recording.shapes(step, tree), Counter[str]()
    for path in heapq.nlargest(_LEAVES, shapes, key=lambda path: math.prod(shapes[path])):
        sizes[stored(recording.read(step, tree, path))] += math.prod(shapes[path])
    return next((name for name, count in sizes.items() if 2 * count > sizes.total()), "")


def stored(x: Any) -> str:
    """The coarser format that a float32 array was rounded to, by its bits: no sum in float32 leaves them zero."""
    if x.dtype != np.float32:
        return ""
    sample = few(x.reshape(-1), _SAMPLE)
    sample = sample[np.isfinite(sample) & (sample != 0)]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.unique(sample).size < _VALUES or not np.mod(sample / np.abs(sample).min(), 1).any():
            return ""  # too few values, or multiples of one: counts, steps of a quantizer
        if not (sample.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        return "float16" if np.array_equal(sample.astype(np.float16).astype(np.float32), sample) else ""
