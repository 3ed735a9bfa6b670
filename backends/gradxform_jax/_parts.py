"""Many leaves, some at a time: XLA compiles one kernel for all parts that are alike, and small ones faster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gradxform_jax._namespace import barrier

_PART = 128
"""Leaves of a part: few enough that a kernel compiles in a tenth of a second."""
_MANY = 2 * _PART


def is_traced(tree: Any) -> bool:
    """Whether a tree has a tracer."""
    return any([isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree)])


def in_parts(kernel: Callable[..., Sequence[Any]], *columns: Any) -> list[Any]:
    """Call a kernel for some leaves at a time in eager code, and join its lists; in traced code call it once.

    Args:
        kernel: maps columns to a list.
        columns: sequences with an item for each leaf.
    """
    if len({len(column) for column in columns}) > 1:
        raise ValueError("columns of different lengths")
    count = len(columns[0])
    if count < _MANY or is_traced(columns):
        return list(kernel(*columns))
    found: list[Any] = []
    for start in range(0, count, _PART):
        part = slice(start, start + _PART)
        found += kernel(*(column[part] for column in columns))
    return found


def folded(function: Callable[[Any, Any], Any], numbers: Sequence[Any]) -> Any:
    """Reduce numbers one by one, in parts: XLA's time to compile one long sum grows with the square of its length."""
    while len(numbers) > _PART:
        starts = range(0, len(numbers), _PART)
        numbers = barrier([functools.reduce(function, numbers[i : i + _PART]) for i in starts])
    return functools.reduce(function, numbers)
