"""Keep the largest elements of an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name

Reaching = Callable[[Sequence[Array]], Sequence[Array]]

_BITS = {"float16": (16, 0x7C00), "bfloat16": (16, 0x7F80), "float32": (32, 0x7F800000), "float64": (64, 0x7FF << 52)}
"""Bits of a number, and those of infinity."""


def largest(xp: Any, x: Array, count: Any) -> Array:
    """Keep the elements whose size is at least the `count`-th largest; the others become zero."""
    sizes = in_order(xp, x)
    return kept(xp, x, sizes, xp.kth_largest(sizes, count))


def in_order(xp: Any, x: Array) -> Array:
    """Return integers in the order of the elements' sizes, which are their bits without the sign. NaN is the largest.

    Compilers may flush small floating-point numbers to zero, but not integers.
    """
    width, infinity = _BITS[dtype_name(x)]
    sizes = xp.bits(xp.stop_gradient(x)) & (2 ** (width - 1) - 1)
    return xp.where(sizes > infinity, xp.zeros_like(sizes) + (infinity + 1), sizes)


def kept(xp: Any, x: Array, sizes: Array, least: Array) -> Array:
    """Return the elements whose size is at least some, and zero for the others."""
    return xp.where(sizes >= least, x, xp.zeros_like(x))


def with_bit(xp: Any, bit: Any, found: Sequence[Any], counts: Sequence[Any], reaching: Reaching) -> list[Array]:
    """Set a bit of the integers of a rank in several arrays, if enough elements reach the number with the bit.

    From zero and the highest bit on, this finds the integers. Nothing is sorted or gathered: of arrays on several
    devices, only counts travel.

    Args:
        xp: The namespace.
        bit: A power of two.
        found: The integers so far, for each array.
        counts: The rank in each array, counted from 1, the largest. All elements reach a rank beyond their number.
        reaching: Count the elements of each array whose integers (`in_order`) are at least a number.
    """
    tried = [low + bit for low in found]
    each = zip(reaching(tried), counts, found, tried, strict=True)
    return [xp.where(reached >= count, high, low) for reached, count, low, high in each]
