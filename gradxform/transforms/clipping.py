"""Clip gradients by value, by norm, by global norm."""

from __future__ import annotations

from typing import Any

from gradxform.core import arguments
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.norm import clip_coefficient
from gradxform.core.state import between
from gradxform.core.transform import GradientTransformation, stateless
from gradxform.core.tree import Tree
from gradxform.transforms import peers


@factory
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
        raise TypeError(
            f"clip_value: give max_abs, or low and/or high; got max_abs={max_abs!r}, low={low!r}, high={high!r}"
        )
    if max_abs is not None:
        c = arguments.limit("clip_value", "max_abs", max_abs)

        def within(g: Tree) -> Tree:
            limit = between(g, c, 0.0, float("inf"))
            return g.clipped(-limit, limit)

        return stateless(within, stage="clip")
    low, high = arguments.bound("low", low), arguments.bound("high", high)
    if arguments.static(low) and arguments.static(high) and low > high:
        raise ValueError(f"clip_value: low must not be above high, got low={low!r}, high={high!r}; swap them")
    return stateless(lambda g: g.clipped(low, high), stage="clip")


@factory
def clip_norm(
    max_norm: Scalar,
    *,
    axes: int | tuple[int, ...] | None = None,
    ord: float | None = None,
    like: str | None = None,
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
    c = arguments.limit("clip_norm", "max_norm", max_norm)
    p, over = arguments.order("clip_norm", ord), arguments.axes("clip_norm", axes)
    if like is not None:
        peer = peers.find("clip_norm", peers.EACH, like, p, over)
        return stateless(lambda g: peers.clip_norm(g, peer, c, over), stage="clip")
    if over is not None:
        return stateless(lambda g: g.scaled_over(over, p, lambda n: clip_coefficient(n, c)), stage="clip")
    return stateless(lambda g: g.scaled(clip_coefficient(g.norms(p), c)), stage="clip")


@factory
def clip_global_norm(max_norm: Scalar, *, ord: float | None = None, like: str | None = None) -> GradientTransformation:
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

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype; dtypes may be mixed.

    Raises:
        TypeError: `max_norm` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `max_norm` is negative or NaN, `ord` is below 1, or `like` is unknown or lacks the order.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_global_norm(1.0)({"w": np.array([3.0]), "b": np.array([4.0])})
        {'w': array([0.6]), 'b': array([0.8])}
        >>> gx.clip_global_norm(1.0, like="torch")(np.array([3.0, 4.0]))  # divides by the norm plus 1e-6
        array([0.59999988, 0.79999984])

    References:
        Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013.
    """
    c, p = arguments.limit("clip_global_norm", "max_norm", max_norm), arguments.order("clip_global_norm", ord)
    if like is not None:
        peer = peers.find("clip_global_norm", peers.TOGETHER, like, p)
        return stateless(lambda g: peers.clip_global_norm(g, peer, c), stage="clip")
    return stateless(lambda g: g.scaled(clip_coefficient(g.global_norm(p), c)), stage="clip")


@factory
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
    c = arguments.limit("clip_rms", "max_rms", max_rms)
    return stateless(lambda g: g.scaled(clip_coefficient(g.rms(), c)), stage="clip")


@factory
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
    c = arguments.limit("clip_average_norm", "max_norm", max_norm)
    return stateless(lambda g: g.scaled(clip_coefficient(g.average_norms(), c)), stage="clip")
