"""Compute a * x + b * y in pairs of float32, rounded as if through float64.

With a decay of 0.9, every tenth sum is closer to the middle of two float32 numbers than a float32 pair can resolve.
"""

from __future__ import annotations

import math
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, two_sum
from gradxform.numerics.formats import base
from gradxform.numerics.ranged import Ranged, Space, near_one, nearer


class Blending(Space):
    """Pairs of float32 with exponents; a sum of two products keeps a third number."""

    def blend(self, first: Any, x: Ranged, second: Any, y: Ranged) -> Ranged:
        """Return first * x + second * y, with all digits of Python numbers."""
        (a, e), (b, f) = self._product(first, x), self._product(second, y)
        unit = self.xp.where(e > f, e, f)
        (high, *some, small), (other, *more, smaller) = self._at(a, e, unit), self._at(b, f, unit)
        high, low = two_sum(high, other)
        rest = small + smaller
        for part in some + more:
            low, lost = two_sum(low, part)
            rest = rest + lost
        for _ in range(2):
            high, low = two_sum(high, low)
            low, rest = two_sum(low, rest)
        next_one = high + 2.0 * low
        middle = (next_one - high <= 2.0 * low) & (next_one - high >= 2.0 * low)
        least = self.xp.abs(low) * 2.0**-29  # half a float64 ULP at the middle of two float32 numbers
        beyond = middle & (((low > 0.0) & (rest > least)) | ((low < 0.0) & (rest < -least)))
        where = self.xp.where
        return Ranged(self.xp, Number(self.xp, where(beyond, next_one, high), where(beyond, -low, low)), unit)

    def _product(self, factor: Any, x: Ranged) -> tuple[list[Array], Array]:
        """Split a product into parts: a large one, parts about 24 bits below it, and the rest."""
        by, rest = self.number(factor), 0.0
        low = by.pair.low
        if isinstance(factor, float):
            rest = math.ldexp(factor, -int(by.exponent) * base(self.xp).bits) - by.high - low
        head, tail = Number(self.xp, x.high).halves(), Number(self.xp, by.high).halves()
        first, error = two_sum(head[0] * tail[0], head[0] * tail[1])
        first, more = two_sum(first, head[1] * tail[0])
        cross = Number(self.xp, x.high) * low
        small = cross.low + (rest * x.high + (by.high * x.pair.low + low * x.pair.low))
        step, exponent = nearer(self.xp, first, by.exponent + x.exponent)
        return [part * step for part in (first, error, more, head[1] * tail[1], cross.high, small)], exponent

    def _at(self, parts: list[Array], exponent: Array, unit: Array) -> list[Array]:
        share = near_one(self.xp, Number(self.xp, parts[0]), exponent).share(unit)
        return [part * share for part in parts]
