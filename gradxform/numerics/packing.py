"""Pack small leaves into matrices, so the number of operations does not grow with the number of leaves.

Only for one device: on a mesh, packing would gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name

PART = 1 << 20
"""Most elements summed at a time; formulas make about ten copies."""


def alike(leaves: Sequence[Array]) -> list[list[int]]:
    """Group the positions of small leaves with equal size, dtype and device."""
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
    """Stack leaves of equal size into a matrix; a single leaf is not copied."""
    if len(leaves) == 1:
        return xp.reshape(leaves[0], (1, -1))
    return xp.stack([xp.reshape(leaf, (-1,)) for leaf in leaves])


def pieces(rows: Array) -> list[Array]:
    """Split a matrix with long rows into pieces."""
    length = rows.shape[1]
    if rows.shape[0] * length <= PART:
        return [rows]
    return [rows[:, start : min(start + PART, length)] for start in range(0, length, PART)]


def vector(xp: Any, columns: Sequence[Array], groups: Sequence[Sequence[int]]) -> Array:
    """Arrange the numbers of the matrices' rows in the order of the leaves."""
    joined = xp.reshape(columns[0], (-1,))
    if len(columns) > 1:
        joined = xp.concat([xp.reshape(column, (-1,)) for column in columns])
    order = [i for places in groups for i in places]
    return (
        joined if order == sorted(order) else xp.take(joined, tuple(sorted(range(len(order)), key=order.__getitem__)))
    )
