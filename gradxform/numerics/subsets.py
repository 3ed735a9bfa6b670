"""Quadratic programs of a few tasks, solved exactly: one linear system per subset of the tasks, and the best of them.

At the solution, some tasks are active. Each subset is tried: its system is solved by elimination, negative weights
are set to zero, and the candidate with the smallest error in the conditions of optimality wins. So the number of
operations is fixed and no value is read. Dependent, opposite and zero gradients need no special case: if a subset's
system is singular, its candidate has a large error, and a smaller subset has the same solution.

The Gram matrix is divided by the norms, which leaves the cosines C: the sizes of gradients do not matter. Arrays of
candidates have the axes (subset, program, task).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gradxform.numerics import Array, widest
from gradxform.numerics.formulas import equal, safe_root
from gradxform.numerics.norms import unit_of

MOST = 10
"""The largest number of tasks; time and memory double with each."""
_HUGE = 1e30
"""The largest ratio of norms in a system, and the error of candidates that are not finite."""
_TIE = 1e-12
"""The level, in units of norms, below which no direction helps all tasks."""
_SURE = 1e-3
"""The largest relative rounding error of a squared length."""
_USUAL = 2.0**300
"""Gradients with a largest element between this and its inverse are measured in ones."""


def inverse_unit(xp: Any, sizes: Array) -> Array:
    """Return the inverse of a power of two near the largest of the leaves' sizes, in which squares are in range."""
    size = xp.max(sizes)
    return 1.0 / unit_of(xp, xp.where((size > 1.0 / _USUAL) & (size < _USUAL), 1.0, size))


def total(xp: Any, *parts: Array) -> Array:
    """Add up inner products of leaves, which may have axes of length one."""
    return xp.sum(xp.stack([xp.reshape(part, ()) for part in parts]))


