"""Combine several trees of gradients: of several tasks, or of parts of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend
from gradxform.core import arguments, elements, fitting
from gradxform.core.autograph import unconverted
from gradxform.numerics import Array, formulas
from gradxform.numerics import random as threefry


class _Several(NamedTuple):
    """Trees of one structure; for each leaf, the arrays of the trees that have it."""

    backend: Backend
    structure: Any
    columns: list[list[Array]]
    """For each leaf, one array per tree that has it; None counts as zero."""
    owners: list[list[int]]


def _several(name: str, trees: Any) -> _Several:
    """Flatten a list of trees.

    Raises:
        TypeError: The argument is one tree, or not a list of trees.
        ValueError: There are no trees, or keys, containers, shapes or dtypes differ; the message gives the first
            different path.
    """
    if not isinstance(trees, (list, tuple)) or hasattr(trees, "_fields"):
        raise TypeError(
            f"{name}: expected a list of trees, one per task, got one tree (a {type(trees).__name__}); write "
            f"{name}([first, second, ...])"
        )
    views = [fitting.gradients_view(name, tree) for tree in trees]
    found = [(rank, view) for rank, view in enumerate(views) if view is not None]
    if not found:
        raise ValueError(f"{name}: expected a list of trees with gradients, found none in {trees!r:.80}")
    lead, first = found[0]
    columns: list[list[Array]] = [[] for _ in first.source.slots]
    owners: list[list[int]] = [[] for _ in first.source.slots]
    for _, view in found:
        view.check_inexact()
        elements.check_real(view, name, "gradients are averaged as real numbers")
    for rank, tree in enumerate(trees):
        view = views[rank] or first
        if view.backend is not first.backend:
            raise ValueError(
                f"{name}: tree {lead} has arrays of {first.backend.title}, tree {rank} of "
                f"{view.backend.title}; convert one"
            )
        names = f"{name}: tree {lead}", f"{name}: tree {rank}"
        order = fitting.aligned(first, tree, names, "Give each task the gradients of the same parameters").order
        if views[rank] is None:
            continue
        whole = view.dense()
        for given, leaf in zip(whole.source.kept, whole.leaves, strict=True):
            slot = given if order is None else order.index(given)
            if columns[slot] and not _alike(view.backend, leaf, columns[slot][0]):
                path = whole.source.find_paths()[given]
                both = ", ".join(f"{view.backend.dtype(g)} {view.backend.shape(g)}" for g in (columns[slot][0], leaf))
                raise ValueError(f"{name}: the gradients at {path!r} differ in shape or dtype: {both}")
            columns[slot].append(leaf)
            owners[slot].append(rank)
    return _Several(first.backend, first.source.structure, columns, owners)


def _alike(backend: Backend, leaf: Array, other: Array) -> bool:
    shapes = backend.shape(leaf), backend.shape(other)
    return (None in shapes or shapes[0] == shapes[1]) and backend.dtype(leaf) == backend.dtype(other)


def _merged(trees: _Several, formula: Callable[..., Any], numbers: Callable[[list[int]], Sequence[Any]]) -> Any:
    """Tree of a formula over several trees' leaves, rounded once."""
    out: list[Any] = []
    for column, owners in zip(trees.columns, trees.owners, strict=True):
        if not column:
            out.append(None)
            continue
        given = [[leaf] for leaf in column]
        (new,) = trees.backend.elementwise(formula, given, numbers(owners), count=len(column))
        out.append(
            new if trees.backend.dtype(new) == trees.backend.dtype(column[0]) else trees.backend.cast(new, column[0])
        )
    return trees.backend.unflatten(trees.structure, out)


@unconverted
def mean(trees: Any) -> Any:
    r"""Average several trees of gradients.

    .. math:: g_i = \tfrac{1}{k} \sum_k g_i^{(k)}

    Each mean is rounded once. None counts as zero.

    Args:
        trees: List of trees of equal structure and real floating dtype.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The argument is one tree instead of a list, or a gradient is complex or integer; the message gives
            its path.
        ValueError: There are no trees, or keys or containers differ from the first tree's; the message gives the first
            different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.mean([{"w": np.array([1.0])}, {"w": np.array([2.0])}])
        {'w': array([1.5])}

    References:
        Chen et al., Revisiting distributed synchronous SGD, 2016.
    """
    found = _several("mean", trees)
    return _merged(found, _average, lambda _: [float(len(trees))])


