"""Clip the gradients of each example of a batch, and sum over the batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.core import align, arguments
from gradxform.core.arguments import Scalar
from gradxform.core.leaves import SINGLE, put
from gradxform.core.norm import Norm, clip_coefficient
from gradxform.core.transform import unconverted
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas
from gradxform.numerics.norms import norm as norm_over
from gradxform.transforms.units import shape_of


@unconverted
def per_example_clip_norm(grads: Any, max_norm: Scalar) -> tuple[Any, Any]:
    r"""Clip each example's gradient of each parameter by its own norm, and sum over the batch.

    .. math:: s_i = \sum_b g_{bi} \min(1, c / \lVert g_{bi} \rVert)

    A NaN or infinite example makes the sum of its parameter NaN. Where values can be read for free, a warning names the
    example.

    Args:
        grads: A tree of gradients. Their first axis is the batch, of equal length in all leaves.
        max_norm: Limit c, in the gradients' units: a number or a 0-d array.

    Returns:
        The tree of sums, without the batch axis, in the gradients' dtypes, each rounded once; and a tree of int32
        numbers of clipped examples.

    Raises:
        TypeError: `max_norm` is not a number, or a gradient is complex or integer; the message gives its path.
        ValueError: `max_norm` is negative or NaN, or a leaf has no batch axis or another batch length; the message
            gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.per_example_clip_norm({"w": np.array([[3.0, 4.0], [0.3, 0.4]])}, 1.0)
        ({'w': array([0.9, 1.2])}, {'w': array(1, dtype=int32)})

    References:
        Abadi et al., Deep learning with differential privacy, 2016; ``optax.per_example_layer_norm_clip``.
    """
    view, factors = _factors("per_example_clip_norm", grads, max_norm, together=False)
    return _sums(view, factors), _tree(view, [_number_clipped(view, factor) for factor in factors])


@unconverted
def per_example_clip_global_norm(grads: Any, max_norm: Scalar) -> tuple[Any, Any]:
    r"""Clip each example's gradients by their global norm, and sum over the batch.

    .. math:: s_i = \sum_b g_{bi} \min(1, c / n_b), \quad n_b = \sqrt{\sum_i \lVert g_{bi} \rVert^2}

    A NaN or infinite example makes all sums NaN. Where values can be read for free, a warning names the example.

    Args:
        grads: A tree of gradients. Their first axis is the batch, of equal length in all leaves.
        max_norm: Limit c, in the gradients' units: a number or a 0-d array.

    Returns:
        The tree of sums, without the batch axis, in the gradients' dtypes, each rounded once; and the int32 number of
        clipped examples.

    Raises:
        TypeError: `max_norm` is not a number, or a gradient is complex or integer; the message gives its path.
        ValueError: `max_norm` is negative or NaN, or a leaf has no batch axis or another batch length; the message
            gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> grads = {"w": np.array([[3.0], [0.3]]), "b": np.array([[4.0], [0.4]])}
        >>> gx.per_example_clip_global_norm(grads, 1.0)
        ({'w': array([0.9]), 'b': array([1.2])}, array(1, dtype=int32))

    References:
        Abadi et al., Deep learning with differential privacy, 2016; ``optax.per_example_global_norm_clip``.
    """
    view, (factor,) = _factors("per_example_clip_global_norm", grads, max_norm, together=True)
    return _sums(view, [factor] * len(view.leaves)), _number_clipped(view, factor)


def _factors(name: str, grads: Any, max_norm: Any, together: bool) -> tuple[Tree, list[Array]]:
    """View of the gradients, and the factors of the examples: of each leaf, or of all together."""
    c, view = arguments.limit(name, "max_norm", max_norm), _batched(name, grads)
    norms, what = _example_norms(view), [f"the gradient at {path!r}" for path in view.source.paths]
    if together:
        total = view.backend.compute(_together, *(norm.value for norm in norms))
        norms, what = [Norm(total, all(norm.single for norm in norms), view.backend)], ["a gradient"]
    for norm, where in zip(norms, what, strict=True):
        _warn(name, view, norm.value, where)
    return view, [clip_coefficient(norm, c) for norm in norms]


def _batched(name: str, grads: Any) -> Tree:
    """View of gradients with a batch axis."""
    view = align.gradients_view(name, grads)
    if view is None:
        raise ValueError(f"{name}: the tree has no gradients")
    view.check_real(name, "examples are added up as real numbers")
    view = view.dense()
    first, length = 0, None
    for i in view.chosen:  # a length may be a symbol, whose graph would be for one number if it was hashed
        shape = shape_of(name, view, i)
        if not shape:
            raise ValueError(f"{name}: the gradient at {view.source.path(i)!r} is a scalar without a batch axis")
        if None not in (shape[0], length) and shape[0] != length:
            both = f"{shape[0]} at {view.source.path(i)!r} and {length} at {view.source.path(first)!r}"
            raise ValueError(f"{name}: batch lengths differ: the first axis has length {both}")
        if length is None:
            first, length = i, shape[0]
    return view


def _example_norms(view: Tree) -> list[Norm]:
    """Norms of each leaf over all axes but the first; reduced axes are kept."""
    norms, backend = [], view.backend
    for leaf, dtype in zip(view.leaves, view.source.dtypes, strict=True):
        axes = tuple(range(1, len(backend.shape(leaf) or ())))
        one = backend.norms_over([leaf], [axes], 2.0) if axes else backend.sum_over(leaf, (), None)
        norms.append(Norm(one if axes else backend.compute(formulas.scaled_norm, 1.0, one), dtype in SINGLE, backend))
    return norms


def _together(xp: Any, *norms: Array) -> Array:
    """Joint norm of each example's norms."""
    each = xp.stack([xp.reshape(norm, (-1,)) for norm in norms])
    return xp.reshape(norm_over(xp, each, (0,), 2.0), (-1,))


