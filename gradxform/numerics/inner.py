"""Inner products of gradients and weighted sums of them, at any size.

The squares of float64 numbers may exceed float64's range, so each gradient is measured in a power of two near its
largest element, and inner products are numbers with exponents. So are the weights found from them. An element is
multiplied by the parts of its weight in turn, none of which overflows or underflows unless the product does.
"""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.ranged import Ranged, in_base, powers

_USUAL = 2.0**300
"""Gradients with a largest element between this and its inverse are measured in ones."""


def unit(xp: Any, sizes: Array) -> tuple[Array, Array]:
    """Return the unit of a gradient with leaves of these sizes, and its inverse; both are normal numbers."""
    plain, size = getattr(xp, "xp", xp), in_base(xp, xp.max(sizes))
    size = plain.float64(size)
    found = plain.power_of_two(size)
    found = plain.where((size > 1.0 / _USUAL) & (size < _USUAL), 1.0, found)
    found = plain.where(found > FLOAT64.most, FLOAT64.most, found)
    found = plain.where(found < FLOAT64.least, FLOAT64.least, found)
    return found, 1.0 / found


def in_units(xp: Any, *given: Array, count: int) -> Any:
    """Return a vector of inner products i <= j of gradients, each multiplied by the units of both."""
    units, products = given[:count], given[count:]
    both = [(i, j) for i in range(count) for j in range(i, count)]
    ones, others = (xp.stack([xp.extended(units[place]) for place in places]) for places in zip(*both, strict=True))
    return xp.stack(list(map(xp.extended, products))) * ones * others


def total(xp: Any, *parts: Array) -> Any:
    """Add up inner products of leaves, which may have axes of length one."""
    return xp.sum(xp.stack([xp.reshape(part, ()) for part in parts]))


def in_turn(xp: Any, weight: Any) -> tuple[Array, ...]:
    """Split a weight beyond float64's range into a pair and powers of two, to multiply by one after the other."""
    if not isinstance(weight, Ranged) or base(weight.xp) is not FLOAT64:
        return (weight,)
    near, *coarse = powers(weight)
    return near.high, near.rest, *coarse


def weighted(xp: Any, *given: Any, parts: tuple[int, ...]) -> Any:
    """Return the sum of leaves times weights. `parts`: how many factors each leaf's weight has."""
    leaves, factors = given[: len(parts)], iter(given[len(parts) :])
    terms = []
    for leaf, count in zip(leaves, parts, strict=True):
        term = next(factors) * leaf
        for _ in range(count - 1):
            power = next(factors)
            term = term.times(power.high) if isinstance(term, Number) else power * term
        terms.append(term)
    found = terms[0]
    for term in terms[1:]:
        found = found + term
    return found
