"""Sums over axes, in float64."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array, widest

Axes = tuple[int, ...] | None
"""Axes to sum over with keepdims; None for all axes without keepdims."""
_ROW = 8
"""Numbers that float32 adds up with little rounding."""


def sum_over(xp: Any, leaf: Array, axes: Axes, weights: Any) -> Array:
    """Sum a real leaf times broadcasting weights over some axes with keepdims."""
    numbers = xp.float64(leaf)
    return add(xp, numbers if weights is None else numbers * xp.float64(weights), axes)


def add(xp: Any, x: Array, axes: Axes) -> Array:
    """Sum over axes; without float64 in short rows, and then their sums likewise."""
    if widest(xp) == "float64":
        return xp.sum_over(x, axes)
    for axis in range(len(x.shape)) if axes is None else [axis % len(x.shape) for axis in axes]:
        x = _along(xp, x, axis)
    return xp.reshape(x, ()) if axes is None else x


def _along(xp: Any, x: Array, axis: int) -> Array:
    count = x.shape[axis] // _ROW
    if count < 2:
        return xp.sum_over(x, (axis,))
    there, shape = (slice(None),) * axis, tuple(x.shape)
    rows = xp.reshape(x[(*there, slice(count * _ROW), ...)], (*shape[:axis], count, _ROW, *shape[axis + 1 :]))
    sums = xp.reshape(xp.sum_over(rows, (axis + 1,)), (*shape[:axis], count, *shape[axis + 1 :]))
    rest = x[(*there, slice(count * _ROW, None), ...)]
    return _along(xp, sums, axis) + xp.sum_over(rest, (axis,))
