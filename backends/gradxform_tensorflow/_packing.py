"""Pack small tensors: an op costs more than their few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_PART = 1 << 20
"""The most elements in a stack."""
_CHEAP, _MANY = 1 << 12, 16
"""Graphs on CPUs multiply small matrices as fast in stacks of many, and are built ten times faster; others slower."""
_SMALL = 1 << 13
_FEW = 4


def small(leaves: Sequence[Any], places: Sequence[int]) -> list[list[int]]:
    """Positions of small vectors, one list for each dtype of some; to flatten other tensors takes an op each."""
    groups: dict[Any, list[int]] = {}
    for i in places:
        shape = leaves[i].shape
        if shape.rank == 1 and shape.num_elements() <= _SMALL:
            groups.setdefault(leaves[i].dtype, []).append(i)
    return [group for group in groups.values() if len(group) >= _FEW]


def pack(leaves: Sequence[Any]) -> Any:
    """Concatenate vectors."""
    return tf.raw_ops.ConcatV2(values=leaves, axis=0)


def unpack(whole: Any, leaves: Sequence[Any]) -> list[Any]:
    """Split a packed vector."""
    sizes = [leaf.shape.num_elements() for leaf in leaves]
    return list(tf.raw_ops.SplitV(value=whole, size_splits=sizes, axis=0, num_split=len(leaves)))


def alike(leaves: Sequence[Any], keys: Sequence[Any], saves_ops: bool) -> list[list[int]]:
    """Group the positions of tensors with the same shape, dtype, device and key, to stack them.

    Their shapes are known. If `saves_ops`, an op costs more than copies of a few tensors; otherwise only many small
    tensors are grouped.
    """
    most, least = (_PART, 2) if saves_ops else (_CHEAP, _MANY)
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    for i, (leaf, key) in enumerate(zip(leaves, keys, strict=True)):
        count = leaf.shape.num_elements()
        if count > most:
            found.append([i])
            continue
        kind = tuple(leaf.shape), leaf.dtype, leaf.device, key
        places = latest.get(kind)
        if places is None or (len(places) + 1) * count > _PART:
            found.append(places := [])
            latest[kind] = places
        places.append(i)
    return [own for places in found for own in ([places] if len(places) >= least else [[i] for i in places])]
