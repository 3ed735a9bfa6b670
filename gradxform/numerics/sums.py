"""Sums, roots and absolute values in twice the precision of the base format (error-free extraction).

Split every summand at a common bit near the last digit of the sum. The high parts then sum exactly, and rounding of
the low parts does not matter. This holds for at least 2^26 numbers of float64; for float32 see `rows.py`.

Source: Dekker, A floating-point technique for extending the available precision, 1971. Products use halves short
enough to be exact, so a fused multiply-add changes nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name
from gradxform.numerics.double_double import Number, Pair, is_nothing
from gradxform.numerics.elementwise import in_range
from gradxform.numerics.exact import Exact
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.ranged import Ranged, Space, evaluate, in_base
from gradxform.numerics.rows import finite, square, sum_along
from gradxform.numerics.widening import wide

Axes = tuple[int, ...] | None
"""Axes to sum over with keepdims; None for all axes without keepdims."""
Adder = Callable[[Any], Any]
"""Sums an array over axes; for float32 also a number in pairs."""


def sum_over(xp: Any, leaf: Array, axes: tuple[int, ...], weights: Any) -> Array | Pair:
    """Sum a real leaf times broadcasting weights over some axes with keepdims; pairs for float64 leaves."""
    add, numbers = adder(xp, axes), xp.float64(leaf)
    if base(xp) is not FLOAT64:
        return _in_one_unit(xp, numbers, axes, weights)
    if dtype_name(leaf) != "float64":
        return add(numbers if weights is None else numbers * xp.float64(evaluate(in_base, xp, [weights], {})))
    return total_signed(xp, numbers, add) if weights is None else total_products(xp, numbers, wide(xp, weights), add)


def _in_one_unit(xp: Any, numbers: Array, axes: tuple[int, ...], weights: Any) -> Pair:
    """Sum numbers of any size, or their products, in the unit of the largest summand."""
    space = Space(xp)
    terms = space.number(numbers)
    if weights is not None:
        terms = terms * space.number(wide(xp, weights))
    far = 2.0**12  # lower than any exponent; without numbers the maximum is zero
    unit = xp.max_over(terms.exponent + far, axes) - far
    found = Ranged(xp, adder(xp, axes)(terms.at(unit)), unit)
    return Pair(found.high, found.pair.rest, found.exponent)


def adder(xp: Any, axes: Axes) -> Adder:
    """Return a function that sums an array over axes; for float32 also numbers in pairs."""

    def add(values: Any) -> Any:
        if not isinstance(values, Number):
            return xp.sum_over(values, axes)
        if axes is None:
            return sum_along(values.parts(lambda part: xp.reshape(part, (-1,))), 0)[0]
        return functools.reduce(sum_along, axes, values)

    return add


def total(xp: Any, values: Array | Number, add: Adder) -> Pair:
    """Sum nonnegative numbers with `add`; return the rounded sum and its rounding error."""
    return _total(xp, values, add, signed=False)


def total_signed(xp: Any, values: Array | Number, add: Adder) -> Pair:
    """Sum numbers of both signs, split near the last digit of the sum of absolute values."""
    return _total(xp, values, add, signed=True)


def _total(xp: Any, values: Array | Number, add: Adder, signed: bool) -> Pair:
    number = values if isinstance(values, Number) else Number(xp, values)
    if base(xp).row is None:
        return finite(xp, *_cut(xp, [number], add, signed=signed))
    found = add(number)
    return Pair(found.high, found.rest)


def total_products(xp: Any, first: Array, second: Array | Pair, add: Adder) -> Pair:
    """Sum products of float64 numbers; products of upper halves are exact."""
    if isinstance(second, Pair):
        second = in_range(xp, second)
        found = total_products(xp, first, second.high, add)
        return finite(xp, found.high, found.high, found.low + add(first * second.low))
    a, b = xp.high_half(first), xp.high_half(second)
    upper = total_signed(xp, a * b, add)
    return finite(xp, add(first * second), upper.high, upper.low + add((first - a) * b + first * (second - b)))


def total_squares(xp: Any, parts: Sequence[Array], add: Adder, short: bool = False) -> Pair:
    """Sum squares; return the rounded sum and its rounding error. Short numbers have half of the digits.

    Only exact squares of half-length numbers are split, so a fused multiply-add in one place and not in another changes
    nothing.
    """
    if base(xp).row is None:
        return finite(xp, *split_squares(xp, parts, add))
    totals = [Number(xp, *total(xp, square(xp, part, short), add)[:2]) for part in parts]
    if len(totals) == 1:
        return Pair(totals[0].high, totals[0].low)
    upper, found = [number.high for number in totals], functools.reduce(operator.add, totals)
    return finite(xp, functools.reduce(operator.add, upper), found.high, found.low)


def split_squares(xp: Any, parts: Sequence[Array], add: Adder) -> tuple[Array, Array, Array]:
    """Sum squares of float64 numbers; return the plain sum, and two parts of the exact sum, for `finite`."""
    heads = [xp.high_half(part) for part in parts]
    both = zip(parts, heads, strict=True)
    squares = [Number(xp, head * head, (part - head) * (part + head)) for part, head in both]
    return _cut(xp, squares, add, exact=True)


def root(xp: Any, squares: Array | Pair) -> Pair:
    """Return the square root of numbers or pairs; zero, with derivative zero, at zero."""
    exact = Exact(xp)
    found = exact.root(exact.number(squares))
    return Pair(found.high, found.rest)


def in_units(xp: Any, found: Pair, unit: Array, exact: bool = True) -> Pair:
    """Multiply a pair by positive numbers; exact for powers of two."""
    space = Space(xp)
    by = space.number(unit)
    if exact or base(xp) is FLOAT64:
        value = Ranged(xp, Number(xp, found.high, found.low).times(by.high), by.exponent)
    else:
        value = space.number(found) * by
    return Pair(value.high, value.pair.rest, value.exponent)


def length(xp: Any, plain: Array, unit: Array, parts: Sequence[Array]) -> Array:
    """Return the absolute values of complex numbers, rounded once, from slightly inaccurate plain ones.

    The unit is a power of two near each plain value, so no square is lost. Derivatives come from the plain values.
    """
    exact = Exact(xp)
    real, imag = (exact.number(xp.stop_gradient(part) / unit) for part in parts)
    sound = xp.isfinite(plain) & (plain > 0.0)
    better = exact.root(real * real + imag * imag).high * unit
    return plain + xp.stop_gradient(xp.where(sound, better - plain, 0.0))


def _cut(
    xp: Any, values: Sequence[Number], add: Adder, *, signed: bool = False, exact: bool = False
) -> tuple[Array, Array, Array]:
    # A compiler may compute the values twice, rounded and fused with the sum after it. Splitting bits gives the same
    # upper part both times. Exact products, of halves or of float32, are the same both times.
    plain = _added(add(number.high) for number in values)
    size = _added(add(xp.abs(number.high)) for number in values) if signed else plain
    grid, uppers, lowers = xp.stop_gradient(4.0 * size), [], []
    for number in values:
        whole = xp.stop_gradient(number.high)
        uppers.append(xp.stop_gradient(((whole if exact else xp.high_half(whole)) + grid) - grid))
        lower = number.high - uppers[-1]
        lowers.append(lower if is_nothing(number.low) else lower + number.low)
    return plain, _added(map(add, uppers)), _added(map(add, lowers))


def _added(numbers: Iterable[Array]) -> Array:
    return functools.reduce(operator.add, numbers)
