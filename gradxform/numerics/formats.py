"""The base format of a namespace: the widest floating-point format of its devices.

With float64, float32 leaves are computed in float64, and 64-bit leaves in pairs. Without float64 (Apple's Metal) or
its range (TPUs), the base is float32, and all leaves are computed in float32 pairs with exponents.

A device without float64 must round sums, differences, products and quotients as in IEEE 754 (quotients may be off by
a few ULP), must not reassociate within an operation, and must compare NaN and infinity correctly. It may flush
subnormal numbers to zero.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Format(NamedTuple):
    """The properties of a floating-point format that formulas need."""

    name: str
    paired: frozenset[str]
    """Dtypes whose elements and norms are pairs of this format."""
    digits: int
    """Bits of the mantissa."""
    half: int
    """Bits of its upper half; products of halves are exact."""
    small: float
    """Below this, the lower half of a number may be subnormal and flushed."""
    bits: int
    """The unit of exponents in bits; a pair stays within half of it around one."""
    least: float
    """The smallest unit of a norm; its inverse is a normal number. See `most`."""
    most: float
    row: int | None
    """How many numbers are summed at a time, see `rows.py`; None for no limit."""

    @property
    def base(self) -> float:
        """The power of two that is the base of exponents."""
        return 2.0**self.bits

    @property
    def near(self) -> float:
        """Numbers between this and its inverse keep their exponent: two of them can be multiplied."""
        return 2.0 ** (self.bits // 2)

    def split(self, value: float) -> tuple[float, float]:
        """Split a Python number into two of this format; float64 needs one."""
        if self is FLOAT64 or not math.isfinite(value):
            return value, 0.0
        high = self.nearest(value)
        return high, self.nearest(value - high)

    def near_one(self, value: float) -> tuple[float, float]:
        """Scale a Python number by a power of the base to be near one; return it and the exponent."""
        exponent = 0.0
        while self.near < abs(value) < math.inf:
            value, exponent = value / self.base, exponent + 1.0
        while 0.0 < abs(value) < 1.0 / self.near:
            value, exponent = value * self.base, exponent - 1.0
        return value, exponent

    def nearest(self, value: float) -> float:
        """Round a Python number to the digits of this format, at any magnitude."""
        mantissa, exponent = math.frexp(value)
        return math.ldexp(round(math.ldexp(mantissa, self.digits)), exponent - self.digits)


_SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
_DOUBLE = frozenset({"float64", "complex128"})

FLOAT64 = Format("float64", _DOUBLE, 53, 26, 2.0**-900, 600, 2.0**-1022, 2.0**1000, None)
FLOAT32 = Format("float32", _SINGLE, 24, 12, 2.0**-78, 72, 2.0**-126, 2.0**120, 2**12)


def base(xp: Any) -> Format:
    """Return the base format of a namespace; float64 by default."""
    return getattr(xp, "base", FLOAT64)
