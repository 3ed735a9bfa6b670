"""Leaves whose values are equal, in some layout; two leaves as a pair, and how sure it is that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from gradxform.comparing.align.leaves import Cell, Leaf, cell_at, gates_between
from gradxform.comparing.constants import CHANCE, HOW_SURE, LEAST_VALUES, OTHER_VALUES, SAME_VALUES, SEEN
from gradxform.comparing.layouts import SAME, Layout, Shape, blocks, candidates, conventional, cosine, reals
from gradxform.comparing.mapping import Pair, View

Values = Callable[[Leaf, Layout | None], Any]
"""The values of a leaf, or of a part of it at another place; None where there are none."""
_SAMPLE = 2048
_MOST_PAIRS = 1 << 23
"""Pairs of leaves of one shape that are compared one by one."""


def _is_constant(array: Any) -> bool:
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


Cells = Mapping[str, Cell]


def paired(
    a: Leaf, b: Leaf, how: str, read: Mapping[str, tuple[Values, Values]], cells: tuple[Cells, Cells]
) -> Pair | None:
    """Two leaves as a pair, `a` in the layout of `b`; None where no layout brings them together.

    Args:
        a: a leaf of A.
        b: one of B.
        how: by what they were found, of `HOW_SURE`.
        read: for "parameters" and "gradients", what reads the values of both sides; a tree that one lacks is left out.
        cells: the recurrent layers of both sides.
    """

    def pair(choice: Choice, sure: float = 0.0) -> Pair:
        return Pair(View(a.path, choice[0]), View(b.path, choice[1]), how, max(sure, HOW_SURE[how]))

    if how == "equal paths" and a.shape == b.shape:
        return pair((a.layout, b.layout))
    layouts = list(candidates(a.shape, b.shape))
    if not layouts:
        return None
    usual = conventional(a.name, b.name, a.shape, b.shape)
    first = usual or layouts[0]
    cell_a, cell_b = (cell_at(leaf.path, found) for leaf, found in zip((a, b), cells, strict=True))
    gates = gates_between(cell_a, cell_b, a.shape)
    usually = first._replace(part=a.layout.part, gates=gates), b.layout
    tree = next((tree for tree, sides in read.items() if all(map(_tells, sides, (a, b)))), None)
    if tree is None:
        return pair(usually)
    values = read[tree]
    orders = (gates, None) if gates is not None and tree == "parameters" else (gates,)  # gradients may be at fault
    ways = product(a.variants(), b.variants(), layouts, orders)
    choices = [(layout._replace(part=one.part, gates=order), other) for one, other, layout, order in ways]
    if len(choices) == 1 and tree != "parameters" and how != "shape alone":
        return pair(usually)
    fits = _fits(a, b, values, choices)
    best = max(fits, key=lambda choice: (fits[choice], choice == usually))
    seen = fits[best] > SAME_VALUES
    if fits[best] < OTHER_VALUES and (tree == "parameters" or (cell_a is None) != (cell_b is None)):
        found = blocks(first.of(values[0](a, None)), values[1](b, None))
        if found is not None:
            axis, *order = found
            back = (axis, *map(order.index, range(len(order))))  # blocks of B are moved, beside A as it is
            return pair((usually[0]._replace(gates=None), b.layout._replace(gates=back)), SEEN)
    decided = tree == "parameters" or how in ("shape alone", "equal gradients") or a.sizes or b.sizes
    if not seen or (usual is not None and not (decided and fits[usually] < OTHER_VALUES)):
        best = usually
    return pair(best)


Choice = tuple[Layout, Layout]
"""The layouts in which two leaves are brought together."""


def _fits(a: Leaf, b: Leaf, values: tuple[Values, Values], choices: Sequence[Choice]) -> dict[Choice, float]:
    """How alike the values are in each way; parts in sections are looked at if no part as a whole fits."""
    fits: dict[Choice, float] = {}
    for whole in (True, False):
        for one, other in choices:
            if whole == ((one.part, other.part) == (a.layout.part, b.layout.part)):
                fits[one, other] = abs(cosine(values[0](a, one), values[1](b, other)))
        if max(fits.values()) > SAME_VALUES:
            break
    return fits


def _tells(values: Values, leaf: Leaf) -> bool:
    """Whether a leaf is there, and its values tell layouts apart: constant parameters tell none."""
    array = values(leaf, None)
    return array is not None and not _is_constant(array)
