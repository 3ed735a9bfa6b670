"""Two leaves as a pair: the layout that brings them together, and how sure it is that they belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from gradxform.comparing.align.parts import Cell, Leaf, cell_at, gates_between
from gradxform.comparing.align.values import Values, is_constant
from gradxform.comparing.constants import HOW_SURE, OTHER_VALUES, SAME_VALUES, SEEN
from gradxform.comparing.layouts import SAME, Gates, Layout, blocks, candidates, conventional, cosine
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
    if how == "equal paths" and a.shape == b.shape:
        return _Choice(a.layout, b.layout, SAME, None).pair(a, b, how)
    layouts = list(candidates(a.shape, b.shape))
    if not layouts:
        return None
    usual = conventional(a.name, b.name, a.shape, b.shape)
    first = usual or layouts[0]
    cell_a, cell_b = (cell_at(leaf.path, found) for leaf, found in zip((a, b), cells, strict=True))
    gates = gates_between(cell_a, cell_b, a.shape)
    tree, values = _telling(a, b, read)
    if tree is None:
        return _Choice(a.layout, b.layout, first, gates).pair(a, b, how)
    orders = (gates, None) if gates is not None and tree == "parameters" else (gates,)  # gradients may be at fault
    choices = [_Choice(*choice) for choice in product(a.variants(), b.variants(), layouts, orders)]
    usually = _Choice(a.layout, b.layout, first, gates)
    if len(choices) == 1 and tree != "parameters" and how != "shape alone":
        return usually.pair(a, b, how)
    fits = _fits(a, b, values, choices)
    best = max(fits, key=lambda choice: (fits[choice], choice == usually))
    seen = fits[best] > SAME_VALUES
    if fits[best] < OTHER_VALUES and (tree == "parameters" or (cell_a is None) != (cell_b is None)):
        found = blocks(first.of(values[0](a, None)), values[1](b, None))
        if found is not None:
            pair = usually._replace(gates=None).pair(a, b, how)
            view = pair.b._replace(layout=b.layout._replace(gates=_inverse(found)))
            return pair._replace(b=view, sure=max(pair.sure, SEEN))
    decided = tree == "parameters" or how in ("shape alone", "equal gradients") or a.sizes or b.sizes
    if not (decided and seen and fits[usually] < OTHER_VALUES) and (usual is not None or not seen):
        best = usually
    pair = best.pair(a, b, how)
    return (
        pair._replace(sure=SEEN) if how == "shape alone" and tree == "parameters" and fits[best] > SAME_VALUES else pair
    )


class _Choice(NamedTuple):
    """One way to bring two leaves together."""

    part_a: Layout
    part_b: Layout
    layout: Layout
    gates: Gates | None

    def pair(self, a: Leaf, b: Leaf, how: str) -> Pair:
        """The two leaves as a pair."""
        layout = self.layout._replace(part=self.part_a.part, gates=self.gates)
        return Pair(View(a.path, layout), View(b.path, self.part_b), how, HOW_SURE[how])


def _fits(a: Leaf, b: Leaf, values: tuple[Values, Values], choices: Sequence[_Choice]) -> dict[_Choice, float]:
    """How alike the values are in each way; parts in sections are looked at if no part as a whole fits."""
    fits: dict[_Choice, float] = {}
    for whole in (True, False):
        for choice in choices:
            if whole == (choice.part_a == a.layout and choice.part_b == b.layout):
                one, other = values[0](a, choice.part_a), values[1](b, choice.part_b)
                fits[choice] = abs(cosine(choice.layout._replace(gates=choice.gates).of(one), other))
        if max(fits.values()) > SAME_VALUES:
            break
    return fits


def _telling(a: Leaf, b: Leaf, read: Mapping[str, tuple[Values, Values]]) -> tuple[str | None, tuple[Values, Values]]:
    """The first tree that tells layouts apart: constant parameters tell none."""
    for tree, values in read.items():
        there = [side(leaf, None) for side, leaf in zip(values, (a, b), strict=True)]
        if all(array is not None and not is_constant(array) for array in there):
            return tree, values
    return None, next(iter(read.values()), (_nothing, _nothing))


def _nothing(leaf: Leaf, layout: Layout | None) -> None:
    return None


def _inverse(gates: Gates) -> Gates:
    """The order that undoes one: blocks of B are moved, beside A as it is."""
    axis, *order = gates
    return (axis, *(order.index(block) for block in range(len(order))))
