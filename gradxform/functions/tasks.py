"""Combine several trees of gradients: of several tasks, or of parts of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend import lookup
from gradxform.backend.protocol import Backend, pairs, places_of
from gradxform.core import align, arguments
from gradxform.core.arguments import Scalar
from gradxform.core.leaves import REAL, put
from gradxform.core.transform import unconverted
from gradxform.numerics import Array, dtype_name, elementwise, formulas, subsets
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
    return _combined("pcgrad", found, _weights, *_seed(found.backend, seed))


@unconverted
def mgda(trees: Any) -> Any:
    r"""Return the shortest vector in the convex hull of several tasks' gradients.

    .. math:: g = \sum_k w_k g^{(k)}, \quad
        w = \arg\min_{w \ge 0,\, \sum_k w_k = 1} \lVert \sum_k w_k g^{(k)} \rVert^2

    A step along its negative increases no task's loss: its product with each gradient is at least its squared norm. It
    is zero at a Pareto-stationary point.

    The weights are computed in float64 from the inner products of all pairs, without iterations and without reading a
    value. A tree whose leaves are all None, and None in a tree, count as zero. A NaN or an infinity anywhere turns
    everything into NaN. A gradient 1e150 times smaller than the largest may count as zero.

    Args:
        trees: List of at most ten trees of equal structure and real floating dtype, one per task.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The argument is one tree instead of a list, or a gradient is complex or integer; the message gives
            its path.
        ValueError: There are no trees, or more than ten, or keys differ from the first tree's; the
            message gives the first different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.mgda([[np.array([1.0, 0.0])], [np.array([-1.0, 2.0])]])
        [array([0.5, 0.5])]

    References:
        Désidéri, Multiple-gradient descent algorithm (MGDA) for multiobjective optimization, 2012; Sener and Koltun,
        Multi-task learning as multi-objective optimization, 2018.
    """
    return _by_program("mgda", trees, subsets.shortest)


@unconverted
def cagrad(trees: Any, c: Scalar = 0.5) -> Any:
    r"""Return the vector near the mean of several tasks' gradients that helps the worst task most.

    .. math:: g = \arg\max_{d} \min_k \, g^{(k)} \cdot d
        \quad \text{for} \quad \lVert d - \bar{g} \rVert \le c \, \lVert \bar{g} \rVert, \quad
        \bar{g} = \tfrac{1}{K} \sum_k g^{(k)}

    With c = 0 this is the mean. With larger c it moves towards `mgda`. Where no direction helps all tasks, and several
    directions harm none, it is the one closest to the mean. The weights are computed as in `mgda`. The result is
    not divided by 1 + c².

    Args:
        trees: List of at most ten trees of equal structure and real floating dtype, one per task.
        c: Radius of the search, in units of the mean's norm: a number or a 0-d array of at least 0. The authors'
            proof of convergence needs c < 1.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The first argument is one tree instead of a list, `c` is not a number, or a gradient is complex or
            integer; the message gives its path.
        ValueError: `c` is negative, NaN or infinite, there are no trees, or more than ten, or keys differ
            from the first tree's; the message gives the first different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.cagrad([[np.array([1.0, 0.0])], [np.array([-1.0, 1.0])]])
        [array([0.25, 0.5 ])]

    References:
        Liu, Liu, Jin, Stone and Liu, Conflict-averse gradient descent for multi-task learning, 2021.
    """
    radius = arguments.limit("cagrad", "c", c)
    if radius == float("inf") and arguments.static(radius):
        raise ValueError(f"cagrad: c must be finite, got {c!r}; write mgda(trees) for the direction that it approaches")
    return _by_program("cagrad", trees, subsets.averse, radius)


@unconverted
def upgrad(trees: Any) -> Any:
    r"""Average several tasks' gradients, each projected onto the directions that conflict with no task.

    .. math:: g = \tfrac{1}{K} \sum_k \pi(g^{(k)}), \quad
        \pi(x) = \arg\min_{y} \lVert y - x \rVert \text{ for } g^{(j)} \cdot y \ge 0 \text{ for each } j

    Its product with each gradient is at least zero. Without conflicts it is the mean. Unlike `pcgrad`, it depends on no
    order of the tasks and draws no numbers. The weights are computed as in `mgda`, without TorchJD's ``reg_eps`` and
    ``norm_eps``.

    Args:
        trees: List of at most ten trees of equal structure and real floating dtype, one per task.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        TypeError: The argument is one tree instead of a list, or a gradient is complex or integer; the message gives
            its path.
        ValueError: There are no trees, or more than ten, or keys differ from the first tree's; the
            message gives the first different path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.upgrad([[np.array([1.0, 0.0])], [np.array([-1.0, 1.0])]])
        [array([0.25, 0.75])]

    References:
        Quinton and Rey, Jacobian descent for multi-objective optimization, 2024.
    """
    return _by_program("upgrad", trees, subsets.projected)


def _by_program(name: str, trees: Any, program: Callable[..., Any], *numbers: Any) -> Any:
    """Return the weighted sum whose weights a quadratic program finds."""
    found = several(name, trees)
    if found.number > subsets.MOST:
        advice = "add up the gradients of related tasks first, or write pcgrad(trees, seed)"
        most = f"expected at most {subsets.MOST} trees, got {found.number}: time and memory double with each"
        raise ValueError(f"{name}: {most}; {advice}")
    return _combined(name, found, program, *numbers)


def _combined(name: str, trees: Several, formula: Callable[..., Any], *numbers: Any) -> Any:
    """Return the weighted sum whose weights a formula computes from the inner products."""
    compute = trees.backend.compute
    found = compute(formula, *numbers, *products(name, trees), count=trees.number)
    return weighted(trees, [compute(formulas.take, found, index=rank) for rank in range(trees.number)])


def _seed(backend: Backend, seed: Any) -> tuple[Any, Any]:
    """Split a seed into two 32-bit words, as numbers."""
    whole = isinstance(seed, int) or (lookup.owner(seed) is not None and "int" in dtype_name(seed))
    if not whole or isinstance(seed, bool) or len(getattr(seed, "shape", ())):
        kind = type(seed).__name__
        raise TypeError(f"pcgrad: seed must be an int or a 0-d integer array, got {seed!r} of type {kind}")
    if isinstance(seed, (int, np.integer, np.ndarray)):
        high, low = arguments.seed("pcgrad", int(seed))
        return float(high), float(low)
    return backend.compute(_words, seed)


def _words(xp: Any, seed: Array) -> tuple[Array, Array]:
    """Split a seed into its high and low 32 bits."""
    high = xp.floor(seed / 2.0**32)
    return high, seed - high * 2.0**32


def _weights(xp: Any, high: Array, low: Array, *products: Array, count: int) -> Array:
    """Weight of each task's gradient in the sum, from the inner products alone: no gradient is read again."""
    gram, tasks = subsets.gram_of(xp, products, count), xp.arange(count)
    first = tasks[:, None] < tasks[None, :]
    others = first | (tasks[:, None] > tasks[None, :])
    squares = xp.sum(xp.where(others, 0.0, gram), axis=-1)
    draws = _draws(xp, (xp.int32(high), xp.int32(low)), count)
    one, two = draws[:, :, None], draws[:, None, :]
    before = others[:, :, None] & ((one < two) | ((one <= two) & first))
    place = xp.sum(xp.where(before, 1.0, 0.0), axis=1)  # of each task, among the others in each task's random order
    shares = xp.where(others, 0.0, 1.0)
    for rank in range(count - 1):
        there = others & formulas.equal(xp, place, float(rank))
        dot = xp.sum(xp.where(there, xp.sum(gram * shares[:, None, :], axis=-1), 0.0), axis=-1)
        size = xp.sum(xp.where(there, squares, 0.0), axis=-1)
        against = (dot < 0.0) & (size > 0.0)
        part = xp.where(against, dot, 0.0) / xp.where(against, size, 1.0)
        shares = shares - xp.where(there, part[:, None], 0.0)
    return xp.sum(shares, axis=0)


