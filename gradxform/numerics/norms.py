"""Norms, and sums over the axes that are there, in float64.

The square of a float32 number fits float64, so the 2-norm of narrow leaves is a plain sum. Other leaves and orders, and
all leaves without float64, are measured in a unit near the largest element. No dimension is merged and no leaf is
concatenated, and no value is read: a mesh sums what each device has, and a compiler makes one pass.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from gradxform.numerics import DOUBLE, Array, dtype_name, is_complex, widest
from gradxform.numerics.formulas import safe_root as safe_root

Axes = tuple[int, ...] | None
"""Axes to sum over with keepdims; None for all axes without keepdims."""
_ROW = 16
"""Numbers that float32 adds up with little rounding."""
_LEAST, _MOST = {"float64": 2.0**-1022, "float32": 2.0**-126}, {"float64": 2.0**1000, "float32": 2.0**120}
"""Units with normal inverses: XLA may multiply by these, and flushes."""


def norm(xp: Any, leaf: Array, axes: Axes, ord: float) -> Array:
    """Return the norm of a leaf, or its norms over some axes with keepdims."""
    if ord != 2:
        return _other(xp, leaf, axes, ord)
    parts, narrow = parts_of(xp, leaf), dtype_name(leaf) not in DOUBLE

    def root(parts: list[Array]) -> Array:
        return safe_root(xp, functools.reduce(operator.add, [add(xp, x * x, axes, narrow) for x in parts]), 2)

    if narrow and widest(xp) == "float64":
        return root(parts)
    unit = unit_of(xp, functools.reduce(functools.partial(_larger, xp), [_largest(xp, part, axes) for part in parts]))
    return root([part * (1.0 / unit) for part in parts]) * unit


def _other(xp: Any, leaf: Array, axes: Axes, ord: float) -> Array:
    if ord == math.inf and not is_complex(leaf):  # in the leaf's dtype, so that a compiler keeps no wider copy
        return xp.float64(xp.max_over(xp.abs(leaf), axes))
    size, narrow = sizes_of(xp, leaf), dtype_name(leaf) not in DOUBLE
    if ord == math.inf:
        return xp.max_over(size, axes)
    if ord == 1:
        return add(xp, size, axes, narrow)
    largest = _largest(xp, size, axes)
    unit = _within(xp, xp.where((largest > 0.0) & xp.isfinite(largest), largest, 1.0))
    return safe_root(xp, add(xp, (size / unit) ** ord, axes, narrow), ord) * unit


def sizes_of(xp: Any, leaf: Array) -> Array:
    """Return the absolute values of a leaf in float64."""
    if not is_complex(leaf):
        return xp.float64(xp.abs(leaf))
    real, imag = parts_of(xp, leaf)
    unit = unit_of(xp, _larger(xp, *(xp.abs(xp.stop_gradient(part)) for part in (real, imag))))
    found = safe_root(xp, (real / unit) ** 2 + (imag / unit) ** 2, 2) * unit
    infinite = (xp.abs(real) >= math.inf) | (xp.abs(imag) >= math.inf)  # even if the other part is NaN, as in C
    return xp.where(infinite, math.inf, found)


def _largest(xp: Any, x: Array, axes: Axes) -> Array:
    return xp.max_over(xp.abs(xp.stop_gradient(x)), axes)


def unit_of(xp: Any, largest: Array) -> Array:
    """Return a power of two near the largest size."""
    return _within(xp, xp.power_of_two(largest))


def _within(xp: Any, unit: Array) -> Array:
    least, most = _LEAST[widest(xp)], _MOST[widest(xp)]
    return xp.where(unit > most, most, xp.where(unit < least, least, unit))


def _larger(xp: Any, one: Array, other: Array) -> Array:
    """Return the larger of two, or NaN if the first is NaN; NaN in the second does not matter to a unit."""
    return xp.where(other > one, other, one)


def parts_of(xp: Any, leaf: Array) -> list[Array]:
    """Return the leaf, or its real and imaginary parts, in float64."""
    return [xp.float64(xp.real(leaf)), xp.float64(xp.imag(leaf))] if is_complex(leaf) else [xp.float64(leaf)]


# --- sums ------------------------------------------------------------------------------------------------------------


def sum_over(xp: Any, leaf: Array, axes: Axes, weights: Any) -> Array:
    """Sum a real leaf times broadcasting weights over some axes with keepdims."""
    numbers, narrow = xp.float64(leaf), dtype_name(leaf) not in DOUBLE
    return add(xp, numbers if weights is None else numbers * xp.float64(weights), axes, narrow)


def add(xp: Any, x: Array, axes: Axes, narrow: bool = False) -> Array:
    """Sum over axes with little rounding, also where a framework would add one by one.

    Float64 sums of `narrow` numbers, which have half of its digits, round little in any order.
    """
    if widest(xp) == "float32":
        return in_rows(xp, x, axes)
    return (xp.sum_over if narrow else getattr(xp, "sum_exactly", xp.sum_over))(x, axes)


def in_rows(xp: Any, x: Array, axes: Axes) -> Array:
    """Sum over axes in short rows, and their sums likewise."""
    if axes is None:
        return xp.reshape(along(xp, xp.reshape(x, (-1,)), 0), ())
    for axis in axes:
        x = along(xp, x, axis % len(x.shape))
    return x


def along(xp: Any, x: Array, axis: int) -> Array:
    """Sum over one axis in short rows."""
    there, shape, size = (slice(None),) * axis, tuple(x.shape), x.shape[axis] // _ROW * _ROW
    if size < 2 * _ROW:
        return xp.sum_over(x, (axis,))
    whole = x if size == shape[axis] else x[(*there, slice(size), ...)]
    rows = xp.reshape(whole, (*shape[:axis], size // _ROW, _ROW, *shape[axis + 1 :]))
    sums = xp.reshape(xp.sum_over(rows, (axis + 1,)), (*shape[:axis], size // _ROW, *shape[axis + 1 :]))
    found = along(xp, sums, axis)
    return found if whole is x else found + xp.sum_over(x[(*there, slice(size, None), ...)], (axis,))
