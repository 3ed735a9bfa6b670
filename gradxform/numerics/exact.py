"""The functions of a namespace on double-double numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array
from gradxform.numerics.double_double import Number, Pair, plain
from gradxform.numerics.formats import base


class Exact:
    """The functions of a namespace on pairs."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def number(self, operand: Any) -> Any:
        """Convert a vector, a number or a pair to a pair with operators."""
        if isinstance(operand, Number):
            return operand
        return Number(self.xp, *operand[:2]) if isinstance(operand, Pair) else plain(self.xp, operand)

    def blend(self, first: Any, x: Any, second: Any, y: Any) -> Any:
        """Return first * x + second * y."""
        return (x if isinstance(first, float) and first == 1.0 else first * x) + second * y

    def where(self, condition: Array, yes: Any, no: Any) -> Any:
        """Select elementwise."""
        return self.number(yes).parts(functools.partial(self.xp.where, condition), self.number(no))

    def isfinite(self, x: Any) -> Array:
        """Whether finite."""
        return self.xp.isfinite(x.high)

    def sqrt(self, x: Any) -> Any:
        """Return the square root of positive numbers."""
        return x.root()

    def root(self, x: Any) -> Any:
        """Return the square root; zero, with derivative zero, at zero; infinite at infinity."""
        positive = (x.high > 0.0) & self.xp.isfinite(x.high)
        near = self.sqrt(self.where(positive, x, 1.0))
        return self.where(positive, near, x.high * 1.0)

    def abs(self, x: Any) -> Any:
        """Return the absolute value."""
        return self.where(x.high < 0, -x, x)

    def sum(self, x: Any, axis: int = 0) -> Any:
        """Sum a vector pairwise, or the last axis of a matrix."""
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
        """Return the maximum, in the base format."""
        return self.number(self.xp.max(x.high))

    def any(self, condition: Array) -> Array:
        """Whether any element is true."""
        return self.xp.any(condition)

    def floor(self, x: Any) -> Any:
        """Round down to an integer."""
        floor, near = self.xp.floor, self.xp.floor(x.high)
        return x._sum(near, self.xp.where(near >= x.high, floor(x.rest), 0.0))

    def int32(self, x: Any) -> Array:
        """Reduce integers to their lower 32 bits; float32 parts may exceed int32."""
        if base(self.xp).row is None:
            return self.xp.int32(x.high)
        upper = self.xp.floor(x.high / 2.0**16)
        return self.xp.shift_left(self.xp.int32(upper), 16) + self.xp.int32(x.high - upper * 2.0**16 + x.low)

    def stop_gradient(self, x: Any) -> Any:
        """Return the value without a gradient."""
        return x.parts(self.xp.stop_gradient)

    def rounded(self, x: Any, dtype: str) -> Any:
        """Round to a dtype."""
        return self.number(self.xp.rounded(self.number(x).high, dtype))

    def take(self, x: Any, index: Any) -> Any:
        """Select numbers of a vector."""
        return x.parts(lambda part: self.xp.take(part, index))

    def stack(self, numbers: Sequence[Any]) -> Any:
        """Stack numbers into a vector."""
        first, *others = map(self.number, numbers)
        return first.parts(lambda *parts: self.xp.stack(parts), *others)

    def mask(self, active: tuple[bool, ...]) -> Array:
        """Turn bools into a vector."""
        return self.xp.mask(active)

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Reshape."""

        def change(part: Any) -> Any:
            return self.xp.reshape(part, shape)

        return x.parts(change) if hasattr(x, "parts") else change(x)
