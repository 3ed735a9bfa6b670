"""Transforms that multiply gradients by a number."""

from __future__ import annotations

from gradxform import _arguments as arguments
from gradxform._arguments import Scalar
from gradxform._transformation import GradientTransformation, factory, stateless


@factory
def scale(factor: Scalar) -> GradientTransformation:
    r"""Multiply each gradient by ``factor``.

    .. math:: g_i \leftarrow a \, g_i

    Args:
        factor: the number a, without a unit; a number or a 0-d array. Zero times NaN stays NaN: see `stop`.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: a factor that is no number; on use, an integer gradient, named by its path.
        ValueError: a NaN factor.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.scale(-0.5)({"w": np.array([3.0, 4.0])})
        {'w': array([-1.5, -2. ])}

    Source:
        The step of gradient descent: Cauchy, Methode generale pour la resolution des systemes d'equations, 1847.
    """
    a = arguments.number("scale", "factor", factor)
    return stateless(lambda g: g.scaled(a))
