"""Trees of gradients with one structure: nested, with None, 0-d and empty leaves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from gradxform.proof.registry import COMPLEX
from gradxform.proof.values import RANDOM, Array, Values, range_of

Tree = Any
"""A tree of NumPy arrays and None."""
Shapes = Any
"""A tree of `Leaf` and None."""


class Leaf:
    """The shape and dtype of a gradient; not a tuple, which would be a tree node."""

    def __init__(self, dtype: str, *shape: int) -> None:
        """A gradient without values."""
        self.dtype, self.shape = dtype, shape

    def holding(self, values: Array) -> Array:
        """The values in this dtype."""
        if self.dtype == "bfloat16":
            importlib.import_module("ml_dtypes")
        return np.asarray(values).astype(self.dtype)


def nested(dtype: str, matrix: bool = False) -> Shapes:
    """Seven leaves, or those with at least two axes."""
    tree: dict[str, Any] = {
        "a": {"v": Leaf(dtype, 3, 5), "w": Leaf(dtype, 37, 41)},
        "b": [Leaf(dtype, 2, 3, 4), None],
        "c": (Leaf(dtype, 301), Leaf(dtype), Leaf(dtype, 0, 3), {"w": Leaf(dtype, 7)}),
    }
    return {name: tree[name] for name in "ab"} if matrix else tree


def small(dtype: str, matrix: bool = False) -> Shapes:
    """Three leaves, for compilers that take a second for each."""
    last = Leaf(dtype, 2, 3, 4) if matrix else Leaf(dtype)
    return {"a": {"v": Leaf(dtype, 3, 5), "w": Leaf(dtype, 37, 41)}, "b": [last, None]}


def least(dtype: str, second: str = "") -> Shapes:
    """Two leaves, which may be of two dtypes, for compilers that take seconds for each."""
    return {"a": {"v": Leaf(dtype, 3, 5), "w": Leaf(second or dtype, 37, 41)}}


def random(shapes: Shapes, kind: str, seed: int = 0) -> Tree:
    """Random numbers of one kind."""
    rng = np.random.default_rng(seed)

    def fill(leaf: Leaf) -> Array:
        parts = [RANDOM[kind].kind(rng, leaf.shape, range_of(leaf.dtype)) for _ in range(1 + (leaf.dtype in COMPLEX))]
        return leaf.holding(parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1])

    return optree.tree_map(fill, shapes)


def chosen(shapes: Shapes, values_of: Callable[[str], Values], turned: bool = False) -> Tree:
    """Zeros, except for the first numbers of the first two leaves that are large enough.

    If turned, the two leaves swap their numbers.
    """
    left = [1, 0] if turned else [0, 1]

    def fill(leaf: Leaf) -> Array:
        flat = np.zeros(int(np.prod(leaf.shape)))
        given = values_of(leaf.dtype)[left[0]] if left else ()
        if left and flat.size >= max(1, len(given)):
            flat[: len(given)] = given
            del left[0]
        return leaf.holding(flat.reshape(leaf.shape))

    return optree.tree_map(fill, shapes)


def dtypes(shapes: Shapes) -> set[str]:
    """The leaves' dtypes."""
    return {leaf.dtype for leaf in optree.tree_leaves(shapes)}


def gradients(dtype: str, seed: int = 0, matrix: bool = False) -> Tree:
    """Normal numbers in seven leaves."""
    return random(nested(dtype, matrix), "normal", seed)


def few(dtype: str, seed: int = 0) -> Tree:
    """Normal numbers in three leaves."""
    return random(small(dtype), "normal", seed)


def size(tree: Tree) -> int:
    """The number of elements."""
    return sum(leaf.size for leaf in optree.tree_leaves(tree))