def _draws(xp: Any, key: tuple[Any, Any], count: int) -> Any:
    """Draw a random word for each two tasks."""
    place = xp.arange(count * count)
    row = xp.floor((place + 0.5) / float(count))
    words = threefry.block(xp, *key, xp.int32(row), xp.int32(place - row * float(count)))[0]
    return xp.reshape(words, (count, count))


# --- several trees, read as one list of columns ----------------------------------------------------------------------


class Several(NamedTuple):
    """Trees of one structure; for each leaf, the arrays of the trees that have it."""

    backend: Backend
    structure: Any
    number: int
    """How many trees there are."""
    rows: list[dict[int, Array]]
    """For each leaf, the array of each tree that has it; None counts as zero."""
    groups: dict[tuple[tuple[int, ...], bool], list[int]]
    """The positions of the leaves that the same trees have, float64 leaves apart."""


def several(name: str, trees: Any) -> Several:
    """Flatten a list of trees.

    Raises:
        TypeError: The argument is one tree, or not a list of trees.
        ValueError: There are no trees, or keys, shapes or dtypes differ; the message gives the first
            different path.
    """
    if not isinstance(trees, (list, tuple)) or hasattr(trees, "_fields"):
        kind = type(trees).__name__
        raise TypeError(f"{name}: expected a list of trees, one per task, got a {kind}; write {name}([first, second])")
    views = [align.gradients_view(name, tree) for tree in trees]
    lead, first = next(((rank, view) for rank, view in enumerate(views) if view is not None), (0, None))
    if first is None:
        raise ValueError(f"{name}: expected a list of trees with gradients, found none in {trees!r:.80}")
    backend = first.backend
    rows: list[dict[int, Array]] = [{} for _ in first.source.slots]
    for rank, (tree, view) in enumerate(zip(trees, views, strict=True)):
        if view is not None and view.backend is not backend:
            both = f"tree {lead} has arrays of {backend.title}, tree {rank} of {view.backend.title}"
            raise ValueError(f"{name}: {both}; convert one")
        names = f"{name}: tree {lead}", f"{name}: tree {rank}"
        order = align.aligned(first, tree, names, "Give each task the gradients of the same parameters").order
        whole = None if view is None else view.dense(integers=True)
        for given, leaf in () if whole is None else zip(whole.source.kept, whole.leaves, strict=True):
            slot = given if order is None else order.index(given)
            kind, shape = backend.dtype(leaf), backend.shape(leaf)
            if kind not in REAL:
                what = f"{name}: the gradient at {first.source.find_paths()[slot]!r} of tree {rank} has dtype {kind}"
                raise TypeError(f"{what}; tasks have real floating-point gradients: cast it, or put None there in all")
            rows[slot][rank] = leaf
            other = next(iter(rows[slot].values()))
            kinds, shapes = (backend.dtype(other), kind), (backend.shape(other), shape)
            if kinds[0] != kind or not align.may_agree(*shapes):
                what = f"{name}: the gradients at {first.source.find_paths()[slot]!r} differ in shape or dtype"
                raise ValueError(f"{what}: {kinds[0]} {shapes[0]}, {kind} {shape}")
    keys = [(tuple(row), any(backend.dtype(leaf) == "float64" for leaf in row.values())) for row in rows]
    groups = {key: places for key, places in places_of(keys).items() if key[0]}
    return Several(backend, first.source.structure, len(trees), rows, groups)


