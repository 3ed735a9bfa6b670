"""Two leaves as a pair: the layout that brings them together, and how sure it is that they belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from gradxform.comparing.align.parts import Cell, Leaf, cell_at, gates_between
from gradxform.comparing.align.values import Values, is_constant
from gradxform.comparing.constants import HOW_SURE, OTHER_VALUES, SAME_VALUES, SEEN
from gradxform.comparing.layouts import Layout, blocks, candidates, conventional, cosine
from gradxform.comparing.mapping import Pair, View

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
    telling = _telling(a, b, read)
    if telling is None:
        return pair(usually)
    tree, values = telling
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
    return pair(best, SEEN if tree == "parameters" and how == "shape alone" and fits[best] > SAME_VALUES else 0.0)


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


def _telling(a: Leaf, b: Leaf, read: Mapping[str, tuple[Values, Values]]) -> tuple[str, tuple[Values, Values]] | None:
    """The first tree that tells layouts apart, if one does: constant parameters tell none."""
    for tree, values in read.items():
        there = [side(leaf, None) for side, leaf in zip(values, (a, b), strict=True)]
        if all(array is not None and not is_constant(array) for array in there):
            return tree, values
    return None
