"""Elementary functions of float32 pairs, accurate to about 44 bits, by series whose last terms use float32.

Source: Muller, Elementary functions: algorithms and implementation, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number
from gradxform.numerics.exact import Exact
from gradxform.numerics.formats import base
from gradxform.numerics.widening import wide

_LN2 = math.log(2.0)
_LOG = [2.0 / (2 * k + 1) for k in range(12)]
_EXP = [1.0 / math.factorial(k) for k in range(1, 11)]
_SINE = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(10)]
_COSINE = [(-1.0) ** k / math.factorial(2 * k) for k in range(10)]
_MOST = 16
"""Integer powers up to this one are computed as products."""


def _series(z: Number, coefficients: Sequence[float], plain_from: int = 5) -> Number:
    """Evaluate a polynomial; small terms in float32."""
    *rest, last = coefficients
    tail = last + 0.0 * z.high
    for coefficient in reversed(rest[plain_from:]):
        tail = tail * z.high + coefficient
    found = Number(z.xp, tail)
    for coefficient in reversed(rest[:plain_from]):
        found = found * z + coefficient
    return found


def log(x: Number) -> Number:
    """Return the logarithm of positive normal numbers."""
    xp = x.xp
    power = xp.power_of_two(x.high)
    above = x.high > power * math.sqrt(2.0)
    count = xp.floor(xp.log(power) * (1.0 / _LN2) + 0.5) + xp.where(above, 1.0, 0.0)
    near = x.times(1.0 / power).times(xp.where(above, 0.5, 1.0))
    ratio = (near - 1.0) / (near + 1.0)
    return Number(xp, count) * _LN2 + ratio * _series(ratio * ratio, _LOG)


def exp(x: Number) -> Number:
    """Return the exponential; underflows and overflows slightly inside float32's range."""
    less, power = _expm1(x)
    return (less + 1.0).times(power)


def expm1(x: Number) -> Number:
    """Return the exponential minus one, accurate for small numbers."""
    less, power = _expm1(x)
    whole = (less + 1.0).times(power) - 1.0
    return less.parts(lambda one, other: x.xp.where((power < 0.75) | (power > 1.5), other, one), whole)


def _expm1(x: Number) -> tuple[Number, Array]:
    """Return expm1 of the remainder modulo log 2, and the power of two."""
    xp = x.xp
    bounded = xp.where(x.high < -87.0, -87.0, xp.where(x.high > 88.0, 88.0, x.high))
    x = Number(xp, bounded, xp.where(bounded < x.high, 0.0, xp.where(bounded > x.high, 0.0, x.rest)))
    count = xp.floor(x.high * (1.0 / _LN2) + 0.5)
    quarter = (x - Number(xp, count) * _LN2).times(0.25)
    less = quarter * _series(quarter, _EXP)
    for _ in range(2):
        less = less * (less + 2.0)
    return less, _two_to(xp, count)


def _two_to(xp: Any, count: Array) -> Array:
    """Return two to an integer power of at most seven bits."""
    left, power, below = xp.abs(count), 1.0 + 0.0 * count, count < 0.0
    for bits in (64, 32, 16, 8, 4, 2, 1):
        there = left >= bits
        power = xp.where(there, power * xp.where(below, 2.0**-bits, 2.0**bits), power)
        left = xp.where(there, left - bits, left)
    return power


def power(x: Number, exponent: float) -> Number:
    """Raise nonnegative numbers to a positive power; zero for subnormal numbers."""
    if float(exponent).is_integer() and exponent <= _MOST:
        return _whole_power(x, int(exponent))
    xp, finite = x.xp, x.xp.isfinite(x.high)
    positive = (x.high >= base(xp).least) & finite
    found = exp(log(Exact(xp).where(positive, x, 1.0)) * exponent)
    return Exact(xp).where(positive, found, xp.where(finite, 0.0, x.high))


def _whole_power(x: Number, exponent: int) -> Number:
    if exponent == 1:
        return x
    square = _whole_power(x * x, exponent // 2)
    return square * x if exponent % 2 else square


def sine(x: Number) -> Number:
    """Return the sine of an angle of at most 1/8 turn."""
    return x * _series(x * x, _SINE)


def cosine(x: Number) -> Number:
    """Return the cosine of an angle of at most 1/8 turn."""
    return _series(x * x, _COSINE)


class Functions(Exact):
    """The namespace of float32 pairs with these functions."""

    log, expm1, sin, cos = staticmethod(log), staticmethod(expm1), staticmethod(sine), staticmethod(cosine)

    def float64(self, x: Any) -> Any:
        """Convert numbers of any dtype."""
        return x if hasattr(x, "parts") else self.number(wide(self.xp, x))
