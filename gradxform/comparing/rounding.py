"""Which differences rounding explains: by the size that an arithmetic leaves, and how it grows over steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradxform.comparing.constants import CANCELLED, GROWN, GROWTH, LAYERS, SUMS, UNLIKE
from gradxform.comparing.measuring import Distance


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
