"""Leaves whose values are equal, in some layout: what proves most after equal paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.align.parts import Leaf
from gradxform.comparing.constants import LEAST_VALUES, SAME_VALUES
from gradxform.comparing.layouts import SAME, Layout, Shape, candidates, fits, reals

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

    Args:
        a: leaves of one recording.
        b: leaves of the other.
        read_a: reads the former.
        read_b: reads the latter.
    """
    shapes: dict[Shape, list[Shape]] = {}  # of A, and those of B that they fit
    for leaf in a:
        if leaf.shape not in shapes:
            shapes[leaf.shape] = [shape for shape in {other.shape for other in b} if fits(leaf.shape, shape)]
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
                    sample = _unit(layout.of(array)[wanted[shape]])
                    kind = shape, sample.size  # complex ones have twice as many
                    samples.setdefault(kind, ([], []))[side].append((leaf, sample))
    found: dict[Leaf, set[Leaf]] = {}
    for ones, others in samples.values():
        if len(ones) * len(others) > _MOST_PAIRS:
            buckets: dict[bytes, set[Leaf]] = {}
            for leaf, sample in others:
                buckets.setdefault(_rounded(sample), set()).add(leaf)
            for leaf, sample in ones:
                found.setdefault(leaf, set()).update(buckets.get(_rounded(sample), ()))
        elif ones and others:
            matrix = np.abs(np.stack([x for _, x in ones]) @ np.stack([x for _, x in others]).T) > SAME_VALUES
            for i, j in np.argwhere(matrix):
                found.setdefault(ones[i][0], set()).add(others[j][0])
    return found


def _rounded(sample: Any) -> bytes:
    """Two digits or so of a sample, whatever its sign: what many leaves are told apart by, without comparing all."""
    return bytes(np.round(sample * np.sign(sample[np.abs(sample).argmax()]), 3) + 0.0)


def _places(shape: Shape) -> Any:
    """Indices of some elements of an array, the same ones each time."""
    size = int(np.prod(shape, dtype=np.int64))
    flat = np.arange(size) if size <= _SAMPLE else np.random.default_rng(0).integers(0, size, _SAMPLE)
    return np.unravel_index(flat, shape) if shape else ()


def _unit(sample: Any) -> Any:
    """A sample as a vector of length 1; zeros where it is not finite."""
    flat = reals(sample)
    with np.errstate(all="ignore"):
        flat = flat / np.abs(flat).max(initial=0.0)
        flat = flat / np.sqrt(flat @ flat)
    return flat if np.isfinite(flat).all() else np.zeros_like(flat)
