"""Small leaves as the rows of matrices, so that a device has few operations however many leaves there are.

Only for one device: a mesh would gather what is put together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name

PART = 1 << 20
"""The most elements that are summed at a time: formulas make some ten copies of them."""


def alike(leaves: Sequence[Array]) -> list[list[int]]:
    """The positions of leaves that make one matrix each: of one size, dtype and device, and small."""
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        size = math.prod(leaf.shape)
        kind = size, dtype_name(leaf), getattr(leaf, "device", None)
        places = latest.get(kind)
        if places is None or (len(places) + 1) * size > PART:
            found.append(places := [])
            latest[kind] = places
        places.append(i)
    return found


def matrix(xp: Any, leaves: Sequence[Array]) -> Array:
    """Leaves of one size as the rows of a matrix; one leaf lies where it did."""
    if len(leaves) == 1:
        return xp.reshape(leaves[0], (1, -1))
    return xp.stack([xp.reshape(leaf, (-1,)) for leaf in leaves])


def pieces(rows: Array) -> list[Array]:
    """A matrix; one that is too long, cut along its rows."""
    length = rows.shape[1]
    if rows.shape[0] * length <= PART:
        return [rows]
    return [rows[:, start : min(start + PART, length)] for start in range(0, length, PART)]


def vector(xp: Any, columns: Sequence[Array], groups: Sequence[Sequence[int]]) -> Array:
    """The numbers of matrices, one a row, in the order of the leaves."""
    joined = xp.reshape(columns[0], (-1,))
    if len(columns) > 1:
        joined = xp.concat([xp.reshape(column, (-1,)) for column in columns])
    order = [i for places in groups for i in places]
    return (
        joined if order == sorted(order) else xp.take(joined, tuple(sorted(range(len(order)), key=order.__getitem__)))
    )
