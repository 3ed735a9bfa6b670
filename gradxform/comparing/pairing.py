"""Two leaves as a pair: the layout that brings them together, and how sure it is that they belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from gradxform.comparing.cells import Cell, cell_at, gates_between
from gradxform.comparing.equal import is_constant
from gradxform.comparing.layouts import SAME, Gates, Layout, blocks, candidates, conventional, cosine
from gradxform.comparing.leaves import Leaf
from gradxform.comparing.mapping import Pair, View

_ALIKE, _UNLIKE = 0.99, 0.9
"""Cosines from which values are the same ones, and below which they are others."""
SURE = {
    "the map": 1.0,
    "equal paths": 1.0,
    "equal parameters": 0.99,
    "names": 0.95,
    "modules": 0.95,
    "equal gradients": 0.95,
    "equal parameters and order": 0.7,
    "shape alone": 0.4,
}
"""How sure pairs are, by how they were found."""
_SEEN = 0.95
"""How sure a pair is whose parameters are equal once their blocks are in order."""
Cells = Mapping[str, Cell]
Values = Callable[[Leaf, Layout | None], Any]
"""The values of a leaf, or of a part of it at another place."""


def paired(
    a: Leaf, b: Leaf, how: str, read: Mapping[str, tuple[Values, Values]], cells: tuple[Cells, Cells]
) -> Pair | None:
    """Two leaves as a pair, `a` in the layout of `b`; None where no layout brings them together.

    Args:
        a: a leaf of A.
        b: one of B.
        how: by what they were found, of `SURE`.
        read: for "parameters" and "gradients", what reads the values of both sides; a tree that one lacks is left out.
        cells: the recurrent layers of both sides.
    """
    layouts = list(candidates(a.shape, b.shape))
    if not layouts:
        return None
    usual = conventional(a.name, b.name, a.shape, b.shape)
    first = usual or layouts[0]
    if how == "equal paths" and a.shape == b.shape and first == SAME:
        return _made(a, b, first, how)
    cell_a, cell_b = (cell_at(leaf.path, found) for leaf, found in zip((a, b), cells, strict=True))
    gates = gates_between(cell_a, cell_b, a.shape)
    tree, values = _telling(a, b, read)
    if tree is None:
        return _made(a, b, first._replace(gates=gates), how)
    orders = (gates, None) if gates is not None and tree == "parameters" else (gates,)  # gradients may be at fault
    choices = list(product(a.variants(), b.variants(), layouts, orders))
    if len(choices) == 1 and tree != "parameters" and how != "shape alone":
        return _made(a, b, first._replace(gates=gates), how)
    places = {v: values[0](a, v) for v in a.variants()}, {v: values[1](b, v) for v in b.variants()}
    fits = {
        choice: abs(cosine(choice[2]._replace(gates=choice[3]).of(places[0][choice[0]]), places[1][choice[1]]))
        for choice in choices
    }
    usually = (a.layout, b.layout, first, gates)
    best = max(choices, key=lambda choice: (fits[choice], choice == usually))
    decided = tree == "parameters" or how in ("shape alone", "equal gradients") or a.sizes or b.sizes
    seen = fits[best] > _ALIKE
    if fits[best] < _UNLIKE and (tree == "parameters" or (cell_a is None) != (cell_b is None)):
        found = blocks(first.of(places[0][a.layout]), places[1][b.layout])
        if found is not None:
            pair = _made(a, b, first, how)
            view = pair.b._replace(layout=b.layout._replace(gates=_inverse(found)))
            return pair._replace(b=view, sure=max(pair.sure, _SEEN))
    if not (decided and seen and fits[usually] < _UNLIKE) and (usual is not None or not seen):
        best = usually
    pair = _made(a._replace(layout=best[0]), b._replace(layout=best[1]), best[2]._replace(gates=best[3]), how)
    return pair._replace(sure=_SEEN) if how == "shape alone" and tree == "parameters" and fits[best] > _ALIKE else pair


def _telling(a: Leaf, b: Leaf, read: Mapping[str, tuple[Values, Values]]) -> tuple[str | None, tuple[Values, Values]]:
    """The first tree that tells layouts apart: constant parameters tell none."""
    for tree, values in read.items():
        there = [side(leaf, None) for side, leaf in zip(values, (a, b), strict=True)]
        if all(array is not None and not is_constant(array) for array in there):
            return tree, values
    return None, next(iter(read.values()), (_nothing, _nothing))


def _nothing(leaf: Leaf, layout: Layout | None) -> None:
    return None


def _made(a: Leaf, b: Leaf, layout: Layout, how: str) -> Pair:
    return Pair(View(a.path, layout._replace(part=a.layout.part)), View(b.path, b.layout), how, SURE[how])


def _inverse(gates: Gates) -> Gates:
    """The order that undoes one: blocks of B are moved, beside A as it is."""
    order = [0] * len(gates.order)
    for place, block in enumerate(gates.order):
        order[block] = place
    return gates._replace(order=tuple(order))
