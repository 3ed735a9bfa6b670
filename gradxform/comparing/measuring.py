"""How far two leaves are apart, and which differences rounding explains: by their size, and how it grows over steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import CANCELLED, GROWN, GROWTH, LAYERS, SUMS, UNLIKE
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
        units = np.max(ulps(a.astype(kind, copy=False), b.astype(kind, copy=False)), axis=1, initial=0.0)
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
    for path in sorted(shapes, key=lambda path: -math.prod(shapes[path]))[:_LEAVES]:
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


# --- what rounding explains -------------------------------------------------------------------------------------------


class Arithmetic(NamedTuple):
    """Numbers of a format, and what they leave of two gradients that are computed in another order."""

    name: str
    unit: float
    """Half the distance of one to the next number."""
    budget: float
    """The relative distance of a leaf that rounding explains at the first step."""

    @property
    def grown(self) -> float:
        """The relative distance above which runs have parted, even if rounding has grown to it."""
        return max(self.budget, self.unit**GROWN)


ARITHMETICS = (
    Arithmetic("float64", 2.0**-53, 2.0**-53 * SUMS),
    Arithmetic("float32", 2.0**-24, 2.0**-24 * SUMS),
    Arithmetic("TF32", 2.0**-11, 2.0**-11 * LAYERS),
    Arithmetic("float16", 2.0**-11, 2.0**-11 * LAYERS),
    Arithmetic("bfloat16", 2.0**-8, 2.0**-8 * LAYERS),
    Arithmetic("float8_e4m3fn", 2.0**-4, 0.5),
    Arithmetic("float8_e5m2", 2.0**-3, 0.5),
)
BY_NAME = {arithmetic.name: arithmetic for arithmetic in ARITHMETICS}


def coarsest(dtypes: Iterable[str]) -> Arithmetic:
    """The arithmetic of the coarsest dtype; complex ones count as their parts."""
    parts = {"complex64": "float32", "complex128": "float64"}
    found = [BY_NAME[name] for name in (parts.get(dtype, dtype) for dtype in dtypes) if name in BY_NAME]
    return max(found, key=lambda arithmetic: arithmetic.unit, default=BY_NAME["float32"])


Row = Sequence[Distance]
"""The distances of all pairs at one step; `ABSENT` where one of the two lacks the leaf."""


def magnitude(row: Row) -> float:
    """The root mean square of all elements at a step, of the run in which it is smaller."""
    count = sum(d.size for d in row)
    return min(math.hypot(*(d.norms[place] for d in row)) for place in (0, 1)) / math.sqrt(max(count, 1))


Scale = tuple[float, float]
"""What a leaf is compared with, as norms of its size: by its module, whose terms a sum that cancels has, and by all."""


def scale_of(row: Row, modules: Sequence[str]) -> list[Scale]:
    """The typical norm of each leaf: by its module if that has others, and by all leaves."""
    mean, siblings = magnitude(row), dict[str, list[Distance]]()
    for d, module in zip(row, modules, strict=True):
        siblings.setdefault(module, []).extend([d] * (d.size > 0))
    means = {module: magnitude(ds) if len(ds) > 1 else mean for module, ds in siblings.items()}
    sizes = (math.sqrt(d.size) for d in row)
    return [(means[module] * size, mean * size) for module, size in zip(modules, sizes, strict=True)]


def arithmetic_of(formats: Iterable[str], dtypes: Iterable[str]) -> Arithmetic:
    """The arithmetic that two runs have in common: by their dtypes, or by the bits of most elements in both."""
    declared = coarsest(dtypes)
    kept = [BY_NAME[name] for name in formats if name]
    common = min(kept, key=lambda arithmetic: arithmetic.unit) if len(kept) == 2 else declared
    return max(declared, common, key=lambda arithmetic: arithmetic.unit)


def scaled(d: Distance, near: float) -> float:
    """The difference of a leaf over its norm, or over that of its neighbours if they are larger."""
    scale = max(*d.norms, near)
    return d.difference / scale if scale else 0.0


def is_noise(d: Distance, near: float, whole: float, arithmetic: Arithmetic) -> bool:
    """Whether the values of a leaf are rounding: small, and unlike (such as of a bias before a batch norm)."""
    least, largest = sorted(d.norms)
    typical = max(near, whole)
    halfway = math.sqrt(arithmetic.budget) * typical  # in digits, to its rounding
    unlike = least > 0 and d.cosine**2 < UNLIKE
    if largest <= arithmetic.budget * near or (unlike and largest < halfway):
        return True
    directed = 1 - d.cosine**2 < arithmetic.budget  # a factor, maybe
    cancels = 0 < least < CANCELLED * arithmetic.unit * near
    return cancels and not directed and largest < arithmetic.unit * SUMS * typical


class Judged(NamedTuple):
    """One tree over all steps."""

    arithmetic: Arithmetic
    scaled: dict[int, list[float]]
    """The difference of each pair over its norm, or over that of its neighbours if larger; NaN if that is noise."""
    levels: dict[int, float]
    """The largest of them at each step."""
    allowed: dict[int, float]
    bad: dict[int, list[int]]
    """The pairs that rounding does not explain, at the steps that have some."""

    @property
    def first(self) -> int | None:
        """The first step with such a pair."""
        return next(iter(self.bad), None)


def judge(
    rows: Mapping[int, Row], arithmetic: Arithmetic, tolerance: float | None = None, modules: Sequence[str] = ()
) -> Judged:
    """Tell rounding from what is not, step by step; with a tolerance, that is the largest distance allowed."""
    judged, before = Judged(arithmetic, {}, {}, {}, {}), 0.0
    for step, row in rows.items():
        scales = scale_of(row, modules or [""] * len(row))
        limit = max(arithmetic.budget, min(arithmetic.grown, GROWTH * before)) if tolerance is None else tolerance
        about = zip(row, scales, strict=True)
        found = [math.nan if is_noise(d, *scale, arithmetic) else scaled(d, scale[0]) for d, scale in about]
        bad = [i for i, d in enumerate(row) if d.apart or found[i] > limit]
        judged.scaled[step], judged.allowed[step], judged.levels[step] = found, limit, max(0.0, *found)
        if bad:
            judged.bad[step] = bad
        else:
            before = max(before, judged.levels[step])
    return judged
