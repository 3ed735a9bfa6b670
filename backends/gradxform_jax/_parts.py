"""Kernels of many leaves in eager mode, some leaves at a time: XLA compiles one kernel for all parts that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

_PART = 64
"""Leaves of a part: few enough that a kernel compiles in hundredths of a second."""
_MANY = 4 * _PART


def in_parts(kernel: Callable[..., Sequence[Any]], *columns: Any) -> list[Any]:
    """Call a kernel that treats each leaf by itself; one that is traced is called at once.

    Args:
        kernel: maps columns to a list.
        columns: sequences with an item for each leaf.
    """
    if len({len(column) for column in columns}) > 1:
        raise ValueError("columns of different lengths")
    count = len(columns[0])
    if count < _MANY or any([isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(columns)]):
        return list(kernel(*columns))
    found: list[Any] = []
    for start in range(0, count, _PART):
        part = slice(start, start + _PART)
        found += kernel(*(column[part] for column in columns))
    return found
