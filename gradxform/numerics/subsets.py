"""Quadratic programs of a few tasks, solved exactly: one linear system per subset of the tasks, and the best of them.

At the solution, some tasks are active. Each subset is tried: its system is solved by elimination, negative weights
are set to zero, and the candidate with the smallest error in the conditions of optimality wins. So the number of
operations is fixed and no value is read. Dependent, opposite and zero gradients need no special case: if a subset's
system is singular, its candidate has a large error, and a smaller subset has the same solution.

The Gram matrix is divided by the norms, which leaves the cosines C: the sizes of gradients do not matter. Arrays of
candidates have the axes (subset, program, task).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradxform.numerics import Array, widest
from gradxform.numerics.formulas import equal

MOST = 10
"""The largest number of tasks; time and memory double with each."""
_HUGE = 1e30
"""The largest ratio of norms in a system, and the error of candidates that are not finite."""
_TIE = 1e-12
"""The level, in units of norms, below which no direction helps all tasks."""
_SURE = 1e-3
"""The largest relative rounding error of a squared length."""


class Tasks(NamedTuple):
    """Gradients as norms and cosines, and the subsets of them."""

    xp: Any
    finite: Array
    """Whether all gradients are."""
    present: Array
    """1 for each gradient that is not zero, else 0."""
    norms: Any
    """The norms; for zero gradients, the largest norm."""
    cosines: Any
    member: Array
    """For each subset, whether it has each task."""
    index: Array
    """The number of each task."""
    rounding: float
    """The relative error of a number."""

    def weights(self, found: Any) -> Any:
        """Return the weights; NaN if a gradient is not finite."""
        return self.xp.where(self.finite, found, float("nan"))


def measured(xp: Any, products: Sequence[Any], count: int) -> Tasks:
    """Compute norms and cosines from the inner products of tasks i <= j, by rows."""
    place = {pair: k for k, pair in enumerate((i, j) for i in range(count) for j in range(i, count))}
    entries = xp.stack(products)
    gram = xp.take(entries, tuple(place[min(i, j), max(i, j)] for i in range(count) for j in range(count)))
    squares = xp.take(entries, tuple(place[i, i] for i in range(count)))
    present = squares > 0.0
    sizes = xp.sqrt(xp.where(present, squares, 1.0))
    largest = xp.max(xp.where(present, sizes, 0.0))
    norms = xp.where(present, sizes, xp.where(largest > 0.0, largest, 1.0))
    cosines = xp.reshape(gram, (count, count)) / norms[:, None] / norms[None, :]
    index = xp.arange(count)
    halves = xp.floor(xp.arange(2**count)[:, None] / xp.stack([2.0**task for task in range(count)]))
    return Tasks(
        xp,
        xp.sum(xp.where(xp.isfinite(entries), 0.0, 1.0)) < 0.5,
        xp.where(present, 1.0, 0.0),
        norms,
        xp.where(_diagonal(index), 1.0, cosines),
        halves - 2.0 * xp.floor(halves / 2.0) > 0.5,
        index,
        2.0**-52 if widest(xp) == "float64" else 2.0**-23,
    )


def shortest(xp: Any, *products: Any, count: int) -> Any:
    """Return the weights of the shortest vector in the convex hull of the gradients.

    With a_i = n / n_i, where n is a subset's smallest norm: (C + a a^T) u = a, and the weights are proportional to a u.
    The second term keeps the system regular where the shortest vector is zero. At the solution g, the product with
    each gradient is at least |g|^2; the error is what lacks, in units of n n_i, so that large gradients do not count
    more than small ones.
    """
    given = measured(xp, products, count)
    relative = _relative_norms(given)
    units = 1.0 / relative
    matrix = given.cosines[None, :, :] + units * xp.reshape(units, (-1, count, 1))
    parts = _positive(given, _solved(given, matrix, units))
    total = xp.sum(units * parts, axis=-1)
    parts = parts / xp.where(total > 0.0, total, 1.0)[:, :, None]
    towards = _towards(given, parts)
    doubt = _doubt(given, parts)
    square = xp.sum(parts * (towards + doubt), axis=-1)
    gap = -_least(given, towards - doubt - square[:, :, None] * units)
    found = _best(given, parts, xp.where(total > 0.0, gap, _HUGE))[0] / given.norms
    zero = xp.where(given.present > 0.0, 0.0, 1.0)
    found = xp.where(xp.any(zero > 0.0), zero, found)
    return given.weights(found / xp.sum(found))


def projected(xp: Any, *products: Any, count: int) -> Any:
    """Return the weights of the mean of the gradients, each projected onto the directions that conflict with none.

    The projection of gradient i adds parts z >= 0 of all, so that y = C (z + e_i) >= 0, and z_j = 0 or y_j = 0.
    """
    given = measured(xp, products, count)
    cosines = given.cosines[None, :, :]
    parts = _positive(given, _solved(given, cosines, -cosines))
    slack = _towards(given, parts) + cosines
    error = xp.sum(xp.abs(xp.where(slack < parts, slack, parts)) + _doubt(given, parts), axis=-1)
    added = _best(given, parts, error) * given.norms[:, None] / given.norms[None, :]
    return given.weights((xp.sum(added, axis=0) + 1.0) / float(count))


def averse(xp: Any, c: Any, *products: Any, count: int) -> Any:
    """Return the weights of the vector within c |g_0| of the mean g_0 with the largest smallest product.

    The vector adds parts z >= 0 of gradients whose products are equal, t: C z = t a - b, where b = C g_0, a is as in
    `shortest`, and z^T C z = (c |g_0|)^2 is quadratic in t: the first program. If no t above zero is possible, t = 0
    with the shortest z: the second program.
    """
    given = measured(xp, products, count)
    relative = _relative_norms(given)
    units, largest = 1.0 / relative, xp.max(given.norms)
    mean = (given.norms / largest) * given.present / float(count)
    towards = xp.sum(given.cosines * mean, axis=-1)
    square, radius = xp.sum(mean * towards, axis=0), c
    square = xp.where((square > given.rounding) & (radius > 0.0), square * (radius * radius), 0.0)
    first = xp.arange(2)[None, :, None] < 0.5
    found = _solved(given, given.cosines[None, :, :], xp.where(first, units, towards))
    one, other = found[:, :1], found[:, 1:]
    linear, constant = xp.sum(units * other, axis=-1), xp.sum(towards * other, axis=-1) - square
    leading = xp.sum(units * one, axis=-1)
    leading = xp.where(leading > 0.0, leading, 1.0)
    level = linear * linear - leading * constant
    level = (linear + xp.sqrt(xp.where(level > 0.0, level, 0.0))) / leading
    parts = _positive(given, xp.where(first, level[:, :, None], 0.0) * one - other) * given.present
    length = xp.sum(parts * _towards(given, parts), axis=-1)
    doubtful = xp.sum(parts * _doubt(given, parts), axis=-1) > square * _SURE
    outside = length > square
    shorter = xp.where(outside, square, 1.0) / xp.where(outside, length, 1.0)
    some = shorter > 0.0
    parts = parts * xp.where(some, xp.sqrt(xp.where(some, shorter, 1.0)), 0.0)[:, :, None]

    # Of a gradient far larger than another, rounding exceeds any product of the other, so it gets the benefit of it.
    sign = xp.where(relative[-1:] * given.rounding > _SURE, 1.0, -1.0)

    def error_of(parts: Any) -> Any:
        products = _towards(given, parts) + towards + sign * _doubt(given, parts)
        return -_least(given, products * relative[-1:] * given.present)

    slack = _towards(given, parts) + towards
    kinks = xp.sum(xp.abs(xp.where(slack < parts, slack, parts)) + _doubt(given, parts), axis=-1)
    error = xp.where(first[:, :, 0], error_of(parts), kinks)
    parts = _best(given, parts, xp.where(doubtful, _HUGE, error))
    error = error_of(parts[None])[0]
    margin = xp.where(xp.abs(error[:1]) < _TIE, -_TIE, _TIE)
    level = xp.where(error[:1] < error[1:] + margin, parts[:1], parts[1:])[0]
    weights = level * largest / given.norms + 1.0 / count
    return xp.where(xp.isfinite(c), given.weights(weights), float("nan"))


def _diagonal(index: Array) -> Array:
    return equal(index[:, None], index[None, :])


def _relative_norms(given: Tasks) -> Any:
    """Return each task's norm in units of the smallest one of each subset; the empty subset has ones."""
    xp = given.xp
    ratios = given.norms[None, :] / given.norms[:, None]
    ratios = xp.where(ratios < _HUGE, xp.where(ratios > 1.0 / _HUGE, ratios, 1.0 / _HUGE), _HUGE)
    found = xp.where(given.member[:, :1], ratios[:1], 0.0)
    for task in range(1, given.index.shape[0]):
        here = slice(task, task + 1)
        found = xp.where(given.member[:, here] & (ratios[here] > found), ratios[here], found)
    return xp.where(found > 0.0, found, 1.0)[:, None, :]


