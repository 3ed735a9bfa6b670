"""Pairs with an exponent of their own, so that norms and factors of float64 gradients neither over- nor underflow.

The norm of [1e200] and the limit 1e-200 make a factor of 1e-400, which is right for the gradient though float64 has no
such number. A number here is a pair times a power of the base format's `base`; each operation brings its pair back
near one. Where the base format is float32, so are all numbers, and the elements of leaves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.elementary import Functions, expm1, log, power
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.rows import sum_along
from gradxform.numerics.widening import wide

BITS, BASE = FLOAT64.bits, FLOAT64.base
_LN2 = math.log(2.0)
_OF_ZERO = -1000.0
"""Zero's exponent, so that whatever it is added to or compared with is larger."""


class Ranged:
    """The value `pair * base**exponent`, with operators."""

    def __init__(self, xp: Any, pair: Number, exponent: Array) -> None:
        """Takes parts that need not be near one."""
        self.xp = xp
        step, self.exponent = nearer(xp, pair.high, exponent)
        self.pair = pair.times(step)

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
        return near_one(self.xp, self.pair.parts(change, *(other.pair for other in others)), exponent)

    def at(self, exponent: Array) -> Number:
        """The pair of the number in units of a power that is no smaller than its own."""
        return self.pair.times(self.share(exponent))

    def share(self, exponent: Array) -> Array:
        """Its unit in units of a power that is no smaller: zero if it is much smaller, but for infinity."""
        gap, where = exponent - self.exponent, self.xp.where
        constant = isinstance(self.high, float)
        nothing = float(not math.isfinite(self.high)) if constant else where(self.xp.isfinite(self.high), 0.0, 1.0)
        return where(gap > 1.5, nothing, where(gap > 0.5, 1.0 / base(self.xp).base, 1.0))

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
        return near_one(self.xp, -self.pair, self.exponent)

    def __mul__(self, other: Any) -> Ranged:
        """The product."""
        other = self._of(other)
        return Ranged(self.xp, self.pair.product(other.pair), self.exponent + other.exponent)

    def __truediv__(self, other: Any) -> Ranged:
        """The quotient."""
        other = self._of(other)
        return Ranged(self.xp, self.pair.quotient(other.pair), self.exponent - other.exponent)

    def __pow__(self, exponent: float) -> Ranged:
        """A power, in float64, or in pairs of float32: of a number that is not far from one."""
        paired = base(self.xp) is not FLOAT64
        return self._of(Pair(*_parts(power(_in_one(self), exponent))) if paired else settled(self) ** exponent)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Ranged:
        """The difference from a number."""
        return self._of(other) - self

    def __rtruediv__(self, other: Any) -> Ranged:
        """The quotient of a number."""
        return self._of(other) / self

    def __getitem__(self, key: Any) -> Ranged:
        """Some of the numbers, or with more axes."""
        return self.parts(operator.itemgetter(key))

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


def nearer(xp: Any, high: Array, exponent: Array) -> tuple[Array, Array]:
    """What to multiply a number by, so that it is near one, and its exponent then."""
    size, form = xp.stop_gradient(xp.abs(high)), base(xp)
    large, small = size > form.near, size < 1.0 / form.near
    step = xp.where(large, 1.0, xp.where(small, -1.0, 0.0))
    factor = xp.where(large, 1.0 / form.base, xp.where(small, form.base, 1.0))
    return factor, xp.where(size > 0.0, exponent + step, _OF_ZERO)


def near_one(xp: Any, pair: Number, exponent: Array) -> Ranged:
    """A number of parts that are near one already."""
    made = object.__new__(Ranged)
    made.xp, made.pair, made.exponent = xp, pair, exponent
    return made


