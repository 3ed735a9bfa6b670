"""Pack small tensors: an op costs more than their few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradxform_tensorflow import _eager

_PART = 1 << 20
"""The most elements in a stack."""
_CHEAP, _MANY = 1 << 12, 16
"""Graphs on CPUs multiply small matrices as fast in stacks of many, and are built ten times faster; others slower."""
_SMALL = 1 << 13
FEW = 4
"""Minimum number of small tensors to pack."""


def small(leaves: Sequence[Any], places: Sequence[int]) -> list[list[int]]:
    """Positions of small tensors on CPUs, by dtype; only vectors in eager mode, where flattening is an op too."""
    if not (_eager.has_only_cpus() or _eager.readable(leaves)):
        return []
    groups: dict[Any, list[int]] = {}
    vectors = tf.executing_eagerly()
    for i in places:
        shape = leaves[i].shape
        count = shape.num_elements() if not vectors or shape.rank == 1 else None
        if count is not None and count <= _SMALL:
            groups.setdefault(leaves[i].dtype, []).append(i)
    return [group for group in groups.values() if len(group) >= FEW]


def pack(leaves: Sequence[Any]) -> Any:
    """Concatenate the elements of tensors."""
    flat = [leaf if leaf.shape.rank == 1 else tf.reshape(leaf, [-1]) for leaf in leaves]
    return tf.raw_ops.ConcatV2(values=flat, axis=0)


def unpack(whole: Any, leaves: Sequence[Any]) -> list[Any]:
    """Split a packed tensor into the original shapes."""
    sizes = [leaf.shape.num_elements() for leaf in leaves]
    parts = tf.raw_ops.SplitV(value=whole, size_splits=sizes, axis=0, num_split=len(leaves))
    return [
        part if leaf.shape.rank == 1 else tf.reshape(part, leaf.shape) for part, leaf in zip(parts, leaves, strict=True)
    ]


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
