"""Formulas of elements, in float64 or in twice its precision, and sums of products that no compiler changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name
from gradxform.numerics.blending import Blending
from gradxform.numerics.double_double import Number, Pair, two_sum
from gradxform.numerics.exact import Exact
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.ranged import Ranged, Space, powers, settled
from gradxform.numerics.rescale import by_parts
from gradxform.numerics.widening import constant
from gradxform.numerics.widening import wide as wide


def of_leaf(
    formula: Callable[..., Any],
    xp: Any,
    column: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    static: dict[str, Any],
) -> Array:
    """A formula of a leaf's elements beside those of others, rounded once to the dtype that sums of it are kept in."""
    double = dtype_name(column[0]) in base(xp).paired
    numbers, factor = [constant(xp, number) for number in numbers], None if factor is None else constant(xp, factor)

    def real(*parts: Any) -> Array:
        given = [wide(xp, part) for part in parts]
        found = of_elements(formula, xp, given, numbers, factor, double, static)
        return xp.cast(found, base(xp).name if double else "float32")

    return by_parts(xp, real, *column)


def of_elements(
    formula: Callable[..., Any],
    xp: Any,
    elements: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    double: bool,
    static: dict[str, Any],
) -> Any:
    """A formula of elements in the base format, the first of them times a factor.

    If double, in pairs, rounded once, with exponents if they are of float32; else, and where it leaves the range of
    pairs, in the base format itself.
    """
    space: Any = Blending(xp)
    by = [] if factor is None else [factor]
    if base(xp) is FLOAT64:
        by = _powers(space, factor)
        space, (numbers, elements) = Exact(xp), ([in_range(xp, part) for part in some] for some in (numbers, elements))

    def whole(xp: Any, part: Callable[[Any], Any]) -> Any:
        first, *others = map(part, elements)
        for power in map(part, by):
            first = first * power
        return formula(xp, first, *others, *map(part, numbers), **static)

    plain = whole(xp, lambda value: value.high if isinstance(value, Pair) else value)
    if not double:
        return plain
    single = base(xp) is not FLOAT64
    found = whole(space, lambda value: value if single and isinstance(value, float) else space.number(value))
    if not isinstance(found, (Number, Ranged)):
        return found
    return xp.where(xp.isfinite(found.high), settled(found) if isinstance(found, Ranged) else found.high, plain)


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


@dataclasses.dataclass(frozen=True)
class Combination:
    """A formula of two elements: a * x + b * y, whose weights are numbers.

    Rounded as if it were computed in float64 without rounding before. A framework that is given two weights may add
    up in a way of its own.
    """

    weights: Callable[..., tuple[Any, Any]]
    """Of a namespace and the formula's numbers; the first weight may be the Python number one."""

    def __call__(self, xp: Any, x: Any, y: Any, *numbers: Any) -> Any:
        """The sum, for elements of float32 and narrower in float64, or of float64 in pairs."""
        first, second = self.weights(xp, *numbers)
        if isinstance(xp, Exact):
            return xp.blend(first, x, second, y)
        if _is_one(first):
            return _with(xp, x, 0.0, second, y)
        head, tail = Number(xp, first).halves()
        return _with(xp, head * x, tail * x, second, y)


def _is_one(weight: Any) -> bool:
    return isinstance(weight, float) and weight == 1.0


def _with(xp: Any, x: Array, rest: Any, second: Any, y: Array) -> Array:
    """X + rest + second * y.

    Halves of a number's digits times elements are exact, so that a compiler that fuses multiplication and addition
    changes no bit: a decay of 0.9 puts every tenth sum next to the middle of two float32 numbers, where the last bit
    decides.
    """
    head, tail = Number(xp, second).halves()
    high, low = two_sum(x, head * y)
    return xp.where(xp.isfinite(high), high + xp.no_reassociation(low + (rest + tail * y)), high)
