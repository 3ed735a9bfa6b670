"""Small leaves in host memory, computed together: a call costs more than a few thousand numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_SMALL = 1 << 13
"""Leaves up to this size are computed together."""
_MOST = 1 << 16
"""Elements of a group that fit the cache."""


def groups(leaves: Sequence[Any], kinds: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Group the positions of small leaves of the same kind; without those of the kind `...`, and without others."""
    found: dict[Any, list[list[int]]] = {}
    room: dict[Any, int] = {}
    for i, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
        if kind is ... or leaf.size > _SMALL:
            continue
        if kind not in found or room[kind] < leaf.size:
            found.setdefault(kind, []).append([])
            room[kind] = _MOST
        found[kind][-1].append(i)
        room[kind] -= leaf.size
    return [(kind, places) for kind, lists in found.items() for places in lists if len(places) > 1]


def joined(arrays: Sequence[Any], places: Sequence[int], dtype: Any) -> Any:
    """Return the elements of some arrays as a vector of a dtype that holds them."""
    return np.concatenate([arrays[i] for i in places], axis=None, dtype=dtype)


def parted(vector: Any, leaves: Sequence[Any], places: Sequence[int], out: list[Any]) -> None:
    """Put copies of the parts of a vector into `out`, with the shapes of some leaves."""
    start = 0
    for i in places:
        end = start + leaves[i].size
        out[i] = vector[start:end].reshape(leaves[i].shape).copy()
        start = end