def _solved(given: Tasks, matrix: Any, rights: Any) -> Any:
    """Solve x A = b for the rows and columns of each subset, by elimination; dependent gradients give any x."""
    xp, index = given.xp, given.index
    rows, columns = given.member[:, :, None], given.member[:, None, :]
    matrix = xp.where(rows & columns, matrix, xp.where(_diagonal(index), 1.0, 0.0))
    rights = xp.where(columns, rights, 0.0)
    for task in range(index.shape[0]):
        here, own = slice(task, task + 1), equal(index, float(task))
        row, pivot = matrix[:, here, :], matrix[:, here, here]
        pivot = xp.where(pivot > 0.0, pivot, 1.0)
        column, right = matrix[:, :, here] / pivot, rights[:, :, here] / pivot
        matrix = xp.where(own, column, matrix - column * row)
        rights = xp.where(own, right, rights - right * row)
    return rights


def _positive(given: Tasks, parts: Any) -> Any:
    return given.xp.where(given.member[:, None, :] & (parts > 0.0), parts, 0.0)


def _towards(given: Tasks, parts: Any) -> Any:
    """Return the products of vectors with the unit vector of each task."""
    return given.xp.sum(parts[:, :, None, :] * given.cosines, axis=-1)


def _doubt(given: Tasks, parts: Any) -> Any:
    """Return a bound of the rounding errors of `_towards`: large parts cancel."""
    return given.xp.sum(parts, axis=-1)[:, :, None] * given.rounding


def _least(given: Tasks, values: Any) -> Any:
    """Return the smallest value over tasks."""
    found = values[:, :, 0]
    for task in range(1, given.index.shape[0]):
        other = values[:, :, task]
        found = given.xp.where(other < found, other, found)
    return found


def _best(given: Tasks, parts: Any, error: Any) -> Any:
    """Return the candidate with the smallest error for each program, by a knockout of subsets."""
    xp = given.xp
    error = xp.where(xp.isfinite(error), error, _HUGE)
    while error.shape[0] > 1:
        half = error.shape[0] // 2
        better = error[half:] < error[:half]
        error = xp.where(better, error[half:], error[:half])
        parts = xp.where(better[:, :, None], parts[half:], parts[:half])
    return parts[0]
