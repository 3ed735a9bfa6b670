"""Numbers of twice the precision of the base format, as unevaluated sums of two, and a namespace's functions on them.

Products are taken of halves short enough to be exact, so that a compiler that fuses multiplication and addition
changes nothing.

Source: Dekker, A floating-point technique for extending the available precision, 1971.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
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
        (a, a_rest), (b, b_rest) = self.halves(), other.halves()
        first, low = two_sum(a * b, a * b_rest)
        high, more = two_sum(first, a_rest * b)
        cross = self.high * other.low + self.low * other.high
        exact = self._sum(high, low + more + (a_rest * b_rest + cross))
        near = self.high * other.high
        lost = (self.xp.abs(near) >= math.inf) | _is_small(self.xp, self.high) | _is_small(self.xp, other.high)
        return Number(self.xp, self.xp.where(lost, near, exact.high), self.xp.where(lost, 0.0, exact.low))

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


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum rounded, and what rounding took."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


class Exact:
    """A namespace's functions on pairs."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def number(self, operand: Any) -> Any:
        """A vector, a number or a pair as a pair with operators."""
        if isinstance(operand, Number):
            return operand
        return Number(self.xp, *operand[:2]) if isinstance(operand, Pair) else plain(self.xp, operand)

    def blend(self, first: Any, x: Any, second: Any, y: Any) -> Any:
        """First * x + second * y."""
        return (x if isinstance(first, float) and first == 1.0 else first * x) + second * y

    def where(self, condition: Array, yes: Any, no: Any) -> Any:
        """Elementwise choice."""
        return self.number(yes).parts(functools.partial(self.xp.where, condition), self.number(no))

    def isfinite(self, x: Any) -> Array:
        """Whether neither NaN nor infinite."""
        return self.xp.isfinite(x.high)

    def sqrt(self, x: Any) -> Any:
        """The square root of what is positive."""
        near = self.xp.sqrt(x.high)
        root = Number(self.xp, near)
        rest = x - root * root
        return x._sum(near, rest.high / (2.0 * near))

    def root(self, x: Any) -> Any:
        """The square root, zero and its derivative where x is zero; infinity's is infinite."""
        positive = (x.high > 0.0) & self.xp.isfinite(x.high)
        near = self.sqrt(self.where(positive, x, 1.0))
        return self.where(positive, near, x.high * 1.0)

    def abs(self, x: Any) -> Any:
        """The absolute value."""
        return self.where(x.high < 0, -x, x)

    def sum(self, x: Any, axis: int = 0) -> Any:
        """The sum of a vector, in pairs of elements; or over the last axis of a matrix."""
        before = (...,) if axis else ()
        odd: Any = None
        while x.shape[axis] > 1:
            half, count = x.shape[axis] // 2, x.shape[axis]
            if count % 2:
                last = x[(*before, count - 1)]
                odd = last if odd is None else odd + last
            x = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        total = x[(*before, 0)]
        return total if odd is None else total + odd

    def max(self, x: Any) -> Any:
        """The largest, in the base format."""
        return self.number(self.xp.max(x.high))

    def any(self, condition: Array) -> Array:
        """Whether any is true."""
        return self.xp.any(condition)

    def floor(self, x: Any) -> Any:
        """The largest whole number that is no larger."""
        floor, near = self.xp.floor, self.xp.floor(x.high)
        return x._sum(near, self.xp.where(near >= x.high, floor(x.rest), 0.0))

    def int32(self, x: Any) -> Array:
        """Whole numbers with the lower 32 bits alone, which high and low parts of float32 may have beyond its ends."""
        if base(self.xp).row is None:
            return self.xp.int32(x.high)
        upper = self.xp.floor(x.high / 2.0**16)
        return self.xp.shift_left(self.xp.int32(upper), 16) + self.xp.int32(x.high - upper * 2.0**16 + x.low)

    def stop_gradient(self, x: Any) -> Any:
        """The same value, of which no gradient is asked."""
        return x.parts(self.xp.stop_gradient)

    def rounded(self, x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype."""
        return self.number(self.xp.rounded(self.number(x).high, dtype))

    def take(self, x: Any, index: Any) -> Any:
        """Some numbers of a vector."""
        return x.parts(lambda part: self.xp.take(part, index))

    def stack(self, numbers: Sequence[Any]) -> Any:
        """Numbers as a vector."""
        first, *others = map(self.number, numbers)
        return first.parts(lambda *parts: self.xp.stack(parts), *others)

    def mask(self, active: tuple[bool, ...]) -> Array:
        """Bools as a vector."""
        return self.xp.mask(active)

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The same numbers in another shape."""

        def change(part: Any) -> Any:
            return self.xp.reshape(part, shape)

        return x.parts(change) if hasattr(x, "parts") else change(x)
