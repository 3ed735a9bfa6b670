"""Double-double arithmetic: numbers as unevaluated sums of two numbers of the base format.

Products use halves short enough to be exact, so a fused multiply-add does not change them.

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
    """The value high + low of a vector or a number, scaled by a power of two if it has an exponent.

    `high` is the sum rounded to the base format.
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
        """The low part, as an array if `high` is one."""
        if type(self.low) is not float or type(self.high) is float:
            return self.low
        return self.xp.where(self.high <= self.high, 0.0, 0.0)

    @property
    def shape(self) -> Any:
        """The shape of both parts."""
        return self.high.shape

    def parts(self, change: Callable[..., Array], *others: Number) -> Number:
        """Apply a rearrangement to each part of this and other numbers."""
        high = change(self.high, *(other.high for other in others))
        if all(is_nothing(number.low) for number in (self, *others)):
            return Number(self.xp, high)
        return Number(self.xp, high, change(self.rest, *(other.rest for other in others)))

    def times(self, power: Array) -> Number:
        """Multiply by a power of two."""
        return Number(self.xp, self.high * power, 0.0 if is_nothing(self.low) else self.low * power)

    def halves(self) -> tuple[Array, Array]:
        """Split the high part into the upper and lower half of its bits."""
        upper = _high_half(self.xp, self.high)
        return upper, self.high - upper

    def _of(self, other: Any) -> Number:
        return other if isinstance(other, Number) else plain(self.xp, other)

    def _sum(self, high: Array, low: Array) -> Number:
        """Fast two-sum; assumes abs(high) >> abs(low). Infinity gives NaN, as clipping would."""
        low = self.xp.no_reassociation(low)
        total = high + low
        return Number(self.xp, total, low - (total - high))

    def __add__(self, other: Any) -> Number:
        """Add."""
        other = self._of(other)
        high, low = two_sum(self.high, other.high)
        return self._sum(high, low + (self.low + other.low))

    def __sub__(self, other: Any) -> Number:
        """Subtract."""
        other = self._of(other)
        return self + Number(self.xp, -other.high, -other.low)

    def __neg__(self) -> Number:
        """Negate."""
        return Number(self.xp, -self.high, -self.low)

    def __radd__(self, other: Any) -> Number:
        """Add."""
        return self + other

    def __rsub__(self, other: Any) -> Number:
        """Subtract from a number."""
        return self._of(other) - self

    def __rtruediv__(self, other: Any) -> Number:
        """Divide a number by this one."""
        return self._of(other) / self

    def __mul__(self, other: Any) -> Number:
        """Multiply."""
        other = self._of(other)
        exact, near = self._exact_product(other), self.high * other.high
        lost = (self.xp.abs(near) >= math.inf) | _is_small(self.xp, self.high) | _is_small(self.xp, other.high)
        return Number(self.xp, self.xp.where(lost, near, exact.high), self.xp.where(lost, 0.0, exact.low))

    def product(self, other: Number) -> Number:
        """Multiply numbers near one, zeros or nonfinite numbers."""
        exact, near = self._exact_product(other), self.high * other.high
        lost = self.xp.abs(near) >= math.inf
        return Number(self.xp, self.xp.where(lost, near, exact.high), self.xp.where(lost, 0.0, exact.low))

    def _exact_product(self, other: Number) -> Number:
        """Multiply numbers whose halves have representable products; infinity gives NaN."""
        (a, a_rest), (b, b_rest) = self.halves(), other.halves()
        first, low = ordered_sum(a * b, a * b_rest)
        high, more = ordered_sum(first, a_rest * b)
        cross = self.high * other.low + self.low * other.high
        return self._sum(high, low + more + (a_rest * b_rest + cross))

    def squared(self) -> Number:
        """Square such a number."""
        upper, rest = self.halves()
        high, low = ordered_sum(upper * upper, 2.0 * (upper * rest))
        return self._sum(high, low + (rest * rest + (0.0 if is_nothing(self.low) else 2.0 * (self.high * self.low))))

    def quotient(self, other: Number) -> Number:
        """Divide such numbers."""
        near = self.high / other.high
        return self._sum(near, self._less(other._exact_product(Number(self.xp, near))) / other.high)

    def root(self) -> Number:
        """Return the square root of such a positive number."""
        near = Number(self.xp, self.xp.sqrt(self.high))
        return self._sum(near.high, self._less(near.squared()) / (2.0 * near.high))

    def _less(self, other: Number) -> Array:
        """Subtract a nearly equal number, in the base format."""
        return ((self.high - other.high) - other.low) + self.low

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        """Divide."""
        other = self._of(other)
        quotient = self.high / other.high
        rest = self - other * Number(self.xp, quotient)
        return self._sum(quotient, rest.high / other.high)

    def __pow__(self, exponent: float) -> Number:
        """Raise to a power, in the base format."""
        return Number(self.xp, self.high**exponent)

    def __getitem__(self, key: Any) -> Number:
        """Index, or add axes."""
        return self.parts(operator.itemgetter(key))

    def __le__(self, other: Any) -> Array:
        """Whether less than or equal."""
        other = self._of(other)
        return (self.high < other.high) | ((self.high <= other.high) & (self.low <= other.low))

    def __lt__(self, other: Any) -> Array:
        """Whether less."""
        other = self._of(other)
        return (self.high < other.high) | ((self.high <= other.high) & (self.low < other.low))

    def __gt__(self, other: Any) -> Array:
        """Whether greater."""
        return self._of(other) < self

    def __ge__(self, other: Any) -> Array:
        """Whether greater than or equal."""
        return self._of(other) <= self

    def __eq__(self, other: object) -> Any:
        """Whether equal, elementwise."""
        pair = self._of(other)
        return (self <= pair) & (pair <= self)

    def __ne__(self, other: object) -> Any:
        """Whether different, elementwise."""
        return ~(self == other)


def plain(xp: Any, value: Any) -> Number:
    """Convert an array or a constant in a formula to a number."""
    if isinstance(value, (int, float)):
        return Number(xp, *base(xp).split(value))
    return Number(xp, value)


def is_nothing(low: Any) -> bool:
    """Whether a low part is known to be zero."""
    return type(low) is float and low == 0.0


def _high_half(xp: Any, x: Any) -> Any:
    """Clear the lower half of the bits of an array or a constant."""
    if not isinstance(x, (int, float)):
        return xp.high_half(x)
    (mantissa, exponent), bits = math.frexp(x), base(xp).half
    return math.ldexp(math.trunc(math.ldexp(mantissa, bits)), exponent - bits) if math.isfinite(x) else float(x)


def _is_small(xp: Any, x: Any) -> Any:
    return (abs(x) if isinstance(x, (int, float)) else xp.abs(x)) < base(xp).small


def ordered_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Fast two-sum: the rounded sum and its rounding error; assumes abs(a) >= abs(b)."""
    total = a + b
    return total, b - (total - a)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Two-sum: the rounded sum and its rounding error."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)
