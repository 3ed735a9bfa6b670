"""Functions of the gradients of each example of a batch: limited one by one, and added up."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.core import arguments, elements, extended
from gradxform.core.arguments import Scalar
from gradxform.core.autograph import unconverted
from gradxform.core.flat import Flat, Norm, clip_coefficient, flat_view
from gradxform.core.source import SINGLE
from gradxform.numerics import Array, formulas


@unconverted
def per_example_clip_norm(grads: Any, max_norm: Scalar) -> tuple[Any, Any]:
    r"""Limit the norm of each example's gradient of each parameter by itself, and add the examples up.

    .. math:: s_i = \sum_b g_{bi} \min(1, c / \lVert g_{bi} \rVert)

    An example with a NaN or an infinite element makes NaN of the whole sum of its parameter, and a warning names it
    where values can be read at no cost.

    Args:
        grads: a tree of gradients whose first axis is the batch, of one length in all leaves.
        max_norm: the limit c, in the gradients' units; a number or a 0-d array.

    Returns:
        The tree of the sums, of the gradients' shapes without the first axis and of their dtypes, each rounded once;
        and a tree of int32 numbers: how many examples were clipped.

    Raises:
        TypeError: a limit that is no number; a complex or an integer gradient, named by its path.
        ValueError: a negative or NaN limit; a leaf without a batch axis, or with another length of it, named by its
            path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.per_example_clip_norm({"w": np.array([[3.0, 4.0], [0.3, 0.4]])}, 1.0)
        ({'w': array([0.9, 1.2])}, {'w': array(1, dtype=int32)})

    References:
        Abadi et al., Deep learning with differential privacy, 2016; ``optax.per_example_layer_norm_clip``.
    """
    c = arguments.limit("per_example_clip_norm", "max_norm", max_norm)
    view = _batched("per_example_clip_norm", grads)
    norms = _example_norms(view)
    factors = [clip_coefficient(norm, c) for norm in norms]
    for i, norm in enumerate(norms):
        _warn("per_example_clip_norm", view, norm.value, f"the gradient at {view.source.path(i)!r}")
    counts = [_number_clipped(view, factor) for factor in factors]
    return _tree(view, [_sum_of_examples(view, i, factor) for i, factor in enumerate(factors)]), _tree(view, counts)


@unconverted
def per_example_clip_global_norm(grads: Any, max_norm: Scalar) -> tuple[Any, Any]:
    r"""Limit the norm of each example's gradients together, and add the examples up.

    .. math:: s_i = \sum_b g_{bi} \min(1, c / n_b), \quad n_b = \sqrt{\sum_i \lVert g_{bi} \rVert^2}

    An example with a NaN or an infinite element anywhere makes NaN of all sums, and a warning names it where values can
    be read at no cost.

    Args:
        grads: a tree of gradients whose first axis is the batch, of one length in all leaves.
        max_norm: the limit c, in the gradients' units; a number or a 0-d array.

    Returns:
        The tree of the sums, of the gradients' shapes without the first axis and of their dtypes, each rounded once;
        and an int32 number: how many examples were clipped.

    Raises:
        TypeError: a limit that is no number; a complex or an integer gradient, named by its path.
        ValueError: a negative or NaN limit; a leaf without a batch axis, or with another length of it, named by its
            path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> grads = {"w": np.array([[3.0], [0.3]]), "b": np.array([[4.0], [0.4]])}
        >>> gx.per_example_clip_global_norm(grads, 1.0)
        ({'w': array([0.9]), 'b': array([1.2])}, array(1, dtype=int32))

    References:
        Abadi et al., Deep learning with differential privacy, 2016; ``optax.per_example_global_norm_clip``.
    """
    c = arguments.limit("per_example_clip_global_norm", "max_norm", max_norm)
    view = _batched("per_example_clip_global_norm", grads)
    norms = _example_norms(view)
    single = all(norm.single for norm in norms)
    total = view.backend.compute(_together, *(view.backend.compute(_as_vector, norm.value) for norm in norms))
    factor = clip_coefficient(Norm(total, single, view.backend), c)
    _warn("per_example_clip_global_norm", view, total, "a gradient")
    sums = [_sum_of_examples(view, i, _shaped(view, i, factor)) for i in range(len(view.leaves))]
    return _tree(view, sums), _number_clipped(view, factor)


def _batched(name: str, grads: Any) -> Flat:
    """The view of gradients that have a batch axis."""
    view = flat_view(grads)
    if view is None:
        raise ValueError(f"{name}: the tree has no gradients")
    view.check_inexact()
    elements.check_real(view, name, "examples are added up as real numbers")
    view = view.dense()
    lengths = []
    for i, leaf in enumerate(view.leaves):
        shape = view.backend.shape(leaf)
        if shape is None:
            raise ValueError(f"{name}: the number of axes of {view.source.path(i)!r} is not known before it runs")
        if not shape:
            raise ValueError(f"{name}: the gradient at {view.source.path(i)!r} is a number and has no batch axis")
        lengths.append(shape[0])
        if None not in (lengths[i], lengths[0]) and lengths[i] != lengths[0]:
            raise ValueError(
                f"{name}: the first axis is the batch, and it has length {lengths[i]} at {view.source.path(i)!r} and "
                f"{lengths[0]} at {view.source.path(0)!r}"
            )
    return view


def _example_norms(view: Flat) -> list[Norm]:
    """For each leaf, the norms over all axes but the first, which are kept as ones."""
    norms = []
    for i, leaf in enumerate(view.leaves):
        axes = tuple(range(1, len(view.backend.shape(leaf) or ())))
        norm = view.backend.norm_over(leaf, axes, 2.0) if axes else view.backend.compute(_size, _wide(view, leaf))
        norms.append(Norm(norm, view.source.dtypes[i] in SINGLE, view.backend))
    return norms


def _wide(view: Flat, leaf: Array) -> Array:
    return view.backend.sum_over(leaf, (), None)


def _size(xp: Any, x: Array) -> Array:
    return xp.abs(x)


def _as_vector(xp: Any, x: Array) -> Array:
    return xp.reshape(x, (-1,))


def _shaped(view: Flat, i: int, factor: Array) -> Array:
    """A factor for each example with an axis of one for each other axis of a leaf."""
    ones = (1,) * (len(view.backend.shape(view.leaves[i]) or ()) - 1)
    return view.backend.compute(_as_column, factor, ones=ones)


def _as_column(xp: Any, x: Array, *, ones: tuple[int, ...]) -> Array:
    return xp.reshape(x, (-1, *ones))


def _together(xp: Any, *norms: Array) -> Array:
    """The norm of numbers that are norms, for each example; in units of the largest."""
    unit = norms[0]
    for other in norms[1:]:
        unit = xp.where(other > unit, other, unit)
    sound = (unit > 0.0) & xp.isfinite(unit)
    unit = xp.stop_gradient(xp.where(sound, unit, 1.0))
    total = (norms[0] / unit) * (norms[0] / unit)
    for norm in norms[1:]:
        total = total + (norm / unit) * (norm / unit)
    positive = total > 0.0
    root = xp.sqrt(xp.where(positive, total, 1.0))
    return xp.where(positive, unit * root, xp.where(total <= total, 0.0, total))


def _sum_of_examples(view: Flat, i: int, factor: Any) -> Array:
    """The sum over the batch of a leaf's examples times their factors, rounded to its dtype once."""
    leaf = view.leaves[i]
    total = view.backend.compute(_first, extended.rounded(view.backend, view.backend.sum_over(leaf, (0,), factor)))
    return view.backend.stored(total, view.source.dtypes[i], leaf)


