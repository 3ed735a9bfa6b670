"""Sums of pairs of float32 numbers, right to 2^-31 of the sum of their sizes in whatever order a device adds.

A row of at most `Format.row` numbers is cut twice: multiples of a bit near the last digit of the sum, multiples of a
bit further down, and what is left. The first two add up without rounding; the last is too small for its rounding to
matter. Longer axes are rows of rows.

Source: Rump, Ogita and Oishi, Accurate floating-point summation, 2008.
"""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, Pair, is_nothing, two_sum
from gradxform.numerics.formats import base

_FINER = 2.0**-10
"""The second cut's bit in units of the first's: what the first one leaves of 2^12 numbers adds up below 2^-12 of it."""
_TRIES = 64
"""How many row lengths are tried for one that divides an axis."""


def sum_along(values: Number, axis: int) -> Number:
    """The sum over an axis, kept as one; infinite or NaN where float32's is."""
    shape, most = tuple(values.shape), base(values.xp).row
    axis %= len(shape)
    if most is None or shape[axis] <= most:
        return _of_row(values, axis)
    before, row = (slice(None),) * axis, _length(shape[axis], most)
    count = shape[axis] // row
    there = values if count * row == shape[axis] else values[(*before, slice(count * row))]
    rows = _reshaped(there, (*shape[:axis], count, row, *shape[axis + 1 :]))
    found = sum_along(_reshaped(sum_along(rows, axis + 1), (*shape[:axis], count, *shape[axis + 1 :])), axis)
    if there is values:
        return found
    return _plus(found, sum_along(values[(*before, slice(count * row, None))], axis))


def square(xp: Any, x: Array, short: bool) -> Number:
    """The squares of numbers in a unit near the largest; of short ones, with half of float32's digits, they are exact.

    All products are of halves of digits: a compiler that fuses multiplication and addition changes nothing.
    """
    if short:
        return Number(xp, x * x)
    head = xp.high_half(x)
    rest = x - head
    cross = 2.0 * head * rest
    high = head * head + cross
    return Number(xp, high, (cross - (high - head * head)) + rest * rest)


def _of_row(values: Number, axis: int) -> Number:
    xp, high = values.xp, values.high
    whole, plain = xp.stop_gradient(high), xp.sum_over(high, (axis,))
    grid = 4.0 * xp.sum_over(xp.abs(whole), (axis,))
    upper = (whole + grid) - grid
    finer, rest = grid * _FINER, whole - upper
    middle = (rest + finer) - finer
    last = (high - upper) - middle  # of which derivatives are taken
    last = last if is_nothing(values.low) else last + values.low
    lower = xp.sum_over(middle, (axis,)) + xp.sum_over(last, (axis,))
    return Number(xp, *finite(xp, plain, xp.sum_over(upper, (axis,)), lower)[:2])


def _length(count: int, most: int) -> int:
    """The length of rows: one that divides the axis if it is easily found, else the longest."""
    least = -(-count // most)
    return next((count // rows for rows in range(least, least + _TRIES) if count % rows == 0), most)


def _plus(one: Number, other: Number) -> Number:
    found = one + other
    return Number(one.xp, *finite(one.xp, one.high + other.high, found.high, found.low)[:2])


def _reshaped(values: Number, shape: tuple[int, ...]) -> Number:
    return values.parts(lambda part: values.xp.reshape(part, shape))


def finite(xp: Any, plain: Array, upper: Array, lower: Array) -> Pair:
    """The sum of two parts as a pair; the plain sum where a part has left the range of the base format."""
    high, low = two_sum(upper, lower)
    sound = xp.isfinite(high)
    return Pair(xp.where(sound, high, plain), xp.where(sound, low, 0.0))
