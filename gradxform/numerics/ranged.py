"""Pairs with an exponent of their own, so that norms and factors of float64 gradients neither over- nor underflow.

The norm of [1e200] and the limit 1e-200 make a factor of 1e-400, which is right for the gradient though float64 has no
such number. A number here is a pair times a power of `BASE`; each operation brings its pair back near one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Exact, Number, Pair

BITS = 600
BASE = 2.0**BITS
_NEAR = 2.0**300
"""A number between this and its inverse keeps its exponent: two of them can be multiplied."""
_OF_ZERO = -1000.0
"""Zero's exponent, so that whatever it is added to or compared with is larger."""


class Ranged:
    """The value `pair * BASE**exponent`, with operators."""

    def __init__(self, xp: Any, pair: Number, exponent: Array) -> None:
        """Takes parts that need not be near one."""
        size = xp.stop_gradient(xp.abs(pair.high))
        large, small = size > _NEAR, size < 1.0 / _NEAR
        step = xp.where(large, 1.0, xp.where(small, -1.0, 0.0))
        self.xp, self.exponent = xp, xp.where(size > 0.0, exponent + step, _OF_ZERO)
        self.pair = pair.times(xp.where(large, 1.0 / BASE, xp.where(small, BASE, 1.0)))

    @property
    def high(self) -> Array:
        """The upper part, which has the number's sign, and is finite where the number is."""
        return self.pair.high

    @property
    def shape(self) -> Any:
        """The shape of all parts."""
        return self.pair.shape

    def parts(self, change: Callable[..., Array], *others: Ranged) -> Ranged:
        """Each part, beside those of other numbers, rearranged."""
        exponent = change(self.exponent, *(other.exponent for other in others))
        return _near(self.xp, self.pair.parts(change, *(other.pair for other in others)), exponent)

    def at(self, exponent: Array) -> Number:
        """The pair of the number in units of a power that is no smaller than its own."""
        gap, where = exponent - self.exponent, self.xp.where
        constant = isinstance(self.high, float)
        nothing = float(not math.isfinite(self.high)) if constant else where(self.xp.isfinite(self.high), 0.0, 1.0)
        return self.pair.times(where(gap > 1.5, nothing, where(gap > 0.5, 1.0 / BASE, 1.0)))

    def _of(self, other: Any) -> Ranged:
        return Space(self.xp).number(other)

    def _in_one_unit(self, other: Any) -> tuple[Number, Number, Array]:
        """Two numbers in one unit."""
        other = self._of(other)
        unit = self.xp.where(self.exponent > other.exponent, self.exponent, other.exponent)
        return self.at(unit), other.at(unit), unit

    def __add__(self, other: Any) -> Ranged:
        """The sum."""
        one, two, unit = self._in_one_unit(other)
        return Ranged(self.xp, one + two, unit)

    def __sub__(self, other: Any) -> Ranged:
        """The difference."""
        return self + -self._of(other)

    def __neg__(self) -> Ranged:
        """The negative."""
        return _near(self.xp, -self.pair, self.exponent)

    def __mul__(self, other: Any) -> Ranged:
        """The product."""
        other = self._of(other)
        return Ranged(self.xp, self.pair * other.pair, self.exponent + other.exponent)

    def __truediv__(self, other: Any) -> Ranged:
        """The quotient."""
        other = self._of(other)
        return Ranged(self.xp, self.pair / other.pair, self.exponent - other.exponent)

    def __pow__(self, exponent: float) -> Ranged:
        """A power, in float64: of a number that is not far from one."""
        return self._of(settled(self) ** exponent)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Ranged:
        """The difference from a number."""
        return self._of(other) - self

    def __rtruediv__(self, other: Any) -> Ranged:
        """The quotient of a number."""
        return self._of(other) / self

    def __le__(self, other: Any) -> Array:
        """Whether not larger."""
        one, two, _ = self._in_one_unit(other)
        return one <= two

    def __lt__(self, other: Any) -> Array:
        """Whether smaller."""
        one, two, _ = self._in_one_unit(other)
        return one < two

    def __gt__(self, other: Any) -> Array:
        """Whether larger."""
        return self._of(other) < self

    def __ge__(self, other: Any) -> Array:
        """Whether not smaller."""
        return self._of(other) <= self

    def __eq__(self, other: object) -> Any:
        """Whether equal, element by element."""
        one, two, _ = self._in_one_unit(other)
        return one == two

    def __ne__(self, other: object) -> Any:
        """Whether different, element by element."""
        return ~(self == other)