def weighted(trees: Several, weights: Sequence[Any]) -> Any:
    """Return the sum of the trees times numbers."""
    out: list[Any] = [None] * len(trees.rows)
    for (owners, _), places in trees.groups.items():
        columns = [[trees.rows[i][rank] for i in places] for rank in owners]
        made = trees.backend.elementwise(elementwise.weighted, columns, [weights[rank] for rank in owners])
        out = put(out, places, trees.backend.cast(made, columns[0]))
    return trees.backend.unflatten(trees.structure, out)


def products(name: str, trees: Several) -> list[Any]:
    """Return the inner products of trees i <= j, by rows, as numbers; in a common unit if there are float64 leaves.

    Each leaf is read once for each product, and beside float64 leaves also for its largest element.
    """
    backend, groups = trees.backend, trees.groups
    inverse = None
    if any(is_wide for _, is_wide in groups):
        every = [leaf for row in trees.rows for leaf in row.values()]
        inverse = backend.compute(subsets.inverse_unit, backend.norms(every, math.inf))
    found: dict[tuple[int, int], list[Any]] = {pair: [] for pair in pairs(range(trees.number))}
    for (owners, is_wide), places in groups.items():
        columns = [list(trees.rows[i].values()) for i in places]
        if any(backend.shape(column[0]) is None for column in columns):
            raise ValueError(f"{name}: the rank of a gradient is unknown in the graph; set its static shape")
        parts = backend.inner_products(columns, [inverse] * len(owners) if is_wide else None)
        if inverse is not None and not is_wide:
            parts = [backend.compute(_in_unit, part, inverse) for part in parts]
        for pair, part in zip(pairs(owners), parts, strict=True):
            found[pair].append(part)
    totals = [parts if len(parts) < 2 else [backend.compute(subsets.total, *parts)] for parts in found.values()]
    return [total[0] if total else 0.0 for total in totals]


def _in_unit(xp: Any, product: Array, inverse: Array) -> Array:
    return product * inverse * inverse
