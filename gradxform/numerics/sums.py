"""Sums over axes, in float64."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array, widest

Axes = tuple[int, ...] | None
"""Axes to sum over with keepdims; None for all axes without keepdims."""
_ROW = 16
"""Numbers that float32 adds up with little rounding."""


def sum_over(xp: Any, leaf: Array, axes: Axes, weights: Any) -> Array:
    """Sum a real leaf times broadcasting weights over some axes with keepdims."""
    numbers = xp.float64(leaf)
    return add(xp, numbers if weights is None else numbers * xp.float64(weights), axes)


def add(xp: Any, x: Array, axes: Axes) -> Array:
    """Sum over axes; without float64, or if the framework adds one by one, in short rows, and their sums likewise."""
    if not getattr(xp, "adds_one_by_one", widest(xp) == "float32"):
        return xp.sum_over(x, axes)
    if axes is None:
        return xp.reshape(_along(xp, xp.reshape(x, (-1,)), 0), ())
    for axis in axes:
        x = _along(xp, x, axis % len(x.shape))
    return x


def _along(xp: Any, x: Array, axis: int) -> Array:
    there, shape, size = (slice(None),) * axis, tuple(x.shape), x.shape[axis] // _ROW * _ROW
    if size < 2 * _ROW:
        return xp.sum_over(x, (axis,))
    whole = x if size == shape[axis] else x[(*there, slice(size), ...)]
    rows = xp.reshape(whole, (*shape[:axis], size // _ROW, _ROW, *shape[axis + 1 :]))
    sums = xp.reshape(xp.sum_over(rows, (axis + 1,)), (*shape[:axis], size // _ROW, *shape[axis + 1 :]))
    found = _along(xp, sums, axis)
    return found if whole is x else found + xp.sum_over(x[(*there, slice(size, None), ...)], (axis,))
