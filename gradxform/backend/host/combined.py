"""The formula a * x + b * y for float32 arrays in host memory, without temporary arrays.

The same sums, with the same rounding, as `numerics.elementwise.Combination`, computed in blocks that fit the cache,
with threads for large leaves; small leaves are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import threads, together
from gradxform.backend.host.namespace import Namespace
from gradxform.numerics.double_double import Number
from gradxform.numerics.elementwise import Combination

_BLOCK = 1 << 14
_NARROW = {np.dtype(np.float32), np.dtype(np.float16)}

_Vectors = list[Any]


def combinations(
    formula: Combination, first: Sequence[Any], second: Sequence[Any], numbers: Sequence[Any], factors: Sequence[Any]
) -> list[Any] | None:
    """Compute the sums of leaves, rounded once to float32; None for other dtypes, shapes that broadcast, and pairs.

    Args:
        formula: gives the weights from `numbers`.
        first: the leaves; each is multiplied by its factor.
        second: arrays of the same shapes.
        numbers: the formula's numbers.
        factors: a factor per leaf; None for one.
    """
    if not all([isinstance(number, (int, float, type(None))) for number in (*numbers, *factors)]):
        return None
    kinds = {array.dtype for array in (*first, *second)}
    plain = {np.ndarray}.issuperset({type(array) for array in (*first, *second)})  # a matrix has other vectors
    if not plain or not kinds <= _NARROW or [x.shape for x in first] != [y.shape for y in second]:
        return None
    with np.errstate(all="ignore"):
        weights = formula.weights(Namespace, *map(float, numbers))
        out: list[Any] = [None] * len(first)

        for factor, small in together.groups(first, factors):
            vectors = [together.joined(column, small, np.float32) for column in (first, second)]
            together.parted(_combined(vectors, weights, factor), first, small, out)
        alone = [i for i, found in enumerate(out) if found is None]
        sizes = [first[i].size for i in alone]
        step = threads.BLOCK if threads.worth(len(alone), sum(sizes)) else _BLOCK

        def one(i: int) -> None:
            vectors = [np.asarray(column[i], np.float32).reshape(-1) for column in (first, second)]
            out[i] = _combined(vectors, weights, factors[i], step).reshape(first[i].shape)

        threads.spread(one, alone, sizes)
    return out


def _combined(vectors: _Vectors, weights: tuple[Any, Any], factor: Any, step: int = _BLOCK) -> Any:
    """Compute a * factor * x + b * y of two vectors, so many elements at a time."""
    size = vectors[0].size
    out, room = np.empty(size, np.float32), np.empty((5, min(size, step)))
    halves = [Number(Namespace, np.float64(weight)).halves() for weight in weights]
    for start in range(0, size, step):
        part = slice(start, start + step)
        block = out[part]
        total = _sums([vector[part] for vector in vectors], halves, factor, room[:, : block.size])
        np.copyto(block, total, casting="same_kind")
    return out


def _sums(vectors: _Vectors, halves: Any, factor: Any, room: Any) -> Any:
    """Compute the sums of a block in float64, in some of the given memory.

    Products with half of a weight's digits are exact. Two-sum finds what the sum of the larger products loses.
    """
    (a, a_rest), (b, b_rest) = halves
    x, y, high, low, total = room
    np.copyto(x, vectors[0])
    np.copyto(y, vectors[1])
    if factor is not None:
        x *= factor
    np.multiply(y, b, low)
    if a == 1.0 and a_rest == 0.0:
        first = x
    else:
        first = np.multiply(x, a, high)
    np.add(first, low, total)
    y *= b_rest
    if first is high:
        x *= a_rest
        y += x
    rest = x if first is high else high
    np.subtract(total, first, rest)  # the part of the second product in the sum
    low -= rest
    np.subtract(total, rest, rest)
    np.subtract(first, rest, rest)
    low += rest
    low += y
    np.add(total, low, rest)
    finite = np.isfinite(rest)
    if not finite.all():
        np.copyto(rest, total, where=~np.isfinite(total))
    return rest
