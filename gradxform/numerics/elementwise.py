"""Elementwise formulas in float64 or float64 pairs, and sums of products that compilers cannot change."""

from __future__ import annotations

import dataclasses
import functools
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
    """Apply an elementwise formula to a leaf and other arrays; round once to the dtype of sums."""
    double = dtype_name(column[0]) in base(xp).paired
    if isinstance(formula, Single) and factor is None and base(xp) is FLOAT64:
        return by_parts(xp, functools.partial(_in_one_dtype, formula, xp, double), *column)
    numbers, factor = [constant(xp, number) for number in numbers], None if factor is None else constant(xp, factor)

    def real(*parts: Any) -> Array:
        given = [wide(xp, part) for part in parts]
        found = of_elements(formula, xp, given, numbers, factor, double, static)
        return xp.cast(found, base(xp).name if double else "float32")

    return by_parts(xp, real, *column)


def _in_one_dtype(formula: Single, xp: Any, double: bool, *parts: Array) -> Array:
    """Apply a formula in the widest dtype of its elements; round to that of the first one's sums."""
    wide = any(dtype_name(part) in FLOAT64.paired for part in parts)
    found = formula(xp, *(xp.cast(part, "float64" if wide else "float32") for part in parts))
    return found if wide is double else xp.cast(found, "float64" if double else "float32")


def of_elements(
    formula: Callable[..., Any],
    xp: Any,
    elements: Sequence[Any],
    numbers: Sequence[Any],
    factor: Any,
    double: bool,
    static: dict[str, Any],
) -> Any:
    """Apply an elementwise formula in the base format; the first operand is multiplied by a factor.

    If `double`, computes in pairs (with exponents if the base is float32) and rounds once. Otherwise, and where pairs
    overflow, computes in the base format.
    """
    space: Any = Blending(xp)
    by = [] if factor is None else [factor]
    if base(xp) is FLOAT64:
        by = _powers(space, factor)
        space, (numbers, elements) = Exact(xp), ([in_range(xp, part) for part in some] for some in (numbers, elements))

    def whole(xp: Any, part: Callable[[Any], Any]) -> Any:
        return applied(formula, xp, list(map(part, elements)), list(map(part, numbers)), list(map(part, by)), static)

    plain = whole(xp, lambda value: value.high if isinstance(value, Pair) else value)
    if not double:
        return plain
    single = base(xp) is not FLOAT64
    found = whole(space, lambda value: value if single and isinstance(value, float) else space.number(value))
    if not isinstance(found, (Number, Ranged)):
        return found
    return xp.where(xp.isfinite(found.high), settled(found) if isinstance(found, Ranged) else found.high, plain)


def holds_squares(xp: Any) -> bool:
    """Whether squares of float32 elements fit the numbers of a formula: float64 of TPUs has float32's range."""
    return getattr(xp, "has_range", False)


def applied(
    formula: Callable[..., Any],
    xp: Any,
    elements: Sequence[Any],
    numbers: Sequence[Any],
    factors: Sequence[Any],
    static: dict[str, Any],
) -> Any:
    """Apply a formula to elements; the first are multiplied by some factors in turn."""
    first, *others = elements
    for factor in factors:
        first = first * factor
    return formula(xp, first, *others, *numbers, **static)


def _powers(space: Space, factor: Any) -> list[Any]:
    """The factors to multiply by, in turn."""
    if factor is None or getattr(factor, "exponent", None) is None:
        return [] if factor is None else [factor]
    pair, *coarse = powers(space.number(factor))
    return [Pair(pair.high, pair.low), *coarse]


def in_range(xp: Any, number: Any) -> Any:
    """Drop the exponent of a pair; return other values unchanged."""
    if getattr(number, "exponent", None) is None:
        return number
    pair, *coarse = powers(Space(xp).number(number))
    for power in coarse:
        pair = pair.times(power)
    return Pair(pair.high, pair.low)


@dataclasses.dataclass(frozen=True)
class Single:
    """A formula of one sum or difference: rounded in float32, it is what float64 gives when rounded to float32.

    So elements need not be converted to float64, nor float64 elements to pairs. For formulas without numbers.

    Source: Figueroa, When is double rounding innocuous?, 1995.
    """

    formula: Callable[..., Any]

    def __call__(self, xp: Any, *elements: Any) -> Any:
        """Compute it in any precision."""
        return self.formula(xp, *elements)


@dataclasses.dataclass(frozen=True)
class Combination:
    """The formula a * x + b * y of two elements, with numbers as weights.

    Rounded as if computed in float64 without intermediate rounding. With two weights, a framework may use its own
    algorithm.
    """

    weights: Callable[..., tuple[Any, Any]]
    """Computes the weights from a namespace and the formula's numbers; the first may be the Python number 1."""

    def __call__(self, xp: Any, x: Any, y: Any, *numbers: Any) -> Any:
        """Compute the sum: in float64 for float32 and narrower elements, in pairs for float64."""
        first, second = self.weights(xp, *numbers)
        if isinstance(xp, Exact):
            return xp.blend(first, x, second, y)
        if _is_one(first):
            return _with(xp, x, second, y)
        head, tail = Number(xp, first).halves()
        return _with(xp, head * x, second, y, tail * x)


@dataclasses.dataclass(frozen=True)
class Starting(Combination):
    """A combination with other weights in the first step; its first number is positive in later ones."""

    first: Combination
    later: Combination

    def __call__(self, xp: Any, x: Any, y: Any, *numbers: Any) -> Any:
        """Compute the sum; in pairs, Python numbers keep all of their digits."""
        if not isinstance(xp, Exact):
            return super().__call__(xp, x, y, *numbers)
        is_later, *rest = numbers
        return xp.where(is_later > 0.0, self.later(xp, x, y, *rest), self.first(xp, x, y, *rest))


def starting(first: Combination, later: Combination) -> Starting:
    """Return a combination that begins with another one."""

    def weights(xp: Any, is_later: Any, *numbers: Any) -> tuple[Any, Any]:
        (a, b), (c, d) = first.weights(xp, *numbers), later.weights(xp, *numbers)
        return xp.where(is_later > 0.0, c, a), xp.where(is_later > 0.0, d, b)

    return Starting(weights, first, later)


def _is_one(weight: Any) -> bool:
    return isinstance(weight, float) and weight == 1.0


def _with(xp: Any, x: Array, second: Any, y: Array, rest: Any = None) -> Array:
    """Return x + second * y + rest.

    Products of half-length numbers with elements are exact, so a fused multiply-add changes nothing. With a decay of
    0.9, every tenth sum is next to the middle of two float32 numbers, where the last bit decides.
    """
    head, tail = Number(xp, second).halves()
    high, low = two_sum(x, head * y)
    small = tail * y if rest is None else rest + tail * y
    return xp.where(xp.isfinite(high), high + xp.no_reassociation(low + small), high)
