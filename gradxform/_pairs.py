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
from typing import Any, NamedTuple

import numpy as np

from gradxform._backend import Array

_SMALL = 2.0**-900
"""Below it the lower half of a number may be subnormal, and lost."""


class Pair(NamedTuple):
    """The value high + low of a vector or a number; high is the value rounded to float64."""

    high: Array
    low: Array


def pair(value: Any) -> Any:
    """A number or an array of NumPy's longdouble as a pair; others as they are."""
    if getattr(value, "dtype", None) != np.longdouble or value.dtype == np.float64:
        return value
    high = value.astype(np.float64)
    return Pair(high, (value - high).astype(np.float64))


def rounded(value: Any) -> Any:
    """A vector or a number in float64: of a pair, and of NumPy's longdouble."""
    if isinstance(value, Pair):
        return value.high
    return value.astype(np.float64) if isinstance(value, (np.ndarray, np.generic)) else value


def evaluate(formula: Callable[..., Any], xp: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """A formula in float64, or in pairs if an operand is one."""
    if not any(isinstance(operand, Pair) for operand in operands):
        return formula(xp, *operands, **static)
    exact = Exact(xp)
    return _plain(formula(exact, *map(exact.number, operands), **static))


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

    def whole(xp: Any, *given: Any) -> Any:
        if factor is not None:
            given = (given[0] * given[-1], *given[1:-1])
        return formula(xp, *given, **static)

    given = [*elements, *numbers, *(() if factor is None else (factor,))]
    plain = whole(xp, *map(rounded, given))
    if not double:
        return plain
    exact = Exact(xp)
    found = whole(exact, *map(exact.number, given))
    return xp.where(xp.isfinite(found.high), found.high, plain) if isinstance(found, Number) else found


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
    high, low = _two_sum(x, head * y)
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
    high, low = _two_sum(upper, lower)
    sound = xp.isfinite(high)
    return Pair(xp.where(sound, high, plain), xp.where(sound, low, 0.0))


def total_squares(xp: Any, parts: Sequence[Array], add: Callable[[Array], Array]) -> Pair:
    """The sum of the squares of float64 numbers, and what is lost when it is rounded.

    The squares that are cut are those of halves of the numbers' digits, which are exact: a compiler that fuses
    multiplication and addition in one place and not in another changes nothing.
    """
    heads = [xp.head(part) for part in parts]
    totals = [Number(xp, *total(xp, head * head, add)) for head in heads]
    upper, plain = functools.reduce(operator.add, totals), functools.reduce(operator.add, [t.high for t in totals])
    rests = (add((part - head) * (part + head)) for part, head in zip(parts, heads, strict=True))
    return _finite(xp, plain, upper.high, functools.reduce(operator.add, rests, upper.low))


def root(xp: Any, squares: Array | Pair) -> Pair:
    """The square root of float64 numbers or pairs, zero and its derivative where they are zero."""
    exact = Exact(xp)
    return _plain(exact.root(exact.number(squares)))


def length(xp: Any, plain: Array, unit: Array, parts: Sequence[Array]) -> Array:
    """The absolute values of complex numbers, rounded once, from plain ones that may be a little off.

    The unit is a power of two near each plain value, so that no square is lost; derivatives are those of plain ones.
    """
    exact = Exact(xp)
    real, imag = (exact.number(xp.stop_gradient(part) / unit) for part in parts)
    sound = xp.isfinite(plain) & (plain > 0.0)
    better = exact.root(real * real + imag * imag).high * unit
    return plain + xp.stop_gradient(xp.where(sound, better - plain, 0.0))


def _plain(value: Any) -> Any:
    return Pair(value.high, value.rest) if isinstance(value, Number) else value


class Number:
    """A pair with operators."""

    def __init__(self, xp: Any, high: Array, low: Array = 0.0) -> None:
        self.xp, self.high, self.low = xp, high, low

    @property
    def rest(self) -> Array:
        """The low part as an array."""
        return self.xp.where(self.high <= self.high, 0.0, 0.0) if isinstance(self.low, float) else self.low

    @property
    def shape(self) -> Any:
        """The shape of both parts."""
        return self.high.shape

    def _of(self, other: Any) -> Number:
        return other if isinstance(other, Number) else Number(self.xp, other)

    def _sum(self, high: Array, low: Array) -> Number:
        """High and a much smaller low; infinity becomes NaN, which a limit makes of it as well."""
        low = self.xp.fixed(low)
        total = high + low
        return Number(self.xp, total, low - (total - high))

    def __add__(self, other: Any) -> Number:
        """The sum."""
        other = self._of(other)
        high, low = _two_sum(self.high, other.high)
        return self._sum(high, low + (self.low + other.low))

    def __sub__(self, other: Any) -> Number:
        """The difference."""
        other = self._of(other)
        return self + Number(self.xp, -other.high, -other.low)

    def __neg__(self) -> Number:
        """The negative."""
        return Number(self.xp, -self.high, -self.low)

    def __radd__(self, other: Any) -> Number:
        """The sum."""
        return self + other

    def __rsub__(self, other: Any) -> Number:
        """The difference from a number."""
        return self._of(other) - self

    def __rtruediv__(self, other: Any) -> Number:
        """The quotient of a number."""
        return self._of(other) / self

    def __mul__(self, other: Any) -> Number:
        """The product."""
        other = self._of(other)
        a, b = self.xp.head(self.high), self.xp.head(other.high)
        a_rest, b_rest = self.high - a, other.high - b
        first, low = _two_sum(a * b, a * b_rest)
        high, more = _two_sum(first, a_rest * b)
        cross = self.high * other.low + self.low * other.high
        exact = self._sum(high, low + more + (a_rest * b_rest + cross))
        small = (self.xp.abs(self.high) < _SMALL) | (self.xp.abs(other.high) < _SMALL)
        return Number(
            self.xp, self.xp.where(small, self.high * other.high, exact.high), self.xp.where(small, 0.0, exact.low)
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        """The quotient."""
        other = self._of(other)
        quotient = self.high / other.high
        rest = self - other * Number(self.xp, quotient)
        return self._sum(quotient, rest.high / other.high)

    def __pow__(self, exponent: float) -> Number:
        """A power, in float64."""
        return Number(self.xp, self.high**exponent)

    def __le__(self, other: Any) -> Array:
        """Whether not larger."""
        other = self._of(other)
        return (self.high < other.high) | ((self.high <= other.high) & (self.low <= other.low))

    def __lt__(self, other: Any) -> Array:
        """Whether smaller."""
        other = self._of(other)
        return (self.high < other.high) | ((self.high <= other.high) & (self.low < other.low))

    def __gt__(self, other: Any) -> Array:
        """Whether larger."""
        return self._of(other) < self

    def __ge__(self, other: Any) -> Array:
        """Whether not smaller."""
        return self._of(other) <= self

    def __eq__(self, other: object) -> Any:
        """Whether equal, element by element."""
        pair = self._of(other)
        return (self <= pair) & (pair <= self)

    def __ne__(self, other: object) -> Any:
        """Whether different, element by element."""
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum rounded, and what rounding took."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


class Exact:
    """A namespace's functions on pairs."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def number(self, operand: Any) -> Number:
        """A vector, a number or a pair as a pair."""
        if isinstance(operand, Number):
            return operand
        high, low = operand if isinstance(operand, Pair) else (operand, 0.0)
        return Number(self.xp, high, low)

    def where(self, condition: Array, yes: Any, no: Any) -> Number:
        """Elementwise choice."""
        yes, no = self.number(yes), self.number(no)
        return Number(self.xp, self.xp.where(condition, yes.high, no.high), self.xp.where(condition, yes.low, no.low))

    def isfinite(self, x: Number) -> Array:
        """Whether neither NaN nor infinite."""
        return self.xp.isfinite(x.high)

    def sqrt(self, x: Number) -> Number:
        """The square root of what is positive."""
        near = self.xp.sqrt(x.high)
        root = Number(self.xp, near)
        rest = x - root * root
        return x._sum(near, rest.high / (2.0 * near))

    def root(self, x: Number) -> Number:
        """The square root, zero and its derivative where x is zero; infinity's is infinite."""
        positive = (x.high > 0.0) & self.xp.isfinite(x.high)
        near = self.sqrt(self.where(positive, x, 1.0))
        return self.where(positive, near, Number(self.xp, x.high * 1.0))

    def abs(self, x: Number) -> Number:
        """The absolute value."""
        return self.where(x.high < 0, Number(self.xp, -x.high, -x.low), x)

    def sum(self, x: Number) -> Number:
        """The sum of a vector, in pairs of elements."""
        odd: Number | None = None
        while x.shape[0] > 1:
            half, count = x.shape[0] // 2, x.shape[0]
            if count % 2:
                last = self._at(x, count - 1)
                odd = last if odd is None else odd + last
            low = x.rest
            x = Number(self.xp, x.high[:half], low[:half]) + Number(
                self.xp, x.high[half : 2 * half], low[half : 2 * half]
            )
        total = self._at(x, 0)
        return total if odd is None else total + odd

    @staticmethod
    def _at(x: Number, place: int) -> Number:
        return Number(x.xp, x.high[place], x.rest[place])

    def max(self, x: Number) -> Number:
        """The largest, in float64."""
        return Number(self.xp, self.xp.max(x.high))

    def any(self, condition: Array) -> Array:
        """Whether any is true."""
        return self.xp.any(condition)

    def stop_gradient(self, x: Number) -> Number:
        """The same value, of which no gradient is asked."""
        return Number(self.xp, self.xp.stop_gradient(x.high), x.low)

    def rounded(self, x: Any, dtype: str) -> Number:
        """To the nearest number of a dtype."""
        return Number(self.xp, self.xp.rounded(self.number(x).high, dtype))

    def take(self, x: Number, index: Any) -> Number:
        """Some numbers of a vector."""
        return Number(self.xp, self.xp.take(x.high, index), self.xp.take(x.rest, index))

    def stack(self, numbers: Sequence[Any]) -> Number:
        """Numbers as a vector."""
        if all(isinstance(number, float) for number in numbers):
            return Number(self.xp, self.xp.stack(numbers))
        pairs = [self.number(number) for number in numbers]
        return Number(self.xp, self.xp.stack([p.high for p in pairs]), self.xp.stack([p.rest for p in pairs]))

    def mask(self, active: tuple[bool, ...]) -> Array:
        """Bools as a vector."""
        return self.xp.mask(active)

    def reshape(self, x: Number, shape: tuple[int, ...]) -> Number:
        """The same numbers in another shape."""
        return Number(self.xp, self.xp.reshape(x.high, shape), self.xp.reshape(x.rest, shape))