def _first(xp: Any, x: Array) -> Array:
    return x[0]


def _number_clipped(view: Flat, factor: Any) -> Array:
    below = view.backend.compute(_below_one, extended.rounded(view.backend, factor))
    return view.backend.stored(below, "int32", view.leaves[0])


def _below_one(xp: Any, factor: Array) -> Array:
    return xp.sum(xp.reshape(xp.where(factor < 1.0, 1.0, 0.0), (-1,)))


def _warn(name: str, view: Flat, norms: Any, what: str) -> None:
    """A warning that names the examples that are not finite, where values can be read."""
    finite = view.backend.compute(formulas.is_finite, norms)
    if isinstance(finite, np.ndarray):
        lost = np.flatnonzero(~finite)
        if lost.size:
            some = ", ".join(map(str, lost[:5])) + (f" and {lost.size - 5} more" if lost.size > 5 else "")
            warnings.warn(
                f"{name}: {what} has a NaN or an infinite element in example {some}, and so has the sum; "
                "leave these examples out, or apply zero_nonfinite() first",
                RuntimeWarning,
                stacklevel=3,
            )


def _tree(view: Flat, leaves: Sequence[Array]) -> Any:
    """The tree of new leaves, None where it was."""
    out: list[Any] = list(view.source.slots)
    for slot, leaf in zip(view.source.kept, leaves, strict=True):
        out[slot] = leaf
    return view.backend.unflatten(view.source.structure, out)