def _average(xp: Any, *given: Array, count: int) -> Array:
    total = given[0]
    for other in given[1:count]:
        total = total + other
    return total / given[count]


@unconverted
def pcgrad(trees: Any, seed: Any) -> Any:
    r"""Sum several tasks' gradients, after projecting out conflicts between tasks.

    .. math:: g^{(i)} \leftarrow g^{(i)} - \frac{g^{(i)} \cdot g^{(j)}}{\lVert g^{(j)} \rVert^2} g^{(j)}
        \text{ for each } j \text{ with } g^{(i)} \cdot g^{(j)} < 0, \quad g = \sum_i g^{(i)}

    For each task, the seed draws the order of the other tasks, equally in every framework. The gradients are read for
    the inner product of each pair, and once more for the sum, which is rounded once.

    Args:
        trees: List of trees of equal structure and real floating dtype, one per task.
        seed: An int, or a 0-d integer array of the framework, such as the step.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The first argument is one tree instead of a list, `seed` is not an int, or a gradient is complex or
            integer.
        ValueError: There are no trees, or keys or containers differ from the first tree's; the message gives the first
            different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.pcgrad([[np.array([1.0, 0.0])], [np.array([-1.0, 1.0])]], seed=0)
        [array([0.5, 1.5])]

    References:
        Yu, Kumar, Gupta, Levine, Hausman and Finn, Gradient surgery for multi-task learning, 2020.
    """
    found = _several("pcgrad", trees)
    words = _seed(found.backend, seed)
    products = [[_product(found, i, j) for j in range(len(trees))] for i in range(len(trees))]
    rows = [number for row in products for number in row]
    weights = found.backend.compute(_weights, *words, *rows, count=len(trees))
    numbers = [found.backend.compute(formulas.take, weights, index=i) for i in range(len(trees))]
    return _merged(found, _combined, lambda owners: [numbers[rank] for rank in owners])


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


def _product(trees: _Several, i: int, j: int) -> Any:
    """Inner product of two trees, as a number."""
    total: Any = 0.0
    for column, owners in zip(trees.columns, trees.owners, strict=True):
        if i in owners and j in owners:
            first, second = column[owners.index(i)], column[owners.index(j)]
            shape = trees.backend.shape(first)
            if shape is None:
                raise ValueError("pcgrad: the rank of a gradient is unknown in the graph; set its static shape")
            axes = tuple(range(len(shape)))
            part = trees.backend.sum_over(first, axes, second)
            total = trees.backend.compute(_plus, total, _number(trees.backend, part))
    return total


def _number(backend: Backend, x: Any) -> Any:
    """An array of one element, as a number."""
    return x.reshape(())[()] if isinstance(x, np.ndarray) else backend.compute(_as_number, x)


def _as_number(xp: Any, x: Array) -> Array:
    return xp.reshape(x, ())


def _plus(xp: Any, first: Array, second: Array) -> Array:
    return first + second


def _weights(xp: Any, high: Array, low: Array, *products: Array, count: int) -> Array:
    """Weight of each task's gradient in the sum, from the inner products alone: no gradient is read again."""
    rows = [products[i * count : (i + 1) * count] for i in range(count)]
    total, key = [0.0] * count, (xp.int32(high), xp.int32(low))
    for i in range(count):
        shares: list[Any] = [xp.where(high <= high, 1.0 if k == i else 0.0, 0.0) for k in range(count)]
        for chosen in _order(getattr(xp, "xp", xp), key, i, count):
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


def _order(xp: Any, key: tuple[Any, Any], i: int, count: int) -> list[list[Any]]:
    """For each position in a task's random order, whether each task is there."""
    draws = [threefry.block(xp, *key, xp.int32(i), xp.int32(j))[0] for j in range(count)]
    others = [j for j in range(count) if j != i]
    places = {
        j: sum(
            (xp.where(draws[k] <= draws[j] if k < j else draws[k] < draws[j], 1.0, 0.0) for k in others if k != j),
            xp.where(draws[j] <= draws[j], 0.0, 0.0),  # the sum of an empty generator, for two tasks
        )
        for j in others
    }
    return [
        [formulas.equal(places[j], float(rank)) if j != i else draws[0] < draws[0] for j in range(count)]
        for rank in range(count - 1)
    ]


def _combined(xp: Any, *given: Array, count: int) -> Array:
    total = given[count] * given[0]
    for weight, leaf in zip(given[count + 1 :], given[1:count], strict=True):
        total = total + weight * leaf
    return total