def _near(xp: Any, pair: Number, exponent: Array) -> Ranged:
    """A number of parts that are near one already."""
    made = object.__new__(Ranged)
    made.xp, made.pair, made.exponent = xp, pair, exponent
    return made


class Space(Exact):
    """A namespace's functions on numbers with exponents."""

    def number(self, operand: Any) -> Any:
        """A vector, a number or a pair as a number with an exponent."""
        if isinstance(operand, Ranged):
            return operand
        if isinstance(operand, (int, float)):
            return self._constant(float(operand))
        exponent = operand.exponent if isinstance(operand, Pair) else None
        if exponent is not None:
            return _near(self.xp, super().number(operand), exponent)
        return Ranged(self.xp, super().number(operand), 0.0)

    def extended(self, x: Any) -> Any:
        """A number as one with an exponent."""
        return self.number(x)

    def _constant(self, value: float) -> Ranged:
        exponent = 0.0 if value else _OF_ZERO
        while _NEAR < abs(value) < math.inf:
            value, exponent = value / BASE, exponent + 1.0
        while 0.0 < abs(value) < 1.0 / _NEAR:
            value, exponent = value * BASE, exponent - 1.0
        return _near(self.xp, Number(self.xp, value), exponent)

    def sqrt(self, x: Any) -> Any:
        """The square root of what is positive."""
        half = self.xp.floor(x.exponent / 2.0)
        odd = x.exponent - 2.0 * half > 0.5
        return Ranged(self.xp, super().sqrt(x.pair).times(self.xp.where(odd, _NEAR, 1.0)), half)

    def max(self, x: Any) -> Any:
        """The largest, in float64."""
        unit = self.xp.max(x.exponent)
        return Ranged(self.xp, Number(self.xp, self.xp.max(x.at(unit).high)), unit)

    def rounded(self, x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype; of float64's precision, and of any size, to float64."""
        x = self.number(x)
        if dtype == "float64":
            return _near(self.xp, Number(self.xp, x.high), x.exponent)
        return self.number(self.xp.rounded(settled(x), dtype))


def powers(value: Ranged) -> tuple[Number, Array, Array]:
    """The number as a pair and two powers of two: what is multiplied by one after the other is rounded right.

    All three are on the same side of one, so that nothing over- or underflows but what does so in the end.
    """
    near = Ranged(value.xp, value.pair, value.exponent)  # whose pair is between `_NEAR` and its inverse
    where, size = value.xp.where, value.xp.abs(near.exponent)

    def power(*by_size: int) -> Array:
        """A power of two for exponents of zero, one, two, three and more."""
        zero, one, two, three, more = (2.0**n for n in by_size)
        large = where(size < 2.5, two, where(size < 3.5, three, more))
        found = where(size < 0.5, zero, where(size < 1.5, one, large))
        return where(near.exponent < 0.0, 1.0 / found, found)

    return near.pair.times(power(0, 400, 400, 400, 400)), power(0, 200, 800, 700, 1000), power(0, 0, 0, 700, 1000)


def settled(value: Ranged) -> Array:
    """The number in float64: infinite or zero where float64 has none of its size."""
    pair, second, third = powers(value)
    return pair.high * second * third


def evaluate(formula: Callable[..., Any], xp: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """A formula in float64, or in pairs with exponents if an operand is a pair."""
    if any(isinstance(operand, Pair) for operand in operands):
        xp = Space(xp)
        operands = list(map(xp.number, operands))
    found = formula(xp, *operands, **static)
    return Pair(found.high, found.pair.rest, found.exponent) if isinstance(found, Ranged) else found


def in_float64(xp: Any, x: Any) -> Array:
    """A formula: the number in float64."""
    return settled(x) if isinstance(x, Ranged) else x


def in_float64_powers(xp: Any, x: Any) -> tuple[Array, ...]:
    """A formula: the float64 numbers to multiply by, one after the other, instead of a number."""
    if not isinstance(x, Ranged):
        return (x,)
    pair, *coarse = powers(x)
    return pair.high, *coarse
