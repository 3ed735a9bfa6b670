"""Numbers of twice the precision of float64, as unevaluated sums of two; for trees that hold float64 gradients.

A factor is the result of a few roundings, and each costs a float64 gradient up to a unit in the last place; computed
in pairs and rounded once, it costs half of one. Where NumPy computes, its longdouble serves instead.

Source: Dekker, A floating-point technique for extending the available precision, 1971. Products are taken of halves
short enough to be exact, so that a compiler that fuses multiplication and addition changes nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform import _host as host
from gradxform._backend import Array, Backend
from gradxform._numbers import Exact, Number, Pair, two_sum
from gradxform._ranged import BITS, Ranged, Space, evaluate, in_float64, in_float64_powers, powers


def pair(value: Any) -> Any:
    """A number or an array of NumPy's longdouble as a pair; others as they are."""
    if getattr(value, "dtype", None) != np.longdouble or value.dtype == np.float64:
        return value
    exponent = np.where(np.isfinite(value), np.rint(np.frexp(value)[1] / BITS), 0.0)
    if np.any(exponent):
        value = np.ldexp(value, (-BITS * exponent).astype(np.int32))
    high = value.astype(np.float64)
    return Pair(high, (value - high).astype(np.float64), exponent if np.any(exponent) else None)


def unpaired(value: Pair) -> Any:
    """A pair of NumPy arrays as longdouble numbers."""
    found = value.high.astype(np.longdouble) + value.low
    if value.exponent is None:
        return found
    return np.ldexp(found, (BITS * np.maximum(value.exponent, -20.0)).astype(np.int32))


def rounded(backend: Backend, value: Any) -> Any:
    """A vector or a number in float64: of a pair, and of NumPy's longdouble."""
    if isinstance(value, Pair):
        value = backend.compute(in_float64, value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    with np.errstate(all="ignore"):
        return value.astype(np.float64)


def factors(backend: Backend, value: Any) -> list[Any]:
    """What to multiply by, one after the other: float64 numbers, for a factor that may be out of their range."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = pair(value)
        if not isinstance(value, Pair) or value.exponent is None:
            return [rounded(backend, getattr(value, "high", value))]
        with np.errstate(all="ignore"):
            return list(evaluate(in_float64_powers, host.Vectors, [value], {}))
    return list(backend.compute(in_float64_powers, value)) if isinstance(value, Pair) else [value]


def elementwise(
    formula: Callable[..., Any],
    xp: Any,
    elements: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    double: bool,
    static: dict[str, Any],
) -> Any:
    """A formula of float64 elements, the first of them times a factor.

    If double, in pairs, rounded once; in float64 where it leaves the range of pairs.
    """
    space, exact = Space(xp), Exact(xp)
    numbers, by = [in_range(xp, number) for number in numbers], _powers(space, factor)
    elements = [in_range(xp, part) for part in elements]

    def whole(xp: Any, part: Callable[[Any], Any]) -> Any:
        first, *others = map(part, elements)
        for power in map(part, by):
            first = first * power
        return formula(xp, first, *others, *map(part, numbers), **static)

    plain = whole(xp, lambda value: value.high if isinstance(value, Pair) else value)
    if not double:
        return plain
    found = whole(exact, exact.number)
    return xp.where(xp.isfinite(found.high), found.high, plain) if isinstance(found, Number) else found


def _powers(space: Space, factor: Any) -> list[Any]:
    """What to multiply by, one after the other."""
    if factor is None or getattr(factor, "exponent", None) is None:
        return [] if factor is None else [factor]
    pair, *coarse = powers(space.number(factor))
    return [Pair(pair.high, pair.low), *coarse]


def in_range(xp: Any, number: Any) -> Any:
    """A pair without an exponent; what is none, as it is."""
    if getattr(number, "exponent", None) is None:
        return number
    pair, *coarse = powers(Space(xp).number(number))
    for power in coarse:
        pair = pair.times(power)
    return Pair(pair.high, pair.low)


def blend(xp: Any, first: Any, x: Array, second: Any, y: Array) -> Array:
    """First * x + second * y for numbers and float32 elements in float64, as if it were rounded to float64 once.

    The numbers' halves times elements are exact, so that a compiler that fuses multiplication and addition changes no
    bit: a decay of 0.9 puts every tenth sum next to the middle of two float32 numbers, where the last bit decides.
    """
    if isinstance(xp, Exact):
        return first * x + second * y
    head = xp.head(first)
    return _with(xp, head * x, (first - head) * x, second, y)


def increased(xp: Any, x: Array, second: Any, y: Array) -> Array:
    """X + second * y, in the same way."""
    return x + second * y if isinstance(xp, Exact) else _with(xp, x, 0.0, second, y)


def _with(xp: Any, x: Array, rest: Any, second: Any, y: Array) -> Array:
    head = xp.head(second)
    high, low = two_sum(x, head * y)
    return xp.where(xp.isfinite(high), high + xp.fixed(low + (rest + (second - head) * y)), high)


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
    a, b = xp.head(first), xp.head(second)
    upper = total_signed(xp, a * b, add)
    return _finite(xp, add(first * second), upper.high, upper.low + add((first - a) * b + first * (second - b)))


def _cut(xp: Any, values: Array, plain: Array, size: Array, add: Callable[[Array], Array]) -> Pair:
    # The parts are those of halves of digits, which bits decide: a compiler may compute the values twice, as a product
    # that is rounded, and fused with the sum after it, and the upper part must be the same both times.
    grid = xp.stop_gradient(4.0 * size)
    upper = xp.stop_gradient((xp.head(xp.stop_gradient(values)) + grid) - grid)
    return _finite(xp, plain, add(upper), add(values - upper))


def _finite(xp: Any, plain: Array, upper: Array, lower: Array) -> Pair:
    """The sum of two parts as a pair; the plain sum where a part has left the range of float64."""
    high, low = two_sum(upper, lower)
    sound = xp.isfinite(high)
    return Pair(xp.where(sound, high, plain), xp.where(sound, low, 0.0))


def total_squares(xp: Any, parts: Sequence[Array], add: Callable[[Array], Array]) -> Pair:
    """The sum of the squares of float64 numbers, and what is lost when it is rounded.

    The squares that are cut are those of halves of the numbers' digits, which are exact: a compiler that fuses
    multiplication and addition in one place and not in another changes nothing.
    """
    heads = [xp.head(part) for part in parts]
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
