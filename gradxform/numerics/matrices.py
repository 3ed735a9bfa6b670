"""Formulas of matrices: leaves as stacks of matrices, and the Newton-Schulz iteration over an array namespace.

Only matrices whose rows or columns span several axes are reshaped. Nothing is transposed to be wide: the iteration
multiplies from the shorter side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.numerics import Array, dtype_name

Sides = tuple[tuple[int, ...], tuple[int, ...]]
"""The axes of a leaf that are the two sides of its matrices; the other axes stack matrices."""


def of_leaf(
    formula: Callable[..., Array], xp: Any, leaf: Array, sides: Sides, dtype: str | None, static: dict[str, Any]
) -> Array:
    """Apply a formula to the matrices of a leaf, in the last two axes and in a dtype; return the leaf's own dtype."""
    own, rank = dtype_name(leaf), len(leaf.shape)
    rows, columns = sorted(sides)
    stack = [axis for axis in range(rank) if axis not in (*rows, *columns)]
    order = (*stack, *rows, *columns)
    moved = leaf if order == tuple(range(rank)) else xp.transpose(leaf, order)
    plain, whole = len(rows) == len(columns) == 1, tuple(moved.shape)
    if not plain:
        merged = [math.prod([leaf.shape[axis] for axis in side]) for side in (rows, columns)]
        moved = xp.reshape(moved, (*whole[: len(stack)], *merged))
    found = xp.cast(formula(xp, xp.cast(moved, dtype or own), **static), own)
    found = found if plain else xp.reshape(found, whole)
    return found if moved is leaf else xp.transpose(found, sorted(range(rank), key=order.__getitem__))


def newton_schulz(xp: Any, x: Array, *, coefficients: Sequence[tuple[float, float, float]]) -> Array:
    """Map each singular value s of matrices to a s + b s^3 + c s^5, for each (a, b, c) in turn."""
    wide, dtype = x.shape[-2] <= x.shape[-1], dtype_name(x)
    swapped = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
    for a, b, c in coefficients:
        turned = xp.transpose(x, swapped)
        gram = xp.cast(xp.matmul(x, turned) if wide else xp.matmul(turned, x), dtype)
        inner = xp.matmul_add(gram, gram, gram, b, c)
        x = xp.matmul_add(x, inner, x, a, 1.0) if wide else xp.matmul_add(x, x, inner, a, 1.0)
    return x
