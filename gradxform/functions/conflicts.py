"""Combine the gradients of conflicting tasks by a quadratic program in their inner products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradxform.core import arguments
from gradxform.core.arguments import Scalar
from gradxform.core.transform import unconverted
from gradxform.functions.several import Several, products, several, weighted
from gradxform.numerics import subsets


@unconverted
def mgda(trees: Any) -> Any:
    r"""Return the shortest vector in the convex hull of several tasks' gradients.

    .. math:: g = \sum_k w_k g^{(k)}, \quad
        w = \arg\min_{w \ge 0,\, \sum_k w_k = 1} \lVert \sum_k w_k g^{(k)} \rVert^2

    A step along its negative increases no task's loss: its product with each gradient is at least its squared norm. It
    is zero at a Pareto-stationary point.

    The weights are computed in float64 from the inner products of all pairs, without iterations and without reading a
    value. A tree whose leaves are all None, and None in a tree, count as zero. A NaN or an infinity anywhere turns
    everything into NaN. A gradient 1e150 times smaller than the largest counts as zero.

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
    return _combined(_few("mgda", trees), "mgda", subsets.shortest)


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
    return _combined(_few("cagrad", trees), "cagrad", subsets.averse, radius)


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
    return _combined(_few("upgrad", trees), "upgrad", subsets.projected)


def _few(name: str, trees: Any) -> Several:
    found = several(name, trees)
    if found.number > subsets.MOST:
        raise ValueError(
            f"{name}: expected at most {subsets.MOST} trees, got {found.number}: time and memory double with each; add "
            "up the gradients of related tasks first, or write pcgrad(trees, seed)"
        )
    return found


def _combined(trees: Several, name: str, program: Callable[..., Any], *numbers: Any) -> Any:
    """Return the weighted sum whose weights a program finds from the inner products."""
    weights = trees.backend.compute(program, *numbers, *products(name, trees), count=trees.number)
    return weighted(trees, weights)
