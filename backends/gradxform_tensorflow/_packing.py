"""Small vectors on the CPU worked on together: an operation costs more than the few numbers in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_SMALL = 1 << 13
_FEW = 4
"""Fewer small vectors are not worth being put together."""


def small(leaves: Sequence[Any], places: Sequence[int]) -> dict[Any, list[int]]:
    """Places of small vectors by their dtype."""
    groups: dict[Any, list[int]] = {}
    for i in places:
        shape = leaves[i].shape
        if shape.rank == 1 and shape.num_elements() <= _SMALL:
            groups.setdefault(leaves[i].dtype, []).append(i)
    return {dtype: group for dtype, group in groups.items() if len(group) >= _FEW}


def pack(leaves: Sequence[Any]) -> Any:
    """The elements of vectors one after the other."""
    return tf.raw_ops.ConcatV2(values=leaves, axis=0)


def unpack(whole: Any, leaves: Sequence[Any]) -> list[Any]:
    """A packed vector as vectors of the sizes of those that went into it."""
    sizes = [leaf.shape.num_elements() for leaf in leaves]
    return list(tf.raw_ops.SplitV(value=whole, size_splits=sizes, axis=0, num_split=len(leaves)))
