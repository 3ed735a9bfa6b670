"""Normalize gradients to one norm, sign or mean."""

from __future__ import annotations

import functools
import operator
from typing import Any

from gradxform.core import elements, extended
from gradxform.core.factory import factory
from gradxform.core.flat import Flat
from gradxform.core.transformation import GradientTransformation, stateless
from gradxform.numerics import Array, formulas
from gradxform.transforms import units


@factory
def normalize_norm() -> GradientTransformation:
    r"""Divide each gradient by its own norm.

    .. math:: g_i \leftarrow g_i / \lVert g_i \rVert

    A zero gradient stays zero. A gradient with a NaN or infinite element becomes NaN.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.normalize_norm()([np.array([3.0, 4.0]), np.array([0.1]), np.zeros(2)])
        [array([0.6, 0.8]), array([1.]), array([0., 0.])]

    References:
        You, Gitman and Ginsburg, Large batch training of convolutional networks, 2017.
    """
    return stateless(lambda g: g.scaled(g.backend.compute(formulas.inverse, g.norms().value)))


@factory
def normalize_global_norm() -> GradientTransformation:
    r"""Divide all gradients by their joint norm.

    .. math:: g_i \leftarrow g_i / n, \quad n = \sqrt{\sum_i \lVert g_i \rVert^2}

    If all gradients are zero, they stay zero. One NaN or infinite element makes all gradients NaN.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.normalize_global_norm()({"w": np.array([3.0]), "b": np.array([4.0])})
        {'w': array([0.6]), 'b': array([0.8])}

    References:
        Nesterov, Minimization methods for nonsmooth convex and quasiconvex functions, 1984;
        ``optax.normalize_by_update_norm`` (adds 1e-6 to the norm).
    """
    return stateless(lambda g: g.scaled(g.backend.compute(formulas.inverse, g.global_norm().value)))


@factory
def centralize(*, axes: Any = None) -> GradientTransformation:
    r"""Subtract from each gradient its mean over the inputs of each unit.

    Each gradient g becomes ``g - mean(g, axes)``:

    .. math:: g_i \leftarrow g_i - \operatorname{mean}_{\text{axes}}(g_i)

    Gradients with fewer than two axes are unchanged.

    Args:
        axes: Axes of the mean: "torch" (all but the first; PyTorch's outputs come first), "keras" (all but the last;
            Keras, Flax and Haiku), a tuple, a mapping from a path glob to a tuple, or a function of path and leaf.
            Default: all but the first, as in the paper and in optax.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype.

    Raises:
        TypeError: `axes` has an unknown form. On use: a gradient is complex or integer; the message gives its path.
        ValueError: On use: a gradient lacks one of the axes.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.centralize()([np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([5.0])])
        [array([[-1.,  1.],
               [-2.,  2.]]), array([5.])]

    References:
        Yong, Huang, Hua and Zhang, Gradient centralization: a new optimization technique for deep neural networks,
        2020.
    """
    over = units.check("centralize", "torch" if axes is None else axes)

    def centred(g: Flat) -> Flat:
        elements.check_real(g, "centralize", "the mean is taken of real numbers")
        found = units.axes("centralize", over, g)
        many = [i for i in g.chosen if _has_axes(g.backend.shape(g.leaves[i]))]
        some = g.focus([i in many for i in range(len(g.leaves))]).dense()
        if not some.chosen:
            return g
        leaves, own = [some.leaves[i] for i in some.chosen], [some.owned[i] for i in some.chosen]
        means = g.backend.means_over(leaves, [found[i] for i in some.chosen])
        if some.factor is None:
            return some.given(g.backend.less(leaves, means, own)).widen(g)
        columns = [leaves, means]
        for part in extended.factors(g.backend, some.factor):
            columns.append([g.backend.compute(formulas.take, part, index=i) for i in some.chosen])
        return some.given(g.backend.elementwise(_less_scaled, columns, ())).widen(g)

    return stateless(centred)


def _has_axes(shape: tuple[int | None, ...] | None) -> bool:
    return shape is None or len(shape) > 1


def _less_scaled(xp: Any, x: Array, mean: Array, *factors: Array) -> Array:
    return functools.reduce(operator.mul, factors, x - mean)  # zero for equal elements


@factory
def sign() -> GradientTransformation:
    r"""Replace each element by its sign.

    .. math:: g_i \leftarrow \operatorname{sign}(g_i)

    Zero and NaN are unchanged. A subnormal number gives 0 where the framework treats subnormals as zero.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype.

    Raises:
        TypeError: On use: a gradient is complex or integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.sign()([np.array([-3.0, 0.0, 0.5])])
        [array([-1.,  0.,  1.])]

    References:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, signSGD: compressed optimisation for non-convex problems, 2018.
    """

    def signs(g: Flat) -> Flat:
        elements.check_real(g, "sign", "a complex number has no sign")
        leaves = [g.leaves[i] for i in g.chosen]
        if not leaves:
            return g
        if g.factor is None:
            return g.given(elements.chosen(g, _sign, leaves))
        signs = [g.backend.compute(_sign_at, g.factor, index=i) for i in g.chosen]
        return g.given(g.backend.elementwise(_sign_scaled, [leaves, signs], ()))

    return stateless(signs)


def _sign(xp: Any, x: Array) -> Array:
    if hasattr(xp, "sign"):  # of a framework whose sign of zero is that zero
        return xp.sign(x)
    one = xp.ones_like(x)
    return xp.where(x > 0, one, xp.where(x < 0, -one, x * 0.0))  # zero if a subnormal compares as zero


def _sign_at(xp: Any, factor: Array, *, index: int) -> Array:
    return _unit(xp, formulas.take(xp, factor, index=index))


def _sign_scaled(xp: Any, x: Array, unit: Array) -> Array:
    """Sign of a product that itself may underflow."""
    return _sign_of(xp, _unit(xp, x) * unit)


def _unit(xp: Any, x: Array) -> Array:
    """Sign of a finite number; infinity is unchanged, because zero times infinity has no sign."""
    return xp.where(xp.isfinite(x), _sign_of(xp, x), x)


def _sign_of(xp: Any, x: Array) -> Array:
    high: Any = getattr(x, "high", x)
    return xp.where(x > 0.0, 1.0, xp.where(x < 0.0, -1.0, high * 0.0))  # zero or NaN
