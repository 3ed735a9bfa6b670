"""Inner products of gradients, in a unit in which they neither overflow nor underflow."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array

_USUAL = 2.0**300
"""Gradients with a largest element between this and its inverse are measured in ones."""
_LEAST, _MOST = 2.0**-1022, 2.0**1000


def inverse_unit(xp: Any, sizes: Array) -> Array:
    """Return the inverse of a power of two near the largest of the leaves' sizes."""
    size = xp.max(sizes)
    unit = xp.where((size > 1.0 / _USUAL) & (size < _USUAL), 1.0, xp.power_of_two(size))
    return 1.0 / xp.where(unit > _MOST, _MOST, xp.where(unit < _LEAST, _LEAST, unit))


def in_unit(xp: Any, product: Array, inverse: Array) -> Array:
    """Return an inner product in the unit of both gradients."""
    return product * inverse * inverse


def total(xp: Any, *parts: Array) -> Any:
    """Add up inner products of leaves, which may have axes of length one."""
    return xp.sum(xp.stack([xp.reshape(part, ()) for part in parts]))

