"""Sums, roots and absolute values in twice the precision of float64.

Source: Dekker, A floating-point technique for extending the available precision, 1971. Products are taken of halves
short enough to be exact, so that a compiler that fuses multiplication and addition changes nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name
from gradxform.numerics.double_double import Exact, Number, Pair, two_sum
from gradxform.numerics.elementwise import in_range, wide
from gradxform.numerics.ranged import Ranged, Space, evaluate, in_float64


def sum_over(xp: Any, leaf: Array, axes: tuple[int, ...], weights: Any) -> Array | Pair:
    """The sums of a real leaf, times weights that broadcast, over some axes, kept as ones; pairs for float64 leaves."""

    def add(values: Array) -> Array:
        return xp.sum_over(values, axes)

    numbers = xp.float64(leaf)
    if dtype_name(leaf) != "float64":
        return add(numbers if weights is None else numbers * xp.float64(evaluate(in_float64, xp, [weights], {})))
    return total_signed(xp, numbers, add) if weights is None else total_products(xp, numbers, wide(xp, weights), add)


def total(xp: Any, values: Array, add: Callable[[Array], Array]) -> Pair:
    """The sum of float64 numbers that are not negative, and what is lost when it is rounded.

    `add` sums, and keeps the axes. Numbers are cut at one place, near the last digit of their sum: the upper parts add
    up without rounding, and the lower parts are too small for theirs to matter.
    """
    plain = add(values)
    return _cut(xp, values, plain, plain, add)


def total_signed(xp: Any, values: Array, add: Callable[[Array], Array]) -> Pair:
    """The same for numbers of both signs, which are cut near the last digit of the sum of their sizes."""
    return _cut(xp, values, add(values), add(xp.abs(values)), add)


def total_products(xp: Any, first: Array, second: Array | Pair, add: Callable[[Array], Array]) -> Pair:
    """The sum of products of float64 numbers, of which those of the upper halves of their digits are exact."""
    if isinstance(second, Pair):
        second = in_range(xp, second)
        found = total_products(xp, first, second.high, add)
        return _finite(xp, found.high, found.high, found.low + add(first * second.low))
    a, b = xp.high_half(first), xp.high_half(second)
    upper = total_signed(xp, a * b, add)
    return _finite(xp, add(first * second), upper.high, upper.low + add((first - a) * b + first * (second - b)))


def total_squares(xp: Any, parts: Sequence[Array], add: Callable[[Array], Array]) -> Pair:
    """The sum of the squares of float64 numbers, and what is lost when it is rounded.

    The squares that are cut are those of halves of the numbers' digits, which are exact: a compiler that fuses
    multiplication and addition in one place and not in another changes nothing.
    """
    heads = [xp.high_half(part) for part in parts]
    totals = [Number(xp, *total(xp, head * head, add)[:2]) for head in heads]
    upper, plain = functools.reduce(operator.add, totals), functools.reduce(operator.add, [t.high for t in totals])
    rests = (add((part - head) * (part + head)) for part, head in zip(parts, heads, strict=True))
    return _finite(xp, plain, upper.high, functools.reduce(operator.add, rests, upper.low))


def root(xp: Any, squares: Array | Pair) -> Pair:
    """The square root of float64 numbers or pairs, zero and its derivative where they are zero."""
    exact = Exact(xp)
    found = exact.root(exact.number(squares))
    return Pair(found.high, found.rest)


def in_units(xp: Any, found: Pair, unit: Array) -> Pair:
    """A pair times positive float64 numbers: exactly for powers of two, else rounded as a product is."""
    space = Space(xp)
    by = space.number(unit)
    value = Ranged(xp, Number(xp, found.high, found.low).times(by.high), by.exponent)
    return Pair(value.high, value.pair.rest, value.exponent)


def length(xp: Any, plain: Array, unit: Array, parts: Sequence[Array]) -> Array:
    """The absolute values of complex numbers, rounded once, from plain ones that may be a little off.

    The unit is a power of two near each plain value, so that no square is lost; derivatives are those of plain ones.
    """
    exact = Exact(xp)
    real, imag = (exact.number(xp.stop_gradient(part) / unit) for part in parts)
    sound = xp.isfinite(plain) & (plain > 0.0)
    better = exact.root(real * real + imag * imag).high * unit
    return plain + xp.stop_gradient(xp.where(sound, better - plain, 0.0))


def _cut(xp: Any, values: Array, plain: Array, size: Array, add: Callable[[Array], Array]) -> Pair:
    # The parts are those of halves of digits, which bits decide: a compiler may compute the values twice, as a product
    # that is rounded, and fused with the sum after it, and the upper part must be the same both times.
    grid = xp.stop_gradient(4.0 * size)
    upper = xp.stop_gradient((xp.high_half(xp.stop_gradient(values)) + grid) - grid)
    return _finite(xp, plain, add(upper), add(values - upper))


def _finite(xp: Any, plain: Array, upper: Array, lower: Array) -> Pair:
    """The sum of two parts as a pair; the plain sum where a part has left the range of float64."""
    high, low = two_sum(upper, lower)
    sound = xp.isfinite(high)
    return Pair(xp.where(sound, high, plain), xp.where(sound, low, 0.0))
