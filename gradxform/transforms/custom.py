"""Transforms from your own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradxform.backend import lookup
from gradxform.core.align import aligned, may_agree
from gradxform.core.factory import factory
from gradxform.core.leaves import INEXACT, REAL
from gradxform.core.transform import GradientTransformation, stateless, unconverted
from gradxform.core.tree import Tree


@factory()
def elementwise(fn: Callable[[Any], Any]) -> GradientTransformation:
    r"""Apply your own function to each gradient.

    .. math:: g_i \leftarrow f(g_i)

    Write the function with operators and with `gradxform.xp` of the array, and it runs in every framework. It gets its
    own copy of the gradient, rounded to the gradient's dtype. A sparse gradient becomes dense.

    Args:
        fn: Function of one array that returns an array of the same shape. A result of another floating dtype is rounded
            to the gradient's.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: `fn` is not callable. On use: the result is not an array of the framework, or is complex for a real
            gradient; the message gives the path.
        ValueError: On use: the result has another shape; the message gives the path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> soft = gx.elementwise(lambda g: gx.xp(g).tanh(g))
        >>> soft([np.array([0.0, 100.0])])
        [array([0., 1.])]

    References:
        ``optax.stateless_with_tree_map``.
    """
    if not callable(fn):
        raise TypeError(f"elementwise: fn must be a function of one array, got {fn!r}")

    def applied(g: Tree) -> Tree:
        whole = g.dense().materialized()
        own = [whole.leaves[i] for i in whole.chosen]
        results = [fn(leaf) for leaf in g.backend.copied(own)]
        made = whole.given([_checked(whole, i, new) for i, new in zip(whole.chosen, results, strict=True)])
        return made.lent()  # the user may keep a reference to a result

    return stateless(applied)


def _checked(g: Tree, i: int, new: Any) -> Any:
    """The function's result in the gradient's dtype."""
    backend, old = g.backend, g.leaves[i]
    where, kind = f"the gradient at {g.source.path(i)!r}", type(new).__name__
    if lookup.owner(new) is not backend:
        raise TypeError(f"elementwise: fn must return an array of {backend.name}, got a {kind} for {where}")
    shapes, dtypes = (backend.shape(new), backend.shape(old)), (backend.dtype(new), backend.dtype(old))
    if not may_agree(*shapes):
        raise ValueError(f"elementwise: fn must keep the shape of {where}, {shapes[1]}, but returned {shapes[0]}")
    if dtypes[0] == dtypes[1]:
        return new if isinstance(new, type(old)) else backend.xp.asarray(new)
    if dtypes[0] not in INEXACT or (dtypes[1] in REAL and dtypes[0] not in REAL):
        kinds = "floating-point, and complex only for complex gradients"
        raise TypeError(f"elementwise: fn must return {kinds}, but returned {dtypes[0]} for {where}, {dtypes[1]}")
    return backend.cast([new], [old])[0]


@factory()
def transform(fn: Callable[[Tree], Tree]) -> GradientTransformation:
    r"""Make a transform from a function of the flat view, which provides norms.

    .. math:: g \leftarrow f(g)

    The view has what the library's own transforms use. `norms` and `global_norm` measure; `scaled` multiplies by a
    number, a 0-d array or one factor per gradient; `clipped` applies bounds; `stop` freezes. `compute` does float64
    arithmetic on norms: `view.compute(lambda xp, n: 1.0 / (1.0 + n), view.global_norm())`.

    Args:
        fn: Function from a view to a view.

    Returns:
        A stateless transform.

    Raises:
        TypeError: `fn` is not callable. On use: the result is not a view.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> soft = gx.transform(lambda g: g.scaled(g.compute(lambda xp, n: 1.0 / (1.0 + n), g.global_norm())))
        >>> soft([np.array([3.0, 4.0])])
        [array([0.5       , 0.66666667])]

    References:
        ``optax.stateless``.
    """
    if not callable(fn):
        raise TypeError(f"transform: fn must be a function of a flat view, got {fn!r}")

    def applied(g: Tree) -> Tree:
        found = fn(g)
        if not isinstance(found, Tree):
            raise TypeError(f"transform: fn must return a flat view, got {found!r:.80} of type {type(found).__name__}")
        return found

    return stateless(applied, stops=True)


@unconverted
def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function to the leaves of trees at the same path, for transforms of your own with a state.

    Where a leaf is None in any of the trees, as gradients may be, the function is not called, and the result is the
    first tree's leaf.

    Args:
        fn: Function of one array per tree.
        tree: Tree of arrays of any framework. The result has its structure.
        *rest: Trees with leaves at the same paths.

    Returns:
        A tree of the results.

    Raises:
        TypeError: Arrays of two frameworks, or a leaf that is not an array.
        ValueError: A tree has other paths; the message names the first.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> mean, grads = {"w": np.ones(2), "b": np.ones(1)}, {"w": np.array([3.0, 5.0]), "b": None}
        >>> gx.tree_map(lambda m, g: 0.5 * m + 0.5 * g, mean, grads)
        {'w': array([2., 3.]), 'b': array([1.])}

    References:
        `jax.tree.map`, where None has no leaf; ``optree.tree_map``.
    """
    view = Tree.read(tree)
    if view is None:
        return tree
    columns: list[Any] = [view.source.slots]
    for number, other in enumerate(rest, 2):
        columns.append(aligned(view, other, ("the first tree", f"tree_map: tree {number}")).leaves)
    rows = zip(*columns, strict=True)
    found = [row[0] if any([leaf is None for leaf in row]) else fn(*row) for row in rows]
    return view.backend.unflatten(view.source.structure, found)


@unconverted
def xp(array: Any) -> Any:
    """Return the namespace of an array's framework: functions under NumPy's names, as far as the framework has them.

    Args:
        array: An array of any supported framework, or a Python number.

    Returns:
        `numpy`, `jax.numpy`, `tf.experimental.numpy`, `torch`, or the module that another backend names.

    Raises:
        TypeError: `array` is not an array.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.xp(np.ones(2)) is np
        True

    References:
        ``__array_namespace__`` of the array API standard.
    """
    found = lookup.backend("numpy") if lookup.is_number(array) else lookup.owner(array)
    if found is None:
        raise TypeError(f"xp: expected an array of {', '.join(lookup.known())}, got {array!r:.80}")
    return found.module
