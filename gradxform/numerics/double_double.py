"""Numbers of twice the precision of the base format, as unevaluated sums of two.

Products are taken of halves short enough to be exact, so that a compiler that fuses multiplication and addition
changes nothing.

Source: Dekker, A floating-point technique for extending the available precision, 1971.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from gradxform.numerics import Array
from gradxform.numerics.formats import base


class Pair(NamedTuple):
    """The value high + low of a vector or a number, in units of a power of two that the exponent counts, if it has one.

    High is the sum rounded to the base format.
    """

    high: Array
    low: Array
    exponent: Array | None = None


class Number:
    """A pair with operators."""

    def __init__(self, xp: Any, high: Array, low: Array = 0.0) -> None:
        self.xp, self.high, self.low = xp, high, low

    @property
    def rest(self) -> Array:
        """The low part, as an array if the number is one."""
        if type(self.low) is not float or type(self.high) is float:
            return self.low
        return self.xp.where(self.high <= self.high, 0.0, 0.0)

    @property
    def shape(self) -> Any:
        """The shape of both parts."""
        return self.high.shape

    def parts(self, change: Callable[..., Array], *others: Number) -> Number:
        """Each part, beside those of other numbers, rearranged."""
        high = change(self.high, *(other.high for other in others))
        if all(is_nothing(number.low) for number in (self, *others)):
            return Number(self.xp, high)
        return Number(self.xp, high, change(self.rest, *(other.rest for other in others)))

    def times(self, power: Array) -> Number:
        """The number times a power of two."""
        return Number(self.xp, self.high * power, 0.0 if is_nothing(self.low) else self.low * power)

    def halves(self) -> tuple[Array, Array]:
        """The upper and the lower half of the digits of the high part."""
        upper = _high_half(self.xp, self.high)
        return upper, self.high - upper

    def _of(self, other: Any) -> Number:
        return other if isinstance(other, Number) else plain(self.xp, other)

    def _sum(self, high: Array, low: Array) -> Number:
        """High and a much smaller low; infinity becomes NaN, which a limit makes of it as well."""
        low = self.xp.no_reassociation(low)
        total = high + low
        return Number(self.xp, total, low - (total - high))

    def __add__(self, other: Any) -> Number:
        """The sum."""
        other = self._of(other)
        high, low = two_sum(self.high, other.high)
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
        exact, near = self._exact_product(other), self.high * other.high
        lost = (self.xp.abs(near) >= math.inf) | _is_small(self.xp, self.high) | _is_small(self.xp, other.high)
        return Number(self.xp, self.xp.where(lost, near, exact.high), self.xp.where(lost, 0.0, exact.low))

    def product(self, other: Number) -> Number:
        """The product of numbers that are near one, zero or not finite."""
        exact, near = self._exact_product(other), self.high * other.high
        lost = self.xp.abs(near) >= math.inf
        return Number(self.xp, self.xp.where(lost, near, exact.high), self.xp.where(lost, 0.0, exact.low))

    def _exact_product(self, other: Number) -> Number:
        """The product of numbers whose halves have products; NaN beside infinity."""
        (a, a_rest), (b, b_rest) = self.halves(), other.halves()
        first, low = ordered_sum(a * b, a * b_rest)
        high, more = ordered_sum(first, a_rest * b)
        cross = self.high * other.low + self.low * other.high
        return self._sum(high, low + more + (a_rest * b_rest + cross))

    def quotient(self, other: Number) -> Number:
        """The quotient of such numbers."""
        near = self.high / other.high
        return self._sum(near, self._less(other._exact_product(Number(self.xp, near))) / other.high)

    def root(self) -> Number:
        """The square root of such a number, which is positive."""
        near = Number(self.xp, self.xp.sqrt(self.high))
        return self._sum(near.high, self._less(near._exact_product(near)) / (2.0 * near.high))

    def _less(self, other: Number) -> Array:
        """The difference from a number that is the same but for a few digits, in the base format."""
        return ((self.high - other.high) - other.low) + self.low

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        """The quotient."""
        other = self._of(other)
        quotient = self.high / other.high
        rest = self - other * Number(self.xp, quotient)
        return self._sum(quotient, rest.high / other.high)

    def __pow__(self, exponent: float) -> Number:
        """A power, in the base format."""
        return Number(self.xp, self.high**exponent)

    def __getitem__(self, key: Any) -> Number:
        """Some of the numbers, or with more axes."""
        return self.parts(operator.itemgetter(key))

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


def plain(xp: Any, value: Any) -> Number:
    """An array, or a constant in a formula, as a number."""
    if isinstance(value, (int, float)):
        return Number(xp, *base(xp).split(value))
    return Number(xp, value)


def is_nothing(low: Any) -> bool:
    """Whether a number is known to have no low part."""
    return type(low) is float and low == 0.0


def _high_half(xp: Any, x: Any) -> Any:
    """The number without the lower half of its bits; of a constant in a formula too."""
    if not isinstance(x, (int, float)):
        return xp.high_half(x)
    (mantissa, exponent), bits = math.frexp(x), base(xp).half
    return math.ldexp(math.trunc(math.ldexp(mantissa, bits)), exponent - bits) if math.isfinite(x) else float(x)


def _is_small(xp: Any, x: Any) -> Any:
    return (abs(x) if isinstance(x, (int, float)) else xp.abs(x)) < base(xp).small


def ordered_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum rounded, and what rounding took, where the second is no larger than the first."""
    total = a + b
    return total, b - (total - a)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum rounded, and what rounding took."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)