def _sums(view: Tree, factors: Sequence[Any]) -> Any:
    """Tree of the sums of each leaf's examples times their factors, rounded once to the leaf's dtype."""
    sums, backend = [], view.backend
    for leaf, factor, dtype in zip(view.leaves, factors, view.source.dtypes, strict=True):
        column = backend.compute(_as_column, factor, ones=(1,) * (len(backend.shape(leaf) or ()) - 1))
        total = backend.compute(formulas.take, backend.sum_over(leaf, (0,), column), index=0)
        sums.append(backend.stored(total, dtype, leaf))
    return _tree(view, sums)


def _as_column(xp: Any, x: Array, *, ones: tuple[int, ...]) -> Array:
    return xp.reshape(x, (-1, *ones))


def _number_clipped(view: Tree, factor: Any) -> Array:
    below = view.backend.compute(_below_one, factor)
    return view.backend.stored(below, "int32", view.leaves[0])


def _below_one(xp: Any, factor: Array) -> Array:
    return xp.sum(xp.reshape(xp.where(factor < 1.0, 1.0, 0.0), (-1,)))


def _warn(name: str, view: Tree, norms: Any, what: str) -> None:
    """Warn of nonfinite examples, where values can be read."""
    finite = view.backend.compute(formulas.is_finite, norms)
    lost = np.flatnonzero(~finite) if isinstance(finite, np.ndarray) else np.zeros(0)
    if lost.size:
        some = ", ".join(map(str, lost[:5])) + (f" and {lost.size - 5} more" if lost.size > 5 else "")
        why = f"{what} has NaN or infinity in example {some}, which makes the sum NaN"
        advice = "drop these examples, or apply zero_nonfinite() first"
        warnings.warn(f"{name}: {why}; {advice}", RuntimeWarning, stacklevel=4)


def _tree(view: Tree, leaves: Sequence[Array]) -> Any:
    """Tree of new leaves, with None where it was."""
    return view.backend.unflatten(view.source.structure, put(view.source.slots, view.source.kept, leaves))
