"""Combine several trees of gradients: of several tasks, or of parts of a batch."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core import arguments
from gradxform.core.transform import unconverted
from gradxform.functions.several import products, several, weighted
from gradxform.numerics import Array, formulas
from gradxform.numerics import random as threefry


@unconverted
def mean(trees: Any) -> Any:
    r"""Average several trees of gradients.

    .. math:: g_i = \tfrac{1}{k} \sum_k g_i^{(k)}

    None counts as zero.

    Args:
        trees: List of trees of equal structure and real floating dtype.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The argument is one tree instead of a list, or a gradient is complex or integer; the message gives
            its path.
        ValueError: There are no trees, or keys differ from the first tree's; the message gives the first
            different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.mean([{"w": np.array([1.0])}, {"w": np.array([2.0])}])
        {'w': array([1.5])}

    References:
        Chen et al., Revisiting distributed synchronous SGD, 2016.
    """
    found = several("mean", trees)
    return weighted(found, [1.0 / found.number] * found.number)


@unconverted
def sum(trees: Any) -> Any:
    r"""Add up several trees of gradients, such as those of several losses.

    .. math:: g_i = \sum_k g_i^{(k)}

    None counts as zero. Sums are float32 (float64 for float64 gradients) and rounded once.

    Args:
        trees: List of trees of equal structure and real floating dtype.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError, ValueError: As for `mean`.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.sum([{"w": np.array([1.0])}, {"w": np.array([2.0])}])
        {'w': array([3.])}

    References:
        The sum of losses has the sum of the gradients.
    """
    found = several("sum", trees)
    return weighted(found, [1.0] * found.number)


@unconverted
def pcgrad(trees: Any, seed: Any) -> Any:
    r"""Sum several tasks' gradients, after projecting out conflicts between tasks.

    .. math:: g^{(i)} \leftarrow g^{(i)} - \frac{g^{(i)} \cdot g^{(j)}}{\lVert g^{(j)} \rVert^2} g^{(j)}
        \text{ for each } j \text{ with } g^{(i)} \cdot g^{(j)} < 0, \quad g = \sum_i g^{(i)}

    For each task, the seed draws the order of the other tasks, equally in every framework. The gradients are read for
    the inner product of each pair, and once more for the sum.

    Args:
        trees: List of trees of equal structure and real floating dtype, one per task.
        seed: An int, or a 0-d integer array of the framework, such as the step.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The first argument is one tree instead of a list, `seed` is not an int, or a gradient is complex or
            integer.
        ValueError: There are no trees, or keys differ from the first tree's; the message gives the first
            different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.pcgrad([[np.array([1.0, 0.0])], [np.array([-1.0, 1.0])]], seed=0)
        [array([0.5, 1.5])]

    References:
        Yu, Kumar, Gupta, Levine, Hausman and Finn, Gradient surgery for multi-task learning, 2020.
    """
    found = several("pcgrad", trees)
    words = _seed(found.backend, seed)
    return weighted(found, found.backend.compute(_weights, *words, *products("pcgrad", found), count=found.number))


def _seed(backend: Backend, seed: Any) -> tuple[Any, Any]:
    """Split a seed into two 32-bit words, as numbers."""
    if (
        isinstance(seed, (bool, float, str))
        or len(getattr(seed, "shape", ()))
        or not (isinstance(seed, int) or lookup.owner(seed) is not None)
    ):
        kind = type(seed).__name__
        raise TypeError(f"pcgrad: seed must be an int or a 0-d integer array, got {seed!r} of type {kind}")
    if isinstance(seed, np.ndarray) and seed.ndim == 0 and seed.dtype.kind in "iu":
        seed = int(seed)
    if isinstance(seed, (int, np.integer)):
        high, low = arguments.seed("pcgrad", seed)
        return float(high), float(low)
    high = backend.compute(_high_word, seed)
    return high, backend.compute(_low_word, seed, high)


def _high_word(xp: Any, seed: Array) -> Array:
    return xp.floor(seed / 2.0**32)


def _low_word(xp: Any, seed: Array, high: Array) -> Array:
    return seed - high * 2.0**32


def _weights(xp: Any, high: Array, low: Array, *products: Array, count: int) -> Array:
    """Weight of each task's gradient in the sum, from the inner products alone: no gradient is read again."""
    upper = iter(products)
    known = {(i, j): next(upper) for i in range(count) for j in range(i, count)}
    rows = [[known[min(i, j), max(i, j)] for j in range(count)] for i in range(count)]
    total, draws = [0.0] * count, _draws(xp, (xp.int32(high), xp.int32(low)), count)
    for i in range(count):
        shares: list[Any] = [xp.where(high <= high, 1.0 if k == i else 0.0, 0.0) for k in range(count)]
        for chosen in _order(xp, draws[i], i, count):
            dot: Any = 0.0
            size: Any = 0.0
            for j in range(count):
                own = shares[0] * rows[0][j]
                for k in range(1, count):
                    own = own + shares[k] * rows[k][j]
                dot = dot + xp.where(chosen[j], own, 0.0)
                size = size + xp.where(chosen[j], rows[j][j], 0.0)
            against = (dot < 0.0) & (size > 0.0)
            part = xp.where(against, dot, 0.0) / xp.where(against, size, 1.0)
            shares = [shares[k] - xp.where(chosen[k], part, 0.0) for k in range(count)]
        total = [total[k] + shares[k] for k in range(count)]
    return xp.stack(total)


def _draws(xp: Any, key: tuple[Any, Any], count: int) -> list[list[Any]]:
    """Draw a random word for each two tasks."""
    place = xp.arange(count * count)
    row = xp.floor((place + 0.5) / float(count))
    words = threefry.block(xp, *key, xp.int32(row), xp.int32(place - row * float(count)))[0]
    return [[xp.take(words, i * count + j) for j in range(count)] for i in range(count)]


def _order(xp: Any, draws: list[Any], i: int, count: int) -> list[list[Any]]:
    """For each position in a task's random order, whether each task is there."""
    others = [j for j in range(count) if j != i]
    places = {
        j: functools.reduce(
            operator.add,
            (xp.where(draws[k] <= draws[j] if k < j else draws[k] < draws[j], 1.0, 0.0) for k in others if k != j),
            xp.where(draws[j] <= draws[j], 0.0, 0.0),  # for two tasks, there is nothing to add
        )
        for j in others
    }
    return [
        [formulas.equal(places[j], float(rank)) if j != i else draws[0] < draws[0] for j in range(count)]
        for rank in range(count - 1)
    ]
