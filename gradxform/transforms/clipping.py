"""Transforms that limit gradients: by value, by norm, by global norm."""

from __future__ import annotations

from typing import Any

from gradxform.core import arguments
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.flat import Flat, clip_coefficient, interval
from gradxform.core.transformation import GradientTransformation, stateless
from gradxform.transforms import like as peers
from gradxform.transforms.bounds import Ordered


@factory
def clip_value(
    max_abs: Scalar | None = None, *, low: Scalar | Any = None, high: Scalar | Any = None
) -> GradientTransformation:
    r"""Limit each element of each gradient to ``[-max_abs, max_abs]``, or to ``[low, high]``.

    Each element g becomes ``min(max(g, low), high)``:

    .. math:: g_i \leftarrow \min(\max(g_i, \text{low}), \text{high})

    NaN stays NaN; an infinite element goes to its bound. Bounds are cast to the gradient's dtype. Bounds that do not
    hold zero between them make a sparse gradient dense.

    Args:
        max_abs: the largest absolute value, in the gradient's units; a number or a 0-d array.
        low: the lower bound instead; a number, or an array that broadcasts to each gradient's shape.
        high: the upper bound; either of the two may be left out.

    Returns:
        A stateless transformation of gradients of any shape and real floating dtype.

    Raises:
        TypeError: both forms or none are given; on use, a complex or an integer gradient, named by its path.
        ValueError: a negative or NaN bound, ``low > high``; on use, a bound that would broadcast a gradient larger, and
            ``low > high`` of 0-d arrays in eager code, on the CPU. Compiled code compares no arrays: there, and where
            arrays of more axes are in reverse, the upper bound wins.

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
        return stateless(lambda g: g.clipped(*interval(g, c)))
    low, high = arguments.bound("low", low), arguments.bound("high", high)
    if arguments.static(low) and arguments.static(high) and low > high:
        raise ValueError(f"clip_value: low must not be above high, got low={low!r}, high={high!r}")
    bounds = Ordered(low, high)

    def clipped(g: Flat) -> Flat:
        bounds.check(g)
        return g.clipped(low, high)

    return stateless(clipped)


@factory
def clip_norm(
    max_norm: Scalar,
    *,
    axes: int | tuple[int, ...] | None = None,
    ord: float | None = None,
    like: str | None = None,
) -> GradientTransformation:
    r"""Limit the norm of each gradient, by itself, to ``max_norm``.

    Each gradient g becomes ``g * min(1, c / norm(g))``:

    .. math:: g_i \leftarrow g_i \min(1, c / \lVert g_i \rVert)

    A gradient within the limit comes back bit by bit. One with a NaN or an infinite element becomes NaN. With `like`, a
    library's own formula holds instead, its faults included.

    Args:
        max_norm: the limit c, in the gradient's units; a number or a 0-d array. Infinity is no limit, zero gives zeros.
        axes: the axes that the norm is taken over, as in ``tf.clip_by_norm``; each remaining slice is limited by
            itself. By default the norm is taken over the whole gradient.
        ord: the order of the norm, at least 1, ``float("inf")`` included; 2 if left out.
        like: clip as another library does, formula by formula: "tensorflow" (``tf.clip_by_norm``, the only one that
            takes `axes`), "keras" (``clipnorm``), "torch" (``clip_grad_norm_`` of one gradient, the only one that takes
            `ord`), "paddle" (``ClipGradByNorm``), "optax" and "mlx" (their clips of a global norm, of one gradient).

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: a limit that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN limit, an order below 1, an unknown library or one whose function has no such
            order or axes; on use, axes that a gradient does not have.

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
    c, p, over = (
        arguments.limit("clip_norm", "max_norm", max_norm),
        arguments.order("clip_norm", ord),
        arguments.axes("clip_norm", axes),
    )
    if like is not None:
        peer = arguments.peer("clip_norm", peers.EACH, like, p, over)
        return stateless(lambda g: peers.clip_norm(g, peer, c, over, p))
    if over is not None:
        return stateless(lambda g: g.scaled_over(over, p, lambda n: clip_coefficient(n, c)))
    return stateless(lambda g: g.scaled(clip_coefficient(g.norms(p), c)))


@factory
def clip_global_norm(max_norm: Scalar, *, ord: float | None = None, like: str | None = None) -> GradientTransformation:
    r"""Limit the norm of all gradients together to ``max_norm``.

    Each gradient g becomes ``g * min(1, c / n)``, where n is the norm of all of them:

    .. math:: g_i \leftarrow g_i \min(1, c / n), \quad n = \sqrt{\sum_i \lVert g_i \rVert^2}

    Gradients within the limit come back bit by bit. A NaN or an infinite element anywhere makes all of them NaN. With
    `like`, a library's own formula holds instead, its faults included.

    Args:
        max_norm: the limit c, in the gradients' units; a number or a 0-d array. Infinity is no limit, zero gives zeros.
        ord: the order of the norm, at least 1, ``float("inf")`` included; 2 if left out.
        like: clip as another library does, formula by formula: "tensorflow" (``tf.clip_by_global_norm``), "keras"
            (``global_clipnorm``), "optax" (``clip_by_global_norm``), "torch" (``clip_grad_norm_``, the only one that
            takes `ord`), "mlx" (``clip_grad_norm``) or "paddle" (``ClipGradByGlobalNorm``).

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype, several dtypes together
        included.

    Raises:
        TypeError: a limit that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN limit, an order below 1, an unknown library or one whose function has no such
            order.

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
        peer = arguments.peer("clip_global_norm", peers.TOGETHER, like, p, None)
        return stateless(lambda g: peers.clip_global_norm(g, peer, c, p))
    return stateless(lambda g: g.scaled(clip_coefficient(g.global_norm(p), c)))


@factory
def clip_rms(max_rms: Scalar) -> GradientTransformation:
    r"""Limit the root mean square of each gradient, by itself, to ``max_rms``.

    .. math:: g_i \leftarrow g_i \min(1, c / r_i), \quad r_i = \lVert g_i \rVert / \sqrt{d_i}

    with the number of elements d. A gradient within the limit comes back bit by bit; one with a NaN or an infinite
    element becomes NaN.

    Args:
        max_rms: the limit c, in the gradient's units; a number, a 0-d array or a schedule.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: a limit that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN limit.

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
    return stateless(lambda g: g.scaled(clip_coefficient(g.rms(), c)))


@factory
def clip_average_norm(max_norm: Scalar) -> GradientTransformation:
    r"""Limit the average norm of each gradient, which is its norm over its number of elements, to ``max_norm``.

    .. math:: g_i \leftarrow g_i \min(1, c / a_i), \quad a_i = \lVert g_i \rVert / d_i

    A gradient within the limit comes back bit by bit; one with a NaN or an infinite element becomes NaN.

    Args:
        max_norm: the limit c, in the gradient's units; a number, a 0-d array or a schedule.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: a limit that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN limit.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.clip_average_norm(1.0)([np.array([3.0, 4.0]), np.array([0.1])])
        [array([1.2, 1.6]), array([0.1])]

    Source:
        ``tf.compat.v1.clip_by_average_norm``.
    """
    c = arguments.limit("clip_average_norm", "max_norm", max_norm)
    return stateless(lambda g: g.scaled(clip_coefficient(g.average_norms(), c)))
