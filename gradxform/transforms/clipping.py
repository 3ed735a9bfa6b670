"""Clip gradients by value, by norm, by global norm, or by the norms of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradxform.core import align, arguments
from gradxform.core.arguments import Scalar, bound, limit
from gradxform.core.factory import factory
from gradxform.core.norm import Norm, clip_coefficient
from gradxform.core.state import between
from gradxform.core.transform import Context, GradientTransformation, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.transforms import peers, units


@factory(max_abs=limit, low=bound, high=bound)
def clip_value(
    max_abs: Scalar | None = None, *, low: Scalar | Any = None, high: Scalar | Any = None
) -> GradientTransformation:
    r"""Clip each element of each gradient to ``[-max_abs, max_abs]`` or ``[low, high]``.

    Each element g becomes ``min(max(g, low), high)``:

    .. math:: g_i \leftarrow \min(\max(g_i, \text{low}), \text{high})

    NaN stays NaN; an infinite element becomes its bound. Bounds are cast to the gradient's dtype. Bounds that exclude
    zero make a sparse gradient dense.

    Args:
        max_abs: Largest absolute value, in the gradient's units: a number, a 0-d array or a schedule.
        low: Lower bound, instead of `max_abs`: a number, a schedule, or an array that broadcasts to each gradient's
            shape. Default: unbounded.
        high: Upper bound, like `low`. Default: unbounded.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype.

    Raises:
        TypeError: `max_abs` is combined with `low` or `high`, or all are missing. On use: a gradient is complex or
            integer; the message gives its path.
        ValueError: A bound is NaN, `max_abs` is negative, or ``low > high`` for two numbers; arrays are not compared,
            and the upper bound wins. On use: a bound would enlarge a gradient by broadcasting.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_value(1.0)([np.array([-3.0, 0.5, np.inf])])
        [array([-1. ,  0.5,  1. ])]
        >>> gx.clip_value(low=0.0)([np.array([-3.0, 0.5])])
        [array([0. , 0.5])]

    References:
        Mikolov, Statistical language models based on neural networks, 2012.
    """
    if (max_abs is None) == (low is None and high is None):
        raise TypeError(f"clip_value: give max_abs, or low and/or high; got {max_abs=}, {low=}, {high=}")
    if max_abs is not None:

        def within(g: Tree) -> Tree:
            most = between(g, max_abs, 0.0, float("inf"))
            return g.clipped(-most, most)

        return stateless(within, stage="limit")
    if arguments.static(low) and arguments.static(high) and low > high:
        raise ValueError(f"clip_value: low must not be above high, got low={low!r}, high={high!r}; swap them")
    return stateless(lambda g: g.clipped(low, high), stage="limit")


@factory(max_norm=limit)
def clip_norm(
    max_norm: Scalar, *, axes: int | tuple[int, ...] | None = None, ord: float | None = None, like: str | None = None
) -> GradientTransformation:
    r"""Limit the 2-norm of each gradient to ``max_norm``.

    Each gradient g becomes ``g * min(1, max_norm / norm(g))``:

    .. math:: g_i \leftarrow g_i \min(1, c / \lVert g_i \rVert)

    A gradient within the limit keeps every bit. A gradient with a NaN or infinite element becomes NaN. With `like`,
    another library's formula applies instead, including its edge cases.

    Args:
        max_norm: Limit c, in the gradient's units: a number, a 0-d array or a schedule. Infinity means no limit; zero
            gives zeros.
        axes: Axes of the norm, as in ``tf.clip_by_norm``: each remaining slice is clipped by its own norm. Default:
            all.
        ord: Order of the norm: at least 1, or ``float("inf")``. Default: 2.
        like: Reproduce another library's rounding and edge cases: "tensorflow" (``tf.clip_by_norm``; the only one with
            `axes`), "keras" (``clipnorm``), "torch" (``clip_grad_norm_`` of one gradient; the only one with `ord`),
            "paddle" (``ClipGradByNorm``), "optax" or "mlx" (global-norm clips of one gradient).

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: `max_norm` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `max_norm` is negative or NaN, `ord` is below 1, or `like` is unknown or lacks the order or axes. On
            use: a gradient lacks one of the axes.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_norm(1.0)([np.array([3.0, 4.0]), np.array([0.1])])
        [array([0.6, 0.8]), array([0.1])]
        >>> gx.clip_norm(1.0, axes=1)(np.array([[3.0, 4.0], [0.3, 0.4]]))
        array([[0.6, 0.8],
               [0.3, 0.4]])

    References:
        Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013.
    """
    p, over = arguments.order("clip_norm", ord), arguments.axes("clip_norm", axes)
    if like is not None:
        peer = peers.find("clip_norm", peers.EACH, like, p, over)
        return stateless(lambda g: peers.clip_norm(g, peer, max_norm, over), stage="clip")
    if over is not None:

        def clipped(g: Tree) -> Tree:
            g.check_axes(over)
            return g.scaled_over([over] * len(g.chosen), p, lambda _, norm: clip_coefficient(norm, max_norm))

        return stateless(clipped, stage="clip")
    return stateless(lambda g: g.scaled(clip_coefficient(g.norms(p), max_norm)), stage="clip")


@factory(max_norm=limit, norm=limit)
def clip_global_norm(
    max_norm: Scalar, *, ord: float | None = None, like: str | None = None, norm: Scalar | None = None
) -> GradientTransformation:
    r"""Limit the joint 2-norm of all gradients to ``max_norm``.

    Each gradient g becomes ``g * min(1, max_norm / n)``, where n is the norm over all gradients:

    .. math:: g_i \leftarrow g_i \min(1, c / n), \quad n = \sqrt{\sum_i \lVert g_i \rVert^2}

    Gradients within the limit keep every bit. One NaN or infinite element makes all gradients NaN. With `like`, another
    library's formula applies instead, including its edge cases.

    Args:
        max_norm: Limit c, in the gradients' units: a number, a 0-d array or a schedule. Infinity means no limit; zero
            gives zeros.
        ord: Order of the norm: at least 1, or ``float("inf")``. Default: 2.
        like: Reproduce another library's rounding and edge cases: "tensorflow" (``tf.clip_by_global_norm``), "keras"
            (``global_clipnorm``), "optax" (``clip_by_global_norm``), "torch" (``clip_grad_norm_``; the only one with
            `ord`), "mlx" (``clip_grad_norm``) or "paddle" (``ClipGradByGlobalNorm``).
        norm: The norm n, if it is known: a number, a 0-d array or a schedule. For gradients that are clipped one by
            one, as in a backward pass, or whose rest is elsewhere. Zero clips nothing. Default: measured.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype; dtypes may be mixed.

    Raises:
        TypeError: `max_norm` or `norm` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `max_norm` or `norm` is negative or NaN, `ord` is below 1, `like` is unknown or lacks the order, or
            `norm` is given beside one of these two.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_global_norm(1.0)({"w": np.array([3.0]), "b": np.array([4.0])})
        {'w': array([0.6]), 'b': array([0.8])}
        >>> gx.clip_global_norm(1.0, like="torch")(np.array([3.0, 4.0]))  # divides by the norm plus 1e-6
        array([0.59999988, 0.79999984])
        >>> gx.clip_global_norm(1.0, norm=10.0)(np.array([3.0, 4.0]))
        array([0.3, 0.4])

    References:
        Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013;
        ``torch.nn.utils.clip_grads_with_norm_`` (`norm`).
    """
    p = arguments.order("clip_global_norm", ord)
    if norm is not None:
        if ord is not None or like is not None:
            raise ValueError("clip_global_norm: norm= is of any order; leave out ord and like")
        return stateless(lambda g: g.scaled(clip_coefficient(g.known_norm(norm), max_norm)), stage="limit")
    if like is not None:
        peer = peers.find("clip_global_norm", peers.TOGETHER, like, p)
        return stateless(lambda g: peers.clip_global_norm(g, peer, max_norm), stage="clip")
    return stateless(lambda g: g.scaled(clip_coefficient(g.global_norm(p), max_norm)), stage="clip")


@factory(max_rms=limit)
def clip_rms(max_rms: Scalar) -> GradientTransformation:
    r"""Limit the root mean square of each gradient to ``max_rms``.

    Each gradient g of d elements becomes ``g * min(1, max_rms / rms(g))``:

    .. math:: g_i \leftarrow g_i \min(1, c / r_i), \quad r_i = \lVert g_i \rVert / \sqrt{d_i}

    A gradient within the limit keeps every bit. A gradient with a NaN or infinite element becomes NaN.

    Args:
        max_rms: Limit c, in the gradient's units: a number, a 0-d array or a schedule.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: `max_rms` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `max_rms` is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_rms(1.0)([np.array([3.0, 4.0, 0.0, 0.0]), np.array([0.1])])
        [array([1.2, 1.6, 0. , 0. ]), array([0.1])]

    References:
        Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost, 2018;
        ``optax.clip_by_block_rms``.
    """
    return stateless(lambda g: g.scaled(clip_coefficient(g.rms(), max_rms)), stage="clip")


@factory(max_norm=limit)
def clip_average_norm(max_norm: Scalar) -> GradientTransformation:
    r"""Limit the average norm of each gradient (norm divided by number of elements) to ``max_norm``.

    Each gradient g of d elements becomes ``g * min(1, max_norm / (norm(g) / d))``:

    .. math:: g_i \leftarrow g_i \min(1, c / a_i), \quad a_i = \lVert g_i \rVert / d_i

    A gradient within the limit keeps every bit. A gradient with a NaN or infinite element becomes NaN.

    Args:
        max_norm: Limit c, in the gradient's units: a number, a 0-d array or a schedule.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: `max_norm` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `max_norm` is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_average_norm(1.0)([np.array([3.0, 4.0]), np.array([0.1])])
        [array([1.2, 1.6]), array([0.1])]

    References:
        ``tf.compat.v1.clip_by_average_norm``.
    """
    return stateless(lambda g: g.scaled(clip_coefficient(g.average_norms(), max_norm)), stage="clip")


@factory(clipping=limit, eps=limit)
def clip_adaptive(clipping: Scalar, *, eps: Scalar = 1e-3, axes: Any = None) -> GradientTransformation:
    r"""Limit the norm of each unit's gradient to a multiple of the norm of the unit's parameters.

    Each unit g with parameters p becomes ``g * min(1, clipping * max(norm(p), eps) / norm(g))``:

    .. math:: g_{iu} \leftarrow g_{iu} \min(1, \lambda \, s_{iu} / \lVert g_{iu} \rVert),
        \quad s_{iu} = \max(\lVert p_{iu} \rVert, \epsilon)

    A unit is one output of a kernel, with all its inputs. A gradient with fewer than two axes is one unit. A unit
    within its limit keeps every bit; a unit with a NaN or infinite element becomes NaN.

    Args:
        clipping: Multiple :math:`\lambda`, dimensionless: a number, a 0-d array or a schedule.
        eps: Smallest parameter norm, in the parameters' units, so that zero parameters can learn.
        axes: Input axes of each unit: "keras" (all but the last: Keras, Flax, Haiku), "torch" (all but the first), a
            tuple, a mapping from a path glob to a tuple, or a function of path and leaf. Required for gradients with
            two or more axes, since libraries disagree.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype. Its `update` needs the
        parameters.

    Raises:
        TypeError: `clipping` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `clipping` or `eps` is negative or NaN. On use: parameters are missing, or a gradient's axes are
            unknown.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_adaptive(0.1, axes="keras")
        >>> tx([np.array([[3.0, 0.03], [4.0, 0.04]])], params=[np.ones((2, 2)) / 2**0.5])
        [array([[0.06, 0.03],
               [0.08, 0.04]])]

    References:
        Brock, De, Smith and Simonyan, High-performance large-scale image recognition without normalization, 2021.
    """
    over = units.check("clip_adaptive", axes)

    def rule(g: Tree, context: Context) -> Tree:
        params = align.beside(g, context.params, "clip_adaptive", "parameters")
        found = units.axes("clip_adaptive", over, g)
        each = [found[i] for i in g.chosen]

        def factor(places: Sequence[int], norm: Norm) -> Array:
            sizes = g.backend.norms_over([params[p] for p in places], [each[p] for p in places], 2.0)
            allowed = g.backend.compute(_of_unit, sizes, clipping, between(g, eps, 0.0, math.inf))
            return clip_coefficient(norm, allowed)

        return g.scaled_over(each, 2.0, factor)

    return stateless(rule, needs=("params",), stage="clip")


def _of_unit(xp: Any, norm: Array, clipping: Array, eps: Array) -> Array:
    return clipping * xp.where(norm < eps, eps, norm)