class Space(Functions):
    """A namespace's functions on numbers with exponents."""

    def number(self, operand: Any) -> Any:
        """A vector, a number or a pair as a number with an exponent."""
        if isinstance(operand, Ranged):
            return operand
        if isinstance(operand, (int, float)):
            return self._constant(float(operand))
        exponent = operand.exponent if isinstance(operand, Pair) else None
        if exponent is not None:
            return near_one(self.xp, super().number(operand), exponent)
        return Ranged(self.xp, super().number(operand), 0.0)

    def extended(self, x: Any) -> Any:
        """A number as one with an exponent."""
        return self.number(x)

    def _constant(self, value: float) -> Ranged:
        near, exponent = base(self.xp).near_one(value)
        return near_one(self.xp, Number(self.xp, *base(self.xp).split(near)), exponent if value else _OF_ZERO)

    def sqrt(self, x: Any) -> Any:
        """The square root of what is positive."""
        half = self.xp.floor(x.exponent / 2.0)
        odd = x.exponent - 2.0 * half > 0.5
        return Ranged(self.xp, super().sqrt(x.pair).times(self.xp.where(odd, base(self.xp).near, 1.0)), half)

    def log(self, x: Any) -> Any:
        """The logarithm, minus infinity for zero; in pairs of float32."""
        positive = x.high > 0.0
        pair = log(Functions(self.xp).where(positive, x.pair, 1.0)) + Number(self.xp, x.exponent) * (
            base(self.xp).bits * _LN2
        )
        return self.where(positive, Pair(*_parts(pair)), self.xp.where(x.high < 0.0, math.nan, x.high - math.inf))

    def expm1(self, x: Any) -> Any:
        """The power of e, less one; in pairs of float32."""
        return self.number(Pair(*_parts(expm1(_in_one(x)))))

    def floor(self, x: Any) -> Any:
        """The largest whole number that is no larger; of pairs of float32."""
        large = x.exponent > 0.5
        return self.where(large, x, Pair(*_parts(super().floor(_in_one(self.where(large, 0.0, x))))))

    def int32(self, x: Any) -> Array:
        """Whole numbers with the lower 32 bits alone."""
        return super().int32(_in_one(self.number(x)))

    def sort(self, x: Any) -> Any:
        """In rising order along the last axis; of numbers of the base format, which have no low part."""
        return self.number(self.xp.sort(settled(self.number(x))))

    def cast(self, x: Any, dtype: str) -> Array:
        """In a dtype."""
        return self.xp.cast(settled(self.number(x)), dtype)

    def arange(self, count: int) -> Any:
        """The numbers from zero."""
        return self.number(self.xp.arange(count))

    def sum(self, x: Any, axis: int = 0) -> Any:
        """The sum of a vector, or over an axis; of pairs of float32, in the unit of the largest."""
        if base(self.xp) is FLOAT64:
            return super().sum(x, axis)
        unit = self.xp.max_over(x.exponent, (axis,))
        return Ranged(self.xp, sum_along(x.at(unit), axis), unit)[((...,) if axis else ()) + (0,)]

    def max(self, x: Any) -> Any:
        """The largest, in the base format."""
        unit = self.xp.max(x.exponent)
        return Ranged(self.xp, Number(self.xp, self.xp.max(x.at(unit).high)), unit)

    def rounded(self, x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype; of the base format at any size, and of float64 in pairs as it is."""
        x = self.number(wide(self.xp, x) if isinstance(x, (int, float)) else x)
        if dtype in (base(self.xp).name, "float64"):
            return near_one(self.xp, Number(self.xp, x.high), x.exponent) if dtype == base(self.xp).name else x
        return self.number(self.xp.rounded(settled(x), dtype))


def powers(value: Ranged) -> tuple[Number, Array, Array]:
    """The number as a pair and two powers of two: what is multiplied by one after the other is rounded right.

    All three are on the same side of one, so that nothing over- or underflows but what does so in the end.
    """
    near = Ranged(value.xp, value.pair, value.exponent)  # whose pair is between the format's `near` and its inverse
    where, size, sixth = value.xp.where, value.xp.abs(near.exponent), base(value.xp).bits // 6

    beyond = [size > least for least in (0.5, 1.5, 2.5, 3.5)]

    def power(*by_size: int) -> Array:
        """A power of two for exponents of zero, one, two, three and more, in sixths of the unit's bits."""
        found = 1.0
        for there, before, n in zip(beyond, by_size, by_size[1:], strict=False):
            found = found if n == before else where(there, 2.0 ** (sixth * n), found)
        return where(near.exponent < 0.0, 1.0 / found, found)

    return near.pair.times(power(0, 4, 4, 4, 4)), power(0, 2, 8, 7, 10), power(0, 0, 0, 7, 10)


def settled(value: Ranged) -> Array:
    """The number in the base format: infinite or zero where that has none of its size."""
    pair, second, third = powers(value)
    return pair.high * second * third


def _in_one(value: Ranged) -> Number:
    """The number in units of one."""
    pair, second, third = powers(value)
    return pair.times(second).times(third)


def _parts(number: Number) -> tuple[Array, Array]:
    return number.high, number.rest


def evaluate(formula: Callable[..., Any], xp: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """A formula in float64, or in pairs with exponents if an operand is a pair or there is no float64."""
    if base(xp) is not FLOAT64 or any(isinstance(operand, Pair) for operand in operands):
        xp = Space(xp)
        operands = list(map(xp.number, operands))
    found = formula(xp, *operands, **static)
    return Pair(found.high, found.pair.rest, found.exponent) if isinstance(found, Ranged) else found


def in_base(xp: Any, x: Any) -> Array:
    """A formula: the number in the base format."""
    return settled(x) if isinstance(x, Ranged) else x


def in_int32(xp: Any, x: Any) -> Array:
    """A formula: the whole number."""
    return xp.int32(x) if isinstance(x, Ranged) else x


def in_base_powers(xp: Any, x: Any) -> tuple[Array, ...]:
    """A formula: the numbers of the base format to multiply by, one after the other, instead of a number."""
    if not isinstance(x, Ranged):
        return (x,)
    pair, *coarse = powers(x)
    return pair.high, *coarse
