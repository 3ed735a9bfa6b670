"""Which differences rounding explains: by the size that an arithmetic leaves, and how it grows over steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradxform.comparing.measuring import Distance

_GROWTH = 50.0
"""How many times larger rounding may become from one recorded step to the next: training amplifies it."""
_GROWN, _GROWN_BUDGETS = 0.02, 4.0
"""A distance above which growth excuses nothing, at least that many budgets: such runs have parted."""


class Arithmetic(NamedTuple):
    """Numbers of a format, and what they leave of two gradients that are computed in another order."""

    name: str
    unit: float
    """Half the distance of one to the next number."""
    budget: float
    """The relative distance of a leaf that rounding explains at the first step; measured on clean pairs of networks."""
    floor: float
    """The part of the mean magnitude of all elements below which a leaf is noise: sums that cancel."""


ARITHMETICS = (
    Arithmetic("float64", 2.0**-53, 1e-13, 1e-4),
    Arithmetic("float32", 2.0**-24, 3e-5, 1e-2),
    Arithmetic("TF32", 2.0**-11, 1e-2, 3e-2),
    Arithmetic("float16", 2.0**-11, 2e-2, 3e-2),
    Arithmetic("bfloat16", 2.0**-8, 0.15, 0.1),
)
BY_NAME = {arithmetic.name: arithmetic for arithmetic in ARITHMETICS}


def coarsest(dtypes: Iterable[str]) -> Arithmetic:
    """The arithmetic of the coarsest dtype; complex ones count as their parts."""
    parts = {"complex64": "float32", "complex128": "float64"}
    found = [BY_NAME[name] for name in (parts.get(dtype, dtype) for dtype in dtypes) if name in BY_NAME]
    return max(found, key=lambda arithmetic: arithmetic.unit, default=BY_NAME["float32"])


Row = Sequence[Distance | None]
"""The distances of all pairs at one step; None where one of the two lacks the leaf."""


def magnitude(row: Row) -> float:
    """The root mean square of all elements at a step, of the run in which it is smaller."""
    there = [d for d in row if d is not None]
    count = sum(d.size for d in there)
    squares = (
        math.fsum(norm * norm for norm in norms) for norms in zip(*((d.norm_a, d.norm_b) for d in there), strict=True)
    )
    return min((math.sqrt(total / count) for total in squares), default=0.0) if count else 0.0


def scaled(d: Distance, mean: float, arithmetic: Arithmetic) -> float:
    """The difference of a leaf over its norm, or over what counts as noise if the norm is below it."""
    scale = max(d.norm_a, d.norm_b, arithmetic.floor * mean * math.sqrt(d.size))
    return d.difference / scale if scale else 0.0


def is_noise(d: Distance, mean: float, arithmetic: Arithmetic) -> bool:
    """Whether a leaf is so small that its values are rounding."""
    return max(d.norm_a, d.norm_b) < arithmetic.floor * mean * math.sqrt(d.size)


class Judged(NamedTuple):
    """One tree over all steps."""

    arithmetic: Arithmetic
    levels: dict[int, float]
    """The largest scaled distance at each step."""
    allowed: dict[int, float]
    bad: dict[int, list[int]]
    """The pairs that rounding does not explain, at the steps that have some."""

    @property
    def first(self) -> int | None:
        """The first step with such a pair."""
        return next(iter(self.bad), None)


def judge(rows: Mapping[int, Row], arithmetic: Arithmetic, tolerance: float | None = None) -> Judged:
    """Tell rounding from what is not, step by step; with a tolerance, that is the largest distance allowed."""
    levels: dict[int, float] = {}
    allowed: dict[int, float] = {}
    bad: dict[int, list[int]] = {}
    before, grown = 0.0, max(_GROWN, _GROWN_BUDGETS * arithmetic.budget)
    for step, row in rows.items():
        mean = magnitude(row)
        found = {i: scaled(d, mean, arithmetic) for i, d in enumerate(row) if d is not None}
        limit = max(arithmetic.budget, min(grown, _GROWTH * before)) if tolerance is None else tolerance
        lost = [i for i, d in enumerate(row) if d is not None and d.nonfinite_a != d.nonfinite_b]
        over = [i for i, value in found.items() if value > limit]
        levels[step], allowed[step] = max(found.values(), default=0.0), limit
        if over or lost:
            bad[step] = sorted({*over, *lost})
        else:
            before = max(before, levels[step])
    return Judged(arithmetic, levels, allowed, bad)
