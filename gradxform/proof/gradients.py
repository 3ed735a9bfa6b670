"""Gradients for tests: random numbers of every magnitude and edge cases, in trees with None, 0-d and empty leaves."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import optree

from gradxform.proof.registry import COMPLEX

# --- values ----------------------------------------------------------------------------------------------------------

Array = Any
Shape = tuple[int, ...]


Range = tuple[int, int]
"""The exponents of a dtype's least and greatest normal numbers."""
RANGES = {"float32": (-126, 127), "float16": (-14, 15), "bfloat16": (-126, 127), "float64": (-1022, 996)}
"""For float64 up to 1e300, so that norms do not overflow."""
RANDOM = ("normal", "heavy tails", "all exponents", "uneven leaves", "tiny", "huge", "within the limit")


def _numbers(kind: str, rng: np.random.Generator, shape: Shape, limits: Range) -> Array:
    """Random numbers of one kind."""
    least, greatest = limits
    most = 2.0**greatest
    match kind:
        case "normal":
            return rng.standard_normal(shape) * 1.7
        case "heavy tails":
            return np.clip(rng.standard_t(1.2, shape), -most, most)
        case "all exponents":
            return rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(least, greatest, shape))
        case "uneven leaves":
            return rng.uniform(1, 2, shape) * 2.0 ** rng.integers(least // 2, greatest // 2)
        case "tiny":
            return rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape) * 2.0 ** (least + 2)
        case "huge":
            return rng.uniform(-1, 1, shape) * most
    return rng.uniform(-1, 1, shape) * 1e-5


Values = tuple[tuple[float, ...], tuple[float, ...]]


def hard(dtype: str) -> dict[str, Values]:
    """Edge cases that a dtype holds in normal numbers: the first values of the first two leaves; the rest is zero."""
    least, greatest = range_of(dtype)
    huge, tiny = 2.0 ** (greatest - 1), 2.0 ** (least + 6)
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

    def held(leaves: Values) -> bool:
        sizes = [abs(value) for leaf in leaves for value in leaf]
        return all(2.0**least <= size < 2.0 ** (greatest + 1) for size in sizes if 0 < size < math.inf)

    return {name: leaves for name, leaves in values.items() if held(leaves)}


def range_of(dtype: str) -> Range:
    """The exponents of a dtype, or of its real and imaginary parts."""
    return RANGES[COMPLEX.get(dtype, dtype)]


# --- trees -----------------------------------------------------------------------------------------------------------

Tree = Any
"""A tree of NumPy arrays and None; where only dtypes and shapes matter, the arrays are zeros."""


def zeros(dtype: str, *shape: int) -> Array:
    """Zeros, also in bfloat16."""
    if dtype == "bfloat16":
        importlib.import_module("ml_dtypes")
    return np.zeros(shape, dtype)


def nested(dtype: str, matrix: bool = False) -> Tree:
    """Seven leaves, or those with at least two axes."""
    tree: dict[str, Any] = {
        "a": {"v": zeros(dtype, 3, 5), "w": zeros(dtype, 37, 41)},
        "b": [zeros(dtype, 2, 3, 4), None],
        "c": (zeros(dtype, 301), zeros(dtype), zeros(dtype, 0, 3), {"w": zeros(dtype, 7)}),
    }
    return {name: tree[name] for name in "ab"} if matrix else tree


def small(dtype: str, matrix: bool = False) -> Tree:
    """Three leaves, for compilers that take a second for each."""
    last = zeros(dtype, 2, 3, 4) if matrix else zeros(dtype)
    return {"a": {"v": zeros(dtype, 3, 5), "w": zeros(dtype, 37, 41)}, "b": [last, None]}


def random(like: Tree, kind: str, seed: int = 0) -> Tree:
    """Random numbers of one kind."""
    rng = np.random.default_rng(seed)

    def fill(leaf: Array) -> Array:
        name = leaf.dtype.name
        parts = [_numbers(kind, rng, leaf.shape, range_of(name)) for _ in range(1 + (name in COMPLEX))]
        return np.asarray(parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]).astype(leaf.dtype)

    return optree.tree_map(fill, like)


def edge(like: Tree, name: str, turned: bool = False, dtype: str = "") -> Tree:
    """Zeros, except for the first numbers of the first two leaves that are large enough: an edge case.

    If turned, the two leaves swap their numbers. They are those of one dtype, or of each leaf's own if it holds them.
    """
    left = [1, 0] if turned else [0, 1]

    def fill(leaf: Array) -> Array:
        flat = np.zeros(leaf.size)
        given = hard(dtype or leaf.dtype.name).get(name, ((), ()))[left[0]] if left else ()
        if left and flat.size >= max(1, len(given)):
            flat[: len(given)] = given
            del left[0]
        return flat.reshape(leaf.shape).astype(leaf.dtype)

    return optree.tree_map(fill, like)
