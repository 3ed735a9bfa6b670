"""Large float32 leaves on the CPU: one axis is cut, such that what is behind the cut is a short row.

The squares of a row are summed in float32, and the rows are added in float64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform_jax._namespace import barrier, summed

_OFFLOADED = 1 << 12
"""From so many numbers on, XLA calls a library for a sum; of fewer, it compiles one."""
_LOOP = 32
"""XLA compiles a sum over longer axes as several."""
_LARGE = 1 << 16
_SHORTEST, _LONGEST, _VECTOR = 48, 300, 8
"""The lengths of rows, which are of whole vectors: of others, XLA adds up what is left with more rounding."""
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST = 2.0**-100
"""A sum of n float32 squares above n times this has lost to underflow less than it loses to rounding."""


def cut(leaf: Any) -> tuple[int, int] | None:
    """The axis of a large float32 leaf, and the length, by which it is cut into rows; None if it is not to be cut."""
    if leaf.dtype != np.float32 or not isinstance(leaf.size, int) or leaf.size < _LARGE:
        return None
    behind, longest = 1, min(_LONGEST, leaf.size // _OFFLOADED)
    if longest < _SHORTEST:  # too few rows in any case
        longest = _LONGEST
    for axis in reversed(range(leaf.ndim)):
        size = leaf.shape[axis]
        fits = (length for length in range(min(size, longest // behind), 0, -1) if size % length == 0)
        length = next((n for n in fits if n * behind % _VECTOR == 0 and n * behind >= _SHORTEST), 0)
        if length:
            return axis, length
        behind *= size
        if behind > longest:
            return None
    return None


@jax.jit
def sums(leaf: Any) -> tuple[Any, Any]:
    """The sum of a leaf's squares, in float64, and the largest of its rows'."""
    axis, length = cut(leaf) or (0, 1)
    parts = *leaf.shape[:axis], leaf.shape[axis] // length, length, *leaf.shape[axis + 1 :]
    rows = barrier(
        leaf.reshape(parts)
    )  # XLA sums squares up to twenty times slower where a reshape may come in between
    squares = lax.reduce(lax.square(rows), np.float32(0.0), lax.add, tuple(range(axis + 1, rows.ndim)))
    squares = in_one_loop(squares)
    return summed(lax.convert_element_type(squares, np.float64), None), jnp.max(squares)


def is_sound(total: Any, heaviest: Any, size: Any) -> Any:
    """Whether what is added up from rows is known to be right; an infinite row is heavy."""
    heavy = lax.convert_element_type(heaviest, np.float64)
    return (total > size * _ONLY_ROUNDING_LOST) & (heavy < total * _HEAVY)


def in_one_loop(leaf: Any) -> Any:
    """An array that XLA sums in one loop, if it is small.

    Behind a barrier, else XLA shares the wider elements with a product, and writes them to memory.
    """
    small = isinstance(leaf.size, int) and leaf.size < _OFFLOADED
    if not small or jax.device_count() > 1 or any(jax.typeof(leaf).sharding.spec):  # an axis may be sharded
        return barrier(leaf)
    return barrier(leaf.reshape([part for size in leaf.shape for part in _factors(size)]))


def _factors(size: int) -> list[int]:
    """A size as a product of numbers of at most 32, as far as it has such factors, the smallest first."""
    if size <= _LOOP:
        return [size]
    part = next(n for n in range(_LOOP, 0, -1) if size % n == 0)
    return [*_factors(size // part), part] if part > 1 else [size]
