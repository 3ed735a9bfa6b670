"""Leaves whose values are equal, in some layout: what proves most after equal paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.align.layouts import Layout, Shape, candidates, reals
from gradxform.comparing.align.parts import Leaf

Read = Callable[[Leaf], Any]
"""The values of a leaf; None where there are none."""
_SAMPLE = 2048
_LEAST = 3
"""Elements below which equal values prove nothing."""
_EQUAL = 0.99
"""The cosine from which values are the same ones."""


def is_constant(array: Any) -> bool:
    """Whether an array is as an initializer of constants leaves it, or too small: equal ones prove nothing."""
    flat = np.asarray(array).reshape(-1)
    return flat.size < _LEAST or not np.isfinite(flat[0]) or bool((flat == flat[0]).all())


def equal(a: Sequence[Leaf], b: Sequence[Leaf], read_a: Read, read_b: Read) -> Any:
    """Which leaves have equal values, but for a factor: a matrix of bools, by cosines of samples of the elements.

    Args:
        a: leaves of one recording.
        b: leaves of the other.
        read_a: reads the former.
        read_b: reads the latter.
    """
    shapes = sorted({leaf.shape for leaf in b})
    wanted = {shape: _places(shape) for shape in shapes}
    found = np.zeros((len(a), len(b)), bool)
    rows: dict[tuple[tuple[Shape, int], Layout], list[tuple[int, Any]]] = {}
    for i, leaf in enumerate(a):
        layouts = {shape: list(candidates(leaf.shape, shape)) for shape in shapes}
        array = read_a(leaf) if any(layouts.values()) else None
        if array is None or is_constant(array):
            continue
        for shape, fits in layouts.items():
            for layout in fits:
                sample = _unit(layout.of(array)[wanted[shape]])
                rows.setdefault(((shape, sample.size), layout), []).append(
                    (i, sample)
                )  # complex ones have twice as many
    others: dict[tuple[Shape, int], list[tuple[int, Any]]] = {}
    there = {shape for (shape, _), _ in rows}
    for j, leaf in enumerate(b):
        array = read_b(leaf) if leaf.shape in there else None
        if array is not None and not is_constant(array):
            sample = _unit(array[wanted[leaf.shape]])
            others.setdefault((leaf.shape, sample.size), []).append((j, sample))
    for (kind, _), samples in rows.items():
        if kind in others:
            one, other = (np.stack([sample for _, sample in side]) for side in (samples, others[kind]))
            places = np.ix_([i for i, _ in samples], [j for j, _ in others[kind]])
            found[places] |= np.abs(one @ other.T) > _EQUAL
    return found


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


def unique(equals: Any) -> list[tuple[int, int]]:
    """The places in such a matrix that are alone in their row and column."""
    alone = equals & (equals.sum(1, keepdims=True) == 1) & (equals.sum(0, keepdims=True) == 1)
    return [(int(i), int(j)) for i, j in np.argwhere(alone)]
