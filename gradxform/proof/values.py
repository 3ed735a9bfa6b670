"""The numbers that gradients are made of: random ones of every magnitude, and those that libraries get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.rows import COMPLEX

Array = Any
Shape = tuple[int, ...]


class Range(NamedTuple):
    """The exponents of a dtype's normal numbers; of float64, up to 1e300, so that norms have one too."""

    least: int
    greatest: int


RANGES = {
    "float32": Range(-126, 127),
    "float16": Range(-14, 15),
    "bfloat16": Range(-126, 127),
    "float64": Range(-1022, 996),
}
Kind = Callable[[np.random.Generator, Shape, Range], Array]


def _normal(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    return rng.standard_normal(shape) * 1.7


def _heavy(rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    return np.clip(rng.standard_t(1.2, shape), -(2.0**limits.greatest), 2.0**limits.greatest)


def _spread(rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    return _sign(rng, shape) * np.exp2(rng.uniform(limits.least, limits.greatest, shape))


def _uneven(rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    return rng.uniform(1, 2, shape) * 2.0 ** rng.integers(limits.least // 2, limits.greatest // 2)


def _tiny(rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    return _sign(rng, shape) * rng.uniform(1, 2, shape) * 2.0 ** (limits.least + 2)


def _huge(rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    return rng.uniform(-1, 1, shape) * 2.0**limits.greatest


def _within(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    return rng.uniform(-1, 1, shape) * 1e-5


def _sign(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.choice([-1.0, 1.0], shape)


Values = tuple[tuple[float, ...], tuple[float, ...]]


class Random(NamedTuple):
    """A kind of random values, what it is in words, and how many trees of it are measured."""

    kind: Kind
    words: str
    trees: int


RANDOM = {
    "normal": Random(_normal, "normal numbers", 6),
    "heavy tails": Random(_heavy, "Student's t with 1.2 degrees of freedom", 4),
    "all exponents": Random(_spread, "from the smallest to the largest normal number, in even steps of exponent", 4),
    "uneven leaves": Random(_uneven, "each leaf of a magnitude of its own, over half of the exponents", 4),
    "tiny": Random(_tiny, "4 to 8 times the smallest normal number", 2),
    "huge": Random(_huge, "up to half of the largest number, of float64 up to 1e300", 2),
    "within the limit": Random(_within, "so small that no clip is due", 2),
}
HARD = ("zeros", "at the limit", "huge of both signs", "a tiny 3, 4", "1e30", "3e-30", "300", "NaN", "inf")


def hard(name: str, dtype: str) -> Values:
    """Numbers that libraries get wrong: the first of the first two leaves; all others are zero."""
    limits = range_of(dtype)
    huge, tiny = 2.0 ** (limits.greatest - 1), 2.0 ** (limits.least + 6)
    values: dict[str, Values] = {
        "zeros": ((), ()),
        "at the limit": ((0.6, 0.0, 0.8), ()),
        "huge of both signs": ((huge, -huge, 300.0), (huge, 100.0)),
        "a tiny 3, 4": ((3 * tiny, 0.0, 4 * tiny), (tiny,)),
        "1e30": ((1e30,), (3.0,)),
        "3e-30": ((3e-30, 4e-30), ()),
        "300": ((300.0,), (3.0,)),
        "NaN": ((np.nan, 1.0), (2.0,)),
        "inf": ((np.inf, 1.0), (-2.0,)),
    }
    return values[name]


def held(values: Values, dtype: str) -> bool:
    """Whether a dtype has all of these numbers as normal ones."""
    least, greatest = range_of(dtype)
    sizes = [abs(value) for leaf in values for value in leaf]
    return all(2.0**least <= size < 2.0 ** (greatest + 1) for size in sizes if 0 < size < math.inf)


def range_of(dtype: str) -> Range:
    """The exponents of a dtype, or of its parts."""
    return RANGES[COMPLEX.get(dtype, dtype)]
