"""Leaves whose values are equal, in some layout; two leaves as a pair, and how sure it is that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from gradxform.comparing.align.leaves import Leaf, gates_between
from gradxform.comparing.constants import CHANCE, EXACT, HOW_SURE, LEAST_VALUES, SAME_VALUES
from gradxform.comparing.layouts import SAME, Layout, Shape, blocks, candidates, conventional, cosine, reals
from gradxform.comparing.mapping import Pair, View

Values = Callable[[Leaf, Layout | None], Any]
"""The values of a leaf, or of a part of it at another place; None where there are none."""
_SAMPLE = 2048
_MOST_PAIRS = 1 << 23
"""Pairs of leaves of one shape that are compared one by one."""


def _tells(values: Values, leaf: Leaf) -> bool:
    """Whether a leaf is there and is no constant, as an initializer leaves it, nor too small: equal ones prove it."""
    array = values(leaf, None)
    if array is None or array.size < LEAST_VALUES:
        return False
    first = array.flat[0]
    return bool(np.isfinite(first) and (array != first).any())


def equal(a: Sequence[Leaf], b: Sequence[Leaf], read_a: Values, read_b: Values) -> dict[Leaf, frozenset[Leaf]]:
    """Which leaves have equal values, but for a factor, by cosines of samples of the elements.

    The fewer elements and the more leaves, the nearer to 1 a cosine must be: among 1,500 leaves of four random elements
    each is like some other one by chance.

    Args:
        a: leaves of one recording.
        b: leaves of the other.
        read_a: reads the former.
        read_b: reads the latter.
    """
    sizes: dict[int, list[Leaf]] = {}
    for leaf in a:
        sizes.setdefault(leaf.size, []).append(leaf)
    shapes: dict[Shape, list[Leaf]] = {}
    for leaf in b:
        shapes.setdefault(leaf.shape, []).append(leaf)
    found: dict[Leaf, set[Leaf]] = {}
    for shape, others in shapes.items():
        places, samples = _places(shape), dict[int, tuple[list[tuple[Leaf, Any]], list[tuple[Leaf, Any]]]]()
        moved = ((leaf, way) for leaf in sizes.get(others[0].size, ()) for way in candidates(leaf.shape, shape))
        for side, ways, read in ((0, moved, read_a), (1, ((leaf, SAME) for leaf in others), read_b)):
            for leaf, layout in ways:
                if _tells(read, leaf):
                    sample = reals(layout.of(read(leaf, None))[places])
                    samples.setdefault(sample.size, ([], []))[side].append((leaf, sample))  # twice as many of complex
        for sides in (sides for sides in samples.values() if all(sides)):
            for i, j in _near(*(_units([sample for _, sample in side]) for side in sides)):
                found.setdefault(sides[0][i][0], set()).add(sides[1][j][0])
    return {leaf: frozenset(others) for leaf, others in found.items()}


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


def paired(a: Leaf, b: Leaf, how: str, read: Mapping[str, tuple[Values, Values]]) -> Pair | None:
    """Two leaves as a pair, `a` in the layout of `b`; None where no layout brings them together.

    The layout is that of the conventions, or the one in which values are most alike. Gradients, which may be
    at fault, do not tell it where a convention does.

    Args:
        a: a leaf of A.
        b: one of B.
        how: by what they were found, of `HOW_SURE`.
        read: for "parameters" and "gradients", what reads the values of both sides; a tree that one lacks is left out.
    """

    def pair(one: Layout, other: Layout) -> Pair:
        return Pair(View(a.path, one), View(b.path, other), how, HOW_SURE[how])

    if how == "equal paths" and a.shape == b.shape:
        return pair(a.layout, b.layout)
    layouts = list(candidates(a.shape, b.shape))
    if not layouts:
        return None
    convention, gates = conventional(a.name, b.name, a.shape, b.shape), gates_between(a, b)
    plain = (convention or layouts[0])._replace(part=a.layout.part)
    usual = pair(plain._replace(gates=gates), b.layout)
    tree = next((tree for tree, sides in read.items() if all(map(_tells, sides, (a, b)))), None)
    if tree is None:
        return usual
    (of_a, of_b), orders = read[tree], dict.fromkeys((gates, None) if tree == "parameters" else (gates,))
    layouts.sort(key=lambda layout: layout != convention)
    if convention is not None and tree == "gradients" and how not in ("shape alone", "equal gradients"):
        layouts = [convention]
    nearest, best = SAME_VALUES, usual
    for one, other, order, layout in product(a.variants(), b.variants(), orders, layouts):
        way = layout._replace(part=one.part, gates=order)
        if (like := abs(cosine(of_a(a, way), of_b(b, other)))) > nearest:  # symmetric leaves are like in two layouts
            nearest, best = like, pair(way, other)
        if nearest > 1 - EXACT**2:
            break
    if nearest > SAME_VALUES:
        return best
    if tree == "parameters" or (a.cell is None) != (b.cell is None):
        found = blocks(of_a(a, plain), of_b(b, None))
        if found is not None:
            axis, *moved = found
            back = (axis, *map(moved.index, range(len(moved))))  # blocks of B are moved, beside A as it is
            return pair(plain, b.layout._replace(gates=back))
    return usual
