"""Transforms that bring gradients to one size, sign or mean."""

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

    A gradient of zeros stays as it is; one with a NaN or an infinite element becomes NaN.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: on use, an integer gradient, named by its path.

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
    r"""Divide all gradients by the norm of all of them together.

    .. math:: g_i \leftarrow g_i / n, \quad n = \sqrt{\sum_i \lVert g_i \rVert^2}

    Gradients that are all zero stay as they are; a NaN or an infinite element anywhere makes all of them NaN.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: on use, an integer gradient, named by its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.normalize_global_norm()({"w": np.array([3.0]), "b": np.array([4.0])})
        {'w': array([0.6]), 'b': array([0.8])}

    References:
        Nesterov, Minimization methods for nonsmooth convex and quasiconvex functions, 1984;
        ``optax.normalize_by_update_norm``, which adds 1e-6 to the norm.
    """
    return stateless(lambda g: g.scaled(g.backend.compute(formulas.inverse, g.global_norm().value)))


@factory
def centralize(*, axes: Any = None) -> GradientTransformation:
    r"""Take from each gradient its mean over the inputs of each unit.

    Each gradient g becomes ``g - mean(g, axes)``:

    .. math:: g_i \leftarrow g_i - \operatorname{mean}_{\text{axes}}(g_i)

    Gradients of fewer than two axes stay as they are.

    Args:
        axes: the axes of the mean: "torch" (all but the first, where PyTorch's kernels have their outputs), "keras"
            (all but the last, where those of Keras, Flax and Haiku have them), a tuple, a mapping from a glob on the
            path to a tuple, or a function of path and leaf. As in the paper and in optax, all but the first if left
            out.

    Returns:
        A stateless transformation of gradients of any shape and real floating dtype.

    Raises:
        TypeError: axes of no known form; on use, a complex or an integer gradient, named by its path.
        ValueError: on use, axes that a gradient does not have.

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
        columns = [[some.leaves[i] for i in some.chosen], [_mean(some, i, found[i]) for i in some.chosen]]
        if some.factor is not None:
            for part in extended.factors(g.backend, some.factor):
                columns.append([g.backend.compute(formulas.take, part, index=i) for i in some.chosen])
        new = g.backend.elementwise(_less if some.factor is None else _less_scaled, columns, ()) if columns[0] else []
        return some.given(new).widen(g)

    return stateless(centred)


def _has_axes(shape: tuple[int | None, ...] | None) -> bool:
    return shape is None or len(shape) > 1


def _mean(g: Flat, i: int, axes: tuple[int, ...]) -> Array:
    return g.backend.compute(_share, g.backend.sum_over(g.leaves[i], axes, None), g.backend.count(g.leaves[i], axes))


def _share(xp: Any, total: Array, count: Array) -> Array:
    return xp.where(xp.isfinite(total), total / count, total)  # in pairs, infinity by a number is NaN


def _less(xp: Any, x: Array, mean: Array) -> Array:
    return x - mean


def _less_scaled(xp: Any, x: Array, mean: Array, *factors: Array) -> Array:
    return functools.reduce(operator.mul, factors, x - mean)  # of equal elements, zero


@factory
def sign() -> GradientTransformation:
    r"""Replace each element by its sign.

    .. math:: g_i \leftarrow \operatorname{sign}(g_i)

    Zero and NaN stay as they are. The sign of a subnormal number is 0 where a framework computes with it as zero.

    Returns:
        A stateless transformation of gradients of any shape and real floating dtype.

    Raises:
        TypeError: on use, a complex or an integer gradient, named by its path.

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
    one = xp.ones_like(x)
    return xp.where(x > 0, one, xp.where(x < 0, -one, x * 0.0))  # a subnormal number that compares as zero is zero


def _sign_at(xp: Any, factor: Array, *, index: int) -> Array:
    return _unit(xp, formulas.take(xp, factor, index=index))


def _sign_scaled(xp: Any, x: Array, unit: Array) -> Array:
    """The sign of a product, which itself may be too small."""
    return _sign_of(xp, _unit(xp, x) * unit)


def _unit(xp: Any, x: Array) -> Array:
    """The sign of what is finite; infinity as it is, since zero times infinity has no sign."""
    return xp.where(xp.isfinite(x), _sign_of(xp, x), x)


def _sign_of(xp: Any, x: Array) -> Array:
    high: Any = getattr(x, "high", x)
    return xp.where(x > 0.0, 1.0, xp.where(x < 0.0, -1.0, high * 0.0))  # zero or NaN
