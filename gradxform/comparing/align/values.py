"""Leaves whose values are equal, in some layout: what proves most after equal paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.align.parts import Leaf
from gradxform.comparing.constants import CHANCE, LEAST_VALUES, SAME_VALUES
from gradxform.comparing.layouts import SAME, Layout, Shape, candidates, reals

Values = Callable[[Leaf, Layout | None], Any]
"""The values of a leaf, or of a part of it at another place; None where there are none."""
_SAMPLE = 2048
_MOST_PAIRS = 1 << 23
"""Pairs of leaves of one shape that are compared one by one."""


def is_constant(array: Any) -> bool:
    """Whether an array is as an initializer of constants leaves it, or too small: equal ones prove nothing."""
    flat = np.asarray(array).reshape(-1)
    return flat.size < LEAST_VALUES or not np.isfinite(flat[0]) or bool((flat == flat[0]).all())


def equal(a: Sequence[Leaf], b: Sequence[Leaf], read_a: Values, read_b: Values) -> dict[Leaf, set[Leaf]]:
    """Which leaves have equal values, but for a factor, by cosines of samples of the elements.

    The fewer elements and the more leaves, the nearer to 1 a cosine must be: among 1,500 leaves of four random elements
    each is like some other one by chance.

    Args:
        a: leaves of one recording.
        b: leaves of the other.
        read_a: reads the former.
        read_b: reads the latter.
    """
    shapes: dict[Shape, list[Shape]] = {}  # of A, and those of B that they fit
    for leaf in a:
        if leaf.shape not in shapes:
            shapes[leaf.shape] = [shape for shape in {other.shape for other in b} if any(candidates(leaf.shape, shape))]
    wanted = {shape: _places(shape) for found in shapes.values() for shape in found}
    samples: dict[tuple[Shape, int], tuple[list[tuple[Leaf, Any]], list[tuple[Leaf, Any]]]] = {}
    for side, leaves, read in ((0, a, read_a), (1, b, read_b)):
        for leaf in leaves:
            ends = shapes[leaf.shape] if side == 0 else [shape for shape in [leaf.shape] if shape in wanted]
            array = read(leaf, None) if ends else None
            if array is None or is_constant(array):
                continue
            for shape in ends:
                for layout in candidates(leaf.shape, shape) if side == 0 else [SAME]:
                    sample = reals(layout.of(array)[wanted[shape]])
                    kind = shape, sample.size  # complex ones have twice as many
                    samples.setdefault(kind, ([], []))[side].append((leaf, sample))
    found: dict[Leaf, set[Leaf]] = {}
    for sides in (sides for sides in samples.values() if all(sides)):
        (ones, rows_a), (others, rows_b) = (
            (leaves, _units(arrays)) for leaves, arrays in (zip(*x, strict=True) for x in sides)
        )
        for i, j in _near(rows_a, rows_b):
            found.setdefault(ones[i], set()).add(others[j])
    return found


def _near(a: Any, b: Any) -> list[tuple[int, int]]:
    """The places of rows that have the direction of one another, or nearly all of them if there are very many."""
    if len(a) * len(b) <= _MOST_PAIRS:
        by_chance = (CHANCE / max(len(a) * len(b), 1)) ** (2 / (a.shape[1] - 1))  # 1 - cosine**2
        least = max(SAME_VALUES, np.sqrt(1 - min(by_chance, 1.0)))
        return [(int(i), int(j)) for i, j in np.argwhere(np.abs(a @ b.T) > least)]
    buckets: dict[bytes, list[int]] = {}
    for j, row in enumerate(_rounded(b)):
        buckets.setdefault(bytes(row), []).append(j)
    found = [(i, j) for i, row in enumerate(_rounded(a)) for j in buckets.get(bytes(row), ())]
    if not found:
        return []
    left, others = (np.setdiff1d(np.arange(len(rows)), [pair[k] for pair in found]) for k, rows in enumerate((a, b)))
    return found + [(int(left[i]), int(others[j])) for i, j in _near(a[left], b[others])]  # rounded the other way


def _rounded(rows: Any) -> Any:
    """Two digits or so of samples, whatever their sign: what many leaves are told apart by, without comparing all."""
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
    return np.round(rows * np.sign(largest), 3) + 0.0


def _places(shape: Shape) -> Any:
    """Indices of some elements of an array, the same ones each time."""
    size = int(np.prod(shape, dtype=np.int64))
    flat = np.arange(size) if size <= _SAMPLE else np.random.default_rng(0).integers(0, size, _SAMPLE)
    return np.unravel_index(flat, shape) if shape else ()


def _units(samples: Sequence[Any]) -> Any:
    """Samples as rows of length 1; zeros where one is not finite."""
    rows = np.stack(samples)
    with np.errstate(all="ignore"):
        rows = rows / np.abs(rows).max(1, keepdims=True, initial=0.0)
        rows = rows / np.sqrt(np.vecdot(rows, rows))[:, None]
    return np.where(np.isfinite(rows).all(1, keepdims=True), rows, 0.0)
