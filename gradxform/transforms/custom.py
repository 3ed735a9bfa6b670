"""Transforms from functions of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradxform.backend import lookup
from gradxform.core.autograph import unconverted
from gradxform.core.elements import may_agree
from gradxform.core.factory import factory
from gradxform.core.flat import Flat
from gradxform.core.source import INEXACT, REAL
from gradxform.core.transformation import GradientTransformation, stateless


@factory
def elementwise(fn: Callable[[Any], Any]) -> GradientTransformation:
    r"""Apply a function of one's own to each gradient.

    .. math:: g_i \leftarrow f(g_i)

    Written with operators and with the functions of `gradxform.xp` of the array, one function runs in every framework.
    It is handed an array of its own, rounded to the gradient's dtype; a sparse gradient becomes dense.

    Args:
        fn: a function of one array that returns an array of the same shape; a result of another floating dtype is
            rounded to the gradient's.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: what cannot be called; on use, a result that is no array of the framework, or complex for a real
            gradient, named by its path.
        ValueError: on use, a result of another shape, named by its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> soft = gx.elementwise(lambda g: gx.xp(g).tanh(g))
        >>> soft([np.array([0.0, 100.0])])
        [array([0., 1.])]

    Source:
        ``optax.stateless_with_tree_map``.
    """
    if not callable(fn):
        raise TypeError(f"elementwise: fn must be a function of one array, got {fn!r}")

    def applied(g: Flat) -> Flat:
        whole = g.dense().materialized()
        own = [whole.leaves[i] for i in whole.chosen]
        results = [fn(leaf) for leaf in g.backend.copied(own)]
        made = whole.given([_checked(whole, i, new) for i, new in zip(whole.chosen, results, strict=True)])
        return made._replace(owned=g.source.nothing)  # a result may be an array that the user keeps

    return stateless(applied)


def _checked(g: Flat, i: int, new: Any) -> Any:
    """A function's result in the dtype of the gradient."""
    backend, old = g.backend, g.leaves[i]
    if lookup.owner(new) is not backend:
        raise TypeError(
            f"elementwise: fn returned a {type(new).__name__} for the gradient at {g.source.path(i)!r}, "
            f"not an array of {backend.name}"
        )
    shapes = backend.shape(new), backend.shape(old)
    if not may_agree(*shapes):
        raise ValueError(
            f"elementwise: fn made shape {shapes[0]} of the gradient at {g.source.path(i)!r}, of shape {shapes[1]}; "
            "it must keep the shape"
        )
    dtypes = backend.dtype(new), backend.dtype(old)
    if dtypes[0] == dtypes[1]:
        return new if isinstance(new, type(old)) else backend.adopt(new)
    if dtypes[0] not in INEXACT or (dtypes[1] in REAL and dtypes[0] not in REAL):
        raise TypeError(
            f"elementwise: fn made {dtypes[0]} of the gradient at {g.source.path(i)!r}, of {dtypes[1]}; "
            "it must return floating-point numbers, complex ones for complex ones only"
        )
    return backend.cast(new, old)


@factory
def transform(fn: Callable[[Flat], Flat]) -> GradientTransformation:
    r"""A transform from a function of the flat view: for those who need norms.

    .. math:: g \leftarrow f(g)

    The view has what the library's own transforms are written with: `norms` and `global_norm`, `scaled` by a number, a
    0-d array or one factor a gradient, `clipped` between two bounds, `stop`, and `compute`, which does arithmetic on
    norms in float64: `view.compute(lambda xp, n: 1.0 / (1.0 + n), view.global_norm())`.

    Args:
        fn: a function of a view that returns a view.

    Returns:
        A stateless transformation.

    Raises:
        TypeError: what cannot be called; on use, a result that is no view.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> soft = gx.transform(lambda g: g.scaled(g.compute(lambda xp, n: 1.0 / (1.0 + n), g.global_norm())))
        >>> soft([np.array([3.0, 4.0])])
        [array([0.5       , 0.66666667])]

    Source:
        The flat view of this library; ``optax.stateless``.
    """
    if not callable(fn):
        raise TypeError(f"transform: fn must be a function of a flat view, got {fn!r}")

    def applied(g: Flat) -> Flat:
        found = fn(g)
        if not isinstance(found, Flat):
            raise TypeError(f"transform: fn must return a flat view, got {found!r:.80} of type {type(found).__name__}")
        return found

    return stateless(applied)


@unconverted
def xp(array: Any) -> Any:
    """The namespace of an array's framework: its functions under NumPy's names, as far as it has them.

    Args:
        array: an array of any framework here, or a Python number.

    Returns:
        `numpy`, `jax.numpy`, `tf.experimental.numpy` or `torch`, or what another backend names.

    Raises:
        TypeError: what is no array.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.xp(np.ones(2)) is np
        True

    Source:
        The array API's ``__array_namespace__``.
    """
    found = lookup.backend("numpy") if lookup.is_number(array) else lookup.owner(array)
    if found is None:
        raise TypeError(f"xp: an array of {', '.join(lookup.known())} is wanted, got {array!r:.80}")
    return found.module
