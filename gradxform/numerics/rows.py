"""Sums of float32 pairs with error below 2^-31 of the sum of absolute values, in any order of addition.

A row of at most `Format.row` numbers is split at two common bits. The two upper parts sum exactly. The lowest part
is so small that its rounding does not matter. Longer axes become rows of rows.

Source: Rump, Ogita and Oishi, Accurate floating-point summation, 2008.
"""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, Pair, is_nothing, two_sum
from gradxform.numerics.formats import base

_FINER = 2.0**-10
"""The second bit relative to the first: the remainders of 2^12 numbers sum below 2^-12 of it."""
_TRIES = 64
"""How many row lengths to try for one that divides an axis."""


def sum_along(values: Number, axis: int) -> Number:
    """Sum over an axis with keepdims; infinite or NaN where the float32 sum is."""
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
    """Square numbers scaled to near the largest; exact for short numbers, with half of float32's digits.

    All products use half-length numbers, so a fused multiply-add changes nothing.
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
    last = (high - upper) - middle  # carries the derivatives
    last = last if is_nothing(values.low) else last + values.low
    lower = xp.sum_over(middle, (axis,)) + xp.sum_over(last, (axis,))
    return Number(xp, *finite(xp, plain, xp.sum_over(upper, (axis,)), lower)[:2])


def _length(count: int, most: int) -> int:
    """Return the row length: a divisor of the axis if easily found, else the maximum."""
    least = -(-count // most)
    return next((count // rows for rows in range(least, least + _TRIES) if count % rows == 0), most)


def _plus(one: Number, other: Number) -> Number:
    found = one + other
    return Number(one.xp, *finite(one.xp, one.high + other.high, found.high, found.low)[:2])


def _reshaped(values: Number, shape: tuple[int, ...]) -> Number:
    return values.parts(lambda part: values.xp.reshape(part, shape))


def finite(xp: Any, plain: Array, upper: Array, lower: Array) -> Pair:
    """Add two parts as a pair; the plain sum where a part overflows the base format."""
    high, low = two_sum(upper, lower)
    sound = xp.isfinite(high)
    return Pair(xp.where(sound, high, plain), xp.where(sound, low, 0.0))
