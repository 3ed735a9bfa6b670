"""Formulas of elements, in float64 or in twice its precision, and sums of products that no compiler changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import DOUBLE, Array, dtype_name
from gradxform.numerics.double_double import Exact, Number, Pair, two_sum
from gradxform.numerics.ranged import Space, powers
from gradxform.numerics.rescale import by_parts


def of_leaf(
    formula: Callable[..., Any],
    xp: Any,
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
) -> Array:
    """A formula of a leaf's elements beside those of others, rounded once to the dtype that sums of it are kept in."""
    double = dtype_name(column[0]) in DOUBLE
    numbers, factor = [wide(xp, number) for number in numbers], None if factor is None else wide(xp, factor)

    def real(*parts: Any) -> Array:
        given = [wide(xp, part) for part in parts]
        found = of_elements(formula, xp, given, numbers, factor, double, static)
        return xp.cast(found, "float64" if double else "float32")

    return by_parts(xp, real, *column)


def wide(xp: Any, operand: Any) -> Any:
    """A number or an array in float64; a pair of them as it is."""
    return operand if isinstance(operand, Pair) else xp.float64(operand)


def of_elements(
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
    head = xp.high_half(first)
    return _with(xp, head * x, (first - head) * x, second, y)


def increased(xp: Any, x: Array, second: Any, y: Array) -> Array:
    """X + second * y, in the same way."""
    return x + second * y if isinstance(xp, Exact) else _with(xp, x, 0.0, second, y)


def _with(xp: Any, x: Array, rest: Any, second: Any, y: Array) -> Array:
    head = xp.high_half(second)
    high, low = two_sum(x, head * y)
    return xp.where(xp.isfinite(high), high + xp.no_reassociation(low + (rest + (second - head) * y)), high)
