"""The base format of a namespace: the widest floating-point numbers that its devices compute with.

Where it is float64, float32 leaves are computed in it, and 64-bit ones in pairs. Where there is no float64 (Apple's
Metal) or none of its range (TPUs), it is float32: all leaves are computed in pairs of float32 numbers with exponents.

Of a device without float64, this asks that sums, differences, products and quotients are rounded as IEEE 754 has it
(quotients may be off by some units), that nothing is reassociated within an operation, and that comparisons tell NaN
and infinities. Subnormal numbers may be zeros.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Format(NamedTuple):
    """What formulas need to know of a floating-point format."""

    name: str
    paired: frozenset[str]
    """Dtypes whose elements and norms are pairs in this base."""
    digits: int
    """The bits of a mantissa."""
    half: int
    """The bits of its upper half: products of halves are exact."""
    small: float
    """Below it the lower half of a number may be subnormal, and lost."""
    bits: int
    """The unit of exponents, in bits: a pair may have so many bits above or below one, divided by two."""
    least: float
    """The least unit of a norm, whose inverse is a normal number; see `most`."""
    most: float
    row: int | None
    """How many numbers are added at a time, see `rows.py`; None for any number of them."""

    @property
    def base(self) -> float:
        """The power of two that exponents count."""
        return 2.0**self.bits

    @property
    def near(self) -> float:
        """A number between this and its inverse keeps its exponent: two of them can be multiplied."""
        return 2.0 ** (self.bits // 2)

    def split(self, value: float) -> tuple[float, float]:
        """A Python number as the sum of two of this format, of which float64 needs one."""
        if self is FLOAT64 or not math.isfinite(value):
            return value, 0.0
        high = self.nearest(value)
        return high, self.nearest(value - high)

    def near_one(self, value: float) -> tuple[float, float]:
        """A Python number in units of a power of the base, so that it is near one; and the exponent."""
        exponent = 0.0
        while self.near < abs(value) < math.inf:
            value, exponent = value / self.base, exponent + 1.0
        while 0.0 < abs(value) < 1.0 / self.near:
            value, exponent = value * self.base, exponent - 1.0
        return value, exponent

    def nearest(self, value: float) -> float:
        """A Python number rounded to the digits of this format, whatever its size."""
        mantissa, exponent = math.frexp(value)
        return math.ldexp(round(math.ldexp(mantissa, self.digits)), exponent - self.digits)


_SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
_DOUBLE = frozenset({"float64", "complex128"})

FLOAT64 = Format("float64", _DOUBLE, 53, 26, 2.0**-900, 600, 2.0**-1022, 2.0**1000, None)
FLOAT32 = Format("float32", _SINGLE, 24, 12, 2.0**-78, 72, 2.0**-126, 2.0**120, 2**12)


def base(xp: Any) -> Format:
    """The base format of a namespace: float64 where it says nothing."""
    return getattr(xp, "base", FLOAT64)