def gram_of(xp: Any, products: Sequence[Any], count: int) -> Array:
    """Return the symmetric matrix of the inner products of tasks i <= j, which are given by rows."""
    pairs = [sorted((i, j)) for i in range(count) for j in range(count)]
    entries = xp.take(xp.stack(products), tuple([i * count - i * (i + 1) // 2 + j for i, j in pairs]))
    return xp.reshape(entries, (count, count))


class _Tasks:
    """Gradients as norms and cosines, and the subsets of them."""

    def __init__(self, xp: Any, products: Sequence[Any], count: int) -> None:
        """Take the inner products of tasks i <= j, by rows."""
        self.xp, self.count = xp, count
        self.rounding = 2.0**-52 if widest(xp) == "float64" else 2.0**-23
        gram, index = gram_of(xp, products, count), xp.arange(count)
        self.diagonal = equal(xp, index[:, None], index[None, :])
        squares = xp.sum(xp.where(self.diagonal, gram, 0.0), axis=-1)
        self.finite = xp.sum(xp.where(xp.isfinite(gram), 0.0, 1.0)) < 0.5
        there = squares > 0.0
        self.present = xp.where(there, 1.0, 0.0)
        largest = xp.max(squares)
        largest = xp.where(largest > 0.0, largest, 1.0)
        self.largest, self.norms = xp.sqrt(largest), xp.sqrt(xp.where(there, squares, largest))
        self.cosines = xp.where(self.diagonal, 1.0, gram / self.norms[:, None] / self.norms[None, :])
        halves = xp.floor(xp.arange(2**count)[:, None] / xp.stack([2.0**task for task in range(count)]))
        self.member = halves - 2.0 * xp.floor(halves / 2.0) > 0.5
        found = xp.max_over(xp.where(self.member[:, :, None], self.norms / self.norms[:, None], 0.0), (1,))
        self.relative = xp.where(found < _HUGE, xp.where(found > 1.0 / _HUGE, found, 1.0 / _HUGE), _HUGE)
        """Each norm in units of the smallest one of each subset."""

    def weights(self, found: Any) -> Any:
        """Return the weights; NaN if a gradient is not finite."""
        return self.xp.where(self.finite, found, float("nan"))

    def solved(self, matrix: Any, rights: Any) -> Any:
        """Solve x A = b for the rows and columns of each subset, by elimination; dependent gradients give any x."""
        xp, rows, columns = self.xp, self.member[:, :, None], self.member[:, None, :]
        matrix = xp.where(rows & columns, matrix, xp.where(self.diagonal, 1.0, 0.0))
        rights = xp.where(columns, rights, 0.0)
        for task in range(self.count):
            own, here = self.diagonal[task], slice(task, task + 1)
            row, pivot = matrix[:, here, :], matrix[:, here, here]
            pivot = xp.where(pivot > 0.0, pivot, 1.0)
            column, right = matrix[:, :, here] / pivot, rights[:, :, here] / pivot
            matrix = xp.where(own, column, matrix - column * row)
            rights = xp.where(own, right, rights - right * row)
        return rights

    def positive(self, parts: Any) -> Any:
        """Set negative parts, and those of other tasks, to zero."""
        return self.xp.where(self.member[:, None, :] & (parts > 0.0), parts, 0.0)

    def towards(self, parts: Any) -> Any:
        """Return the products of vectors with the unit vector of each task."""
        return self.xp.sum(parts[:, :, None, :] * self.cosines, axis=-1)

    def doubt(self, parts: Any) -> Any:
        """Return a bound of the rounding errors of `towards`: large parts cancel."""
        return self.xp.sum(parts, axis=-1)[:, :, None] * self.rounding

    def kinks(self, parts: Any, slack: Any) -> Any:
        """Return how far parts and slacks are from being zero in turn."""
        return self.xp.sum(self.xp.abs(self.xp.where(slack < parts, slack, parts)) + self.doubt(parts), axis=-1)

    def least(self, values: Any) -> Any:
        """Return the smallest value over tasks."""
        each = [values[:, :, task] for task in range(self.count)]
        return functools.reduce(lambda one, other: self.xp.where(other < one, other, one), each)

    def best(self, parts: Any, error: Any) -> Any:
        """Return the candidate with the smallest error for each program, by a knockout of subsets."""
        error = self.xp.where(self.xp.isfinite(error), error, _HUGE)
        while error.shape[0] > 1:
            half = error.shape[0] // 2
            better = error[half:] < error[:half]
            error = self.xp.where(better, error[half:], error[:half])
            parts = self.xp.where(better[:, :, None], parts[half:], parts[:half])
        return parts[0]


def shortest(xp: Any, *products: Any, count: int) -> Any:
    """Return the weights of the shortest vector in the convex hull of the gradients.

    With a_i = n / n_i, where n is a subset's smallest norm: (C + a a^T) u = a, and the weights are proportional to a u.
    The second term keeps the system regular where the shortest vector is zero. At the solution g, the product with
    each gradient is at least |g|^2; the error is what lacks, in units of n n_i, so that large gradients do not count
    more than small ones.
    """
    tasks = _Tasks(xp, products, count)
    units = 1.0 / tasks.relative
    parts = tasks.positive(tasks.solved(tasks.cosines[None, :, :] + units * xp.reshape(units, (-1, count, 1)), units))
    whole = xp.sum(units * parts, axis=-1)
    parts = parts / xp.where(whole > 0.0, whole, 1.0)[:, :, None]
    towards, doubt = tasks.towards(parts), tasks.doubt(parts)
    square = xp.sum(parts * (towards + doubt), axis=-1)
    gap = -tasks.least(towards - doubt - square[:, :, None] * units)
    found = tasks.best(parts, xp.where(whole > 0.0, gap, _HUGE))[0] / tasks.norms
    found = xp.where(xp.any(tasks.present < 0.5), 1.0 - tasks.present, found)
    return tasks.weights(found / xp.sum(found))


def projected(xp: Any, *products: Any, count: int) -> Any:
    """Return the weights of the mean of the gradients, each projected onto the directions that conflict with none.

    The projection of gradient i adds parts z >= 0 of all, so that y = C (z + e_i) >= 0, and z_j = 0 or y_j = 0.
    """
    tasks = _Tasks(xp, products, count)
    cosines = tasks.cosines[None, :, :]
    parts = tasks.positive(tasks.solved(cosines, -cosines))
    added = tasks.best(parts, tasks.kinks(parts, tasks.towards(parts) + cosines))
    added = added * tasks.norms[:, None] / tasks.norms[None, :]
    return tasks.weights((xp.sum(added, axis=0) + 1.0) / float(count))


def averse(xp: Any, c: Any, *products: Any, count: int) -> Any:
    """Return the weights of the vector within c |g_0| of the mean g_0 with the largest smallest product.

    The vector adds parts z >= 0 of gradients whose products are equal, t: C z = t a - b, where b = C g_0, a is as in
    `shortest`, and z^T C z = (c |g_0|)^2 is quadratic in t: the first program. If no t above zero is possible, t = 0
    with the shortest z: the second program.
    """
    tasks = _Tasks(xp, products, count)
    units, relative = 1.0 / tasks.relative, tasks.relative[-1:]
    mean = tasks.norms / tasks.largest * tasks.present / float(count)
    towards = xp.sum(tasks.cosines * mean, axis=-1)
    square = xp.sum(mean * towards, axis=0)
    square = xp.where((square > tasks.rounding) & (c > 0.0), square * (c * c), 0.0)
    first = xp.arange(2)[None, :, None] < 0.5
    found = tasks.solved(tasks.cosines[None, :, :], xp.where(first, units, towards))
    one, other = found[:, :1], found[:, 1:]
    linear, constant = xp.sum(units * other, axis=-1), xp.sum(towards * other, axis=-1) - square
    leading = xp.sum(units * one, axis=-1)
    leading = xp.where(leading > 0.0, leading, 1.0)
    level = linear * linear - leading * constant
    level = (linear + xp.sqrt(xp.where(level > 0.0, level, 0.0))) / leading
    parts = tasks.positive(xp.where(first, level[:, :, None], 0.0) * one - other) * tasks.present
    length = xp.sum(parts * tasks.towards(parts), axis=-1)
    doubtful = xp.sum(parts * tasks.doubt(parts), axis=-1) > square * _SURE
    outside = length > square
    shorter = xp.where(outside, square, 1.0) / xp.where(outside, length, 1.0)
    parts = parts * safe_root(xp, shorter, 2)[:, :, None]

    # Of a gradient far larger than another, rounding exceeds any product of the other, so it gets the benefit of it.
    sign = xp.where(relative * tasks.rounding > _SURE, 1.0, -1.0)

    def error_of(parts: Any) -> Any:
        products = tasks.towards(parts) + towards + sign * tasks.doubt(parts)
        return -tasks.least(products * relative * tasks.present)

    error = xp.where(first[:, :, 0], error_of(parts), tasks.kinks(parts, tasks.towards(parts) + towards))
    parts = tasks.best(parts, xp.where(doubtful, _HUGE, error))
    error = error_of(parts[None])[0]
    margin = xp.where(xp.abs(error[:1]) < _TIE, -_TIE, _TIE)
    level = xp.where(error[:1] < error[1:] + margin, parts[:1], parts[1:])[0]
    weights = level * tasks.largest / tasks.norms + 1.0 / count
    return xp.where(xp.isfinite(c), tasks.weights(weights), float("nan"))
