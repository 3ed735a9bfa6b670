"""The values of test gradients: random numbers of every magnitude, and edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradxform.proof.registry import COMPLEX

Array = Any
Shape = tuple[int, ...]


class Range(NamedTuple):
    """The exponents of a dtype's normal numbers. For float64 up to 1e300, so that norms do not overflow."""

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
    """A kind of random values, its description and the number of trees."""

    kind: Kind
    words: str
    trees: int


RANDOM = {
    "normal": Random(_normal, "normally distributed", 6),
    "heavy tails": Random(_heavy, "Student's t with 1.2 degrees of freedom", 4),
    "all exponents": Random(_spread, "all normal numbers, uniform in the exponent", 4),
    "uneven leaves": Random(_uneven, "each leaf with its own magnitude, over half of the exponents", 4),
    "tiny": Random(_tiny, "4 to 8 times the smallest normal number", 2),
    "huge": Random(_huge, "up to half of the largest number (float64: up to 1e300)", 2),
    "within the limit": Random(_within, "below every limit", 2),
}
HARD = ("zeros", "at the limit", "huge of both signs", "a tiny 3, 4", "1e30", "3e-30", "300", "NaN", "inf")


def hard(name: str, dtype: str) -> Values:
    """Edge cases: the first values of the first two leaves; the rest is zero."""
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
    """Whether all these numbers are normal numbers of a dtype."""
    least, greatest = range_of(dtype)
    sizes = [abs(value) for leaf in values for value in leaf]
    return all(2.0**least <= size < 2.0 ** (greatest + 1) for size in sizes if 0 < size < math.inf)


def range_of(dtype: str) -> Range:
    """The exponents of a dtype, or of its real and imaginary parts."""
    return RANGES[COMPLEX.get(dtype, dtype)]
