"""Pairs with an exponent, so norms and factors of float64 gradients neither overflow nor underflow.

Clipping [1e200] to 1e-200 needs the factor 1e-400, which float64 cannot represent. A number here is a pair times a
power of the base format's `base`; each operation renormalizes the pair to near one. If the base format is float32, so
are all numbers and the elements of leaves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, Pair
from gradxform.numerics.elementary import Functions, expm1, log, power
from gradxform.numerics.exact import Exact
from gradxform.numerics.formats import FLOAT64, base
from gradxform.numerics.rows import sum_along
from gradxform.numerics.widening import wide

BITS, BASE = FLOAT64.bits, FLOAT64.base
_LN2 = math.log(2.0)
_OF_ZERO = -1000.0
"""The exponent of zero, below all others."""


class Ranged:
    """The value `pair * base**exponent`, with operators."""

    def __init__(self, xp: Any, pair: Number, exponent: Array) -> None:
        """Take parts and renormalize them."""
        self.xp = xp
        step, self.exponent = nearer(xp, pair.high, exponent)
        self.pair = pair.times(step)

    @property
    def high(self) -> Array:
        """The upper part; it has the number's sign, and is finite if the number is."""
        return self.pair.high

    @property
    def shape(self) -> Any:
        """The shape of all parts."""
        return self.pair.shape

    def parts(self, change: Callable[..., Array], *others: Ranged) -> Ranged:
        """Apply a rearrangement to each part of this and other numbers."""
        exponent = change(self.exponent, *(other.exponent for other in others))
        return near_one(self.xp, self.pair.parts(change, *(other.pair for other in others)), exponent)

    def at(self, exponent: Array) -> Number:
        """Return the pair in units of a power no smaller than its own."""
        return self.pair.times(self.share(exponent))

    def share(self, exponent: Array) -> Array:
        """Return its unit in units of a larger power: zero if much smaller, except for infinity."""
        gap, where = exponent - self.exponent, self.xp.where
        constant = isinstance(self.high, float)
        nothing = float(not math.isfinite(self.high)) if constant else where(self.xp.isfinite(self.high), 0.0, 1.0)
        return where(gap > 1.5, nothing, where(gap > 0.5, 1.0 / base(self.xp).base, 1.0))

    def _of(self, other: Any) -> Ranged:
        return Space(self.xp).number(other)

    def _in_one_unit(self, other: Any) -> tuple[Number, Number, Array]:
        """Convert two numbers to a common unit."""
        other = self._of(other)
        unit = self.xp.where(self.exponent > other.exponent, self.exponent, other.exponent)
        return self.at(unit), other.at(unit), unit

    def _compared(self, compare: Callable[[Any, Any], Array], other: Any) -> Array:
        """Compare with a number; the upper part alone tells the sign, and whether a number is finite."""
        if isinstance(other, (int, float)) and (not other or math.isinf(other)):
            return compare(self.high, float(other))
        one, two, _ = self._in_one_unit(other)
        return compare(one, two)

    def __add__(self, other: Any) -> Ranged:
        """Add."""
        one, two, unit = self._in_one_unit(other)
        return Ranged(self.xp, one + two, unit)

    def __sub__(self, other: Any) -> Ranged:
        """Subtract."""
        return self + -self._of(other)

    def __neg__(self) -> Ranged:
        """Negate."""
        return near_one(self.xp, -self.pair, self.exponent)

    def __mul__(self, other: Any) -> Ranged:
        """Multiply."""
        other = self._of(other)
        return Ranged(self.xp, self.pair.product(other.pair), self.exponent + other.exponent)

    def __truediv__(self, other: Any) -> Ranged:
        """Divide."""
        other = self._of(other)
        return Ranged(self.xp, self.pair.quotient(other.pair), self.exponent - other.exponent)

    def __pow__(self, exponent: float) -> Ranged:
        """Raise a number near one to a power, in float64 or float32 pairs."""
        paired = base(self.xp) is not FLOAT64
        return self._of(Pair(*_parts(power(in_one(self), exponent))) if paired else settled(self) ** exponent)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Ranged:
        """Subtract from a number."""
        return self._of(other) - self

    def __rtruediv__(self, other: Any) -> Ranged:
        """Divide a number by this one."""
        return self._of(other) / self

    def __getitem__(self, key: Any) -> Ranged:
        """Index, or add axes."""
        return self.parts(operator.itemgetter(key))

    def __le__(self, other: Any) -> Array:
        """Whether less than or equal."""
        return self._compared(operator.le, other)

    def __lt__(self, other: Any) -> Array:
        """Whether less."""
        return self._compared(operator.lt, other)

    def __gt__(self, other: Any) -> Array:
        """Whether greater."""
        return self._compared(operator.gt, other)

    def __ge__(self, other: Any) -> Array:
        """Whether greater than or equal."""
        return self._compared(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        """Whether equal, elementwise."""
        one, two, _ = self._in_one_unit(other)
        return one == two

    def __ne__(self, other: object) -> Any:
        """Whether different, elementwise."""
        return ~(self == other)


def nearer(xp: Any, high: Array, exponent: Array) -> tuple[Array, Array]:
    """Return the multiplier that brings a number near one, and the resulting exponent."""
    size, form = xp.stop_gradient(xp.abs(high)), base(xp)
    large, small = size > form.near, size < 1.0 / form.near
    step = xp.where(large, 1.0, xp.where(small, -1.0, 0.0))
    factor = xp.where(large, 1.0 / form.base, xp.where(small, form.base, 1.0))
    return factor, xp.where(size > 0.0, exponent + step, _OF_ZERO)


def near_one(xp: Any, pair: Number, exponent: Array) -> Ranged:
    """Build a number from parts that are near one."""
    made = object.__new__(Ranged)
    made.xp, made.pair, made.exponent = xp, pair, exponent
    return made


class Space(Functions):
    """The functions of a namespace on numbers with exponents."""

    def number(self, operand: Any) -> Any:
        """Convert a vector, a number or a pair to a number with an exponent."""
        if isinstance(operand, Ranged):
            return operand
        if isinstance(operand, (int, float)):
            return self._constant(float(operand))
        exponent = operand.exponent if isinstance(operand, Pair) else None
        if exponent is not None:
            return near_one(self.xp, super().number(operand), exponent)
        return Ranged(self.xp, super().number(operand), 0.0)

    def extended(self, x: Any) -> Any:
        """Give a number an exponent."""
        return self.number(x)

    def _constant(self, value: float) -> Ranged:
        near, exponent = base(self.xp).near_one(value)
        return near_one(self.xp, Number(self.xp, *base(self.xp).split(near)), exponent if value else _OF_ZERO)

    def sqrt(self, x: Any) -> Any:
        """Return the square root of positive numbers."""
        half = self.xp.floor(x.exponent / 2.0)
        odd = x.exponent - 2.0 * half > 0.5
        return Ranged(self.xp, super().sqrt(x.pair).times(self.xp.where(odd, base(self.xp).near, 1.0)), half)

    def log(self, x: Any) -> Any:
        """Return the logarithm in float32 pairs; minus infinity for zero."""
        positive = x.high > 0.0
        pair = log(Functions(self.xp).where(positive, x.pair, 1.0)) + Number(self.xp, x.exponent) * (
            base(self.xp).bits * _LN2
        )
        return self.where(positive, Pair(*_parts(pair)), self.xp.where(x.high < 0.0, math.nan, x.high - math.inf))

    def expm1(self, x: Any) -> Any:
        """Return expm1 in float32 pairs."""
        return self.number(Pair(*_parts(expm1(in_one(x)))))

    def floor(self, x: Any) -> Any:
        """Round float32 pairs down to integers."""
        large = x.exponent > 0.5
        return self.where(large, x, Pair(*_parts(super().floor(in_one(self.where(large, 0.0, x))))))

    def int32(self, x: Any) -> Array:
        """Reduce integers to their lower 32 bits."""
        return super().int32(in_one(self.number(x)))

    def sort(self, x: Any) -> Any:
        """Sort along the last axis; for numbers of the base format without a low part."""
        return self.number(self.xp.sort(settled(self.number(x))))

    def cast(self, x: Any, dtype: str) -> Array:
        """Convert to a dtype."""
        return self.xp.cast(settled(self.number(x)), dtype)

    def arange(self, count: int) -> Any:
        """Return the numbers from zero."""
        return self.number(self.xp.arange(count))

    def sum(self, x: Any, axis: int = 0) -> Any:
        """Sum a vector or an axis, in the unit of the largest."""
        near, unit = self._together(x, axis)
        return Ranged(self.xp, sum_along(near, axis), unit)[((...,) if axis else ()) + (0,)]

    def norm(self, x: Any) -> Any:
        """Return the 2-norm of a vector of norms, or of each column; keeps NaN and infinity."""
        near, unit = self._together(x, 0)
        plain, exact = self.xp.sum_over(near.high, (0,)), Exact(self.xp)
        found = exact.where(self.xp.isfinite(plain), exact.root(sum_along(near.squared(), 0)), plain)
        return Ranged(self.xp, found, unit)[0]

    def _together(self, x: Any, axis: int) -> tuple[Number, Array]:
        """Convert numbers to the unit of the largest along an axis; return them and the exponent, with keepdims."""
        far = 2.0**12  # lower than any exponent: `max_over` is of sizes
        unit = self.xp.max_over(x.exponent + far, (axis,)) - far
        return x.at(unit), unit

    def max(self, x: Any) -> Any:
        """Return the maximum, in the base format."""
        unit = self.xp.max(x.exponent)
        return Ranged(self.xp, Number(self.xp, self.xp.max(x.at(unit).high)), unit)

    def rounded(self, x: Any, dtype: str) -> Any:
        """Round to a dtype: for the base format at any magnitude; float64 in pairs is unchanged."""
        x = self.number(wide(self.xp, x) if isinstance(x, (int, float)) else x)
        if dtype in (base(self.xp).name, "float64"):
            return near_one(self.xp, Number(self.xp, x.high), x.exponent) if dtype == base(self.xp).name else x
        return self.number(self.xp.rounded(settled(x), dtype))


def powers(value: Ranged) -> tuple[Number, Array, Array]:
    """Split the number into a pair and two powers of two; multiplying by them in turn rounds correctly.

    All three are on the same side of one, so nothing overflows or underflows unless the result does.
    """
    near = Ranged(value.xp, value.pair, value.exponent)  # its pair is between the format's `near` and 1 / `near`
    where, size, sixth = value.xp.where, value.xp.abs(near.exponent), base(value.xp).bits // 6

    beyond = [size > least for least in (0.5, 1.5, 2.5, 3.5)]

    def power(*by_size: int) -> Array:
        """Return a power of two for the exponents 0, 1, 2, 3 and more, in sixths of the unit's bits."""
        found = 1.0
        for there, before, n in zip(beyond, by_size, by_size[1:], strict=False):
            found = found if n == before else where(there, 2.0 ** (sixth * n), found)
        return where(near.exponent < 0.0, 1.0 / found, found)

    return near.pair.times(power(0, 4, 4, 4, 4)), power(0, 2, 8, 7, 10), power(0, 0, 0, 7, 10)


def settled(value: Ranged) -> Array:
    """Convert to the base format; overflow is infinite, underflow zero."""
    pair, second, third = powers(value)
    return pair.high * second * third


def in_one(value: Ranged) -> Number:
    """Return the number in units of one."""
    pair, second, third = powers(value)
    return pair.times(second).times(third)


def _parts(number: Number) -> tuple[Array, Array]:
    return number.high, number.rest


def evaluate(formula: Callable[..., Any], xp: Any, operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """Evaluate a formula in float64, or in pairs with exponents if an operand is a pair or float64 is missing."""
    if base(xp) is not FLOAT64 or any(isinstance(operand, Pair) for operand in operands):
        xp = Space(xp)
        operands = list(map(xp.number, operands))
    found = formula(xp, *operands, **static)
    return Pair(found.high, found.pair.rest, found.exponent) if isinstance(found, Ranged) else found


def in_base(xp: Any, x: Any) -> Array:
    """As a formula: the number in the base format."""
    return settled(x) if isinstance(x, Ranged) else x


def in_int32(xp: Any, x: Any) -> Array:
    """As a formula: the integer as int32."""
    return xp.int32(x) if isinstance(x, Ranged) else x


def in_base_powers(xp: Any, x: Any) -> tuple[Array, ...]:
    """As a formula: the base-format numbers to multiply by in turn instead of a number."""
    if not isinstance(x, Ranged):
        return (x,)
    pair, *coarse = powers(x)
    return pair.high, *coarse
