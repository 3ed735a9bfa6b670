"""Multiply gradients by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradxform.core.arguments import Scalar, number
from gradxform.core.factory import factory
from gradxform.core.transform import GradientTransformation, stateless


@factory(factor=number)
def scale(factor: Scalar) -> GradientTransformation:
    r"""Multiply each gradient by ``factor``.

    Each gradient g becomes ``factor * g``:

    .. math:: g_i \leftarrow a \, g_i

    Args:
        factor: Factor a, dimensionless: a number, a 0-d array or a schedule. Zero times NaN stays NaN; `stop` gives
            zeros.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: `factor` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `factor` is NaN.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.scale(-0.5)({"w": np.array([3.0, 4.0])})
        {'w': array([-1.5, -2. ])}

    References:
        Cauchy, Methode generale pour la resolution des systemes d'equations, 1847 (gradient descent); ``optax.scale``.
    """
    return stateless(lambda g: g.scaled(factor))


@factory()
def scale_by_schedule(fn: Callable[[Any], Any]) -> GradientTransformation:
    r"""Multiply each gradient by a factor that depends on the step.

    .. math:: g_i \leftarrow f(t) \, g_i

    Args:
        fn: Function from the step, counted from zero, to the factor. The step is float64: a Python float where values
            can be read for free, else a 0-d array; `gradxform.xp` gives its namespace.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state is a counter.

    Raises:
        TypeError: `fn` is not callable. On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.scale_by_schedule(lambda t: 1.0 / (1.0 + t))
        >>> state = tx.init([np.zeros(1)])
        >>> for _ in range(2):
        ...     updates, state = tx.update([np.ones(1)], state)
        >>> updates
        [array([0.5])]

    References:
        ``optax.scale_by_schedule``.
    """
    if not callable(fn):
        raise TypeError(f"scale_by_schedule: fn must be a function from the step to a factor, got {fn!r}")
    return scale(fn)
