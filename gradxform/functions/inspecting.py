"""Plain functions that look at gradients: their norms, and which of them are not finite."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.core import arguments, extended
from gradxform.core.autograph import unconverted
from gradxform.core.flat import Flat, Norm, flat_view
from gradxform.core.source import INEXACT
from gradxform.core.variables import listed_paths
from gradxform.numerics import Array


@unconverted
def global_norm(tree: Any, *, ord: float | None = None) -> Array:
    r"""The norm over all leaves of a tree together, right at any size.

    .. math:: n = \Bigl(\sum_{i,j} |g_{ij}|^p\Bigr)^{1/p}

    Nothing is read on the host: within a trace, or on an accelerator, it is one more number of the computation.

    Args:
        tree: a pytree of arrays of one framework, of any shapes, of floating or complex dtype; sparse ones count as the
            dense ones they stand for.
        ord: the order p of the norm, at least 1, or infinity; 2 if left out.

    Returns:
        A 0-d array of the tree's framework, float32, or float64 if a leaf is float64 or complex128; NaN if a leaf holds
        NaN. NumPy's zero for a tree without leaves.

    Raises:
        TypeError: an integer leaf, arrays of two frameworks; names the path.
        ValueError: an order below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> float(gx.global_norm({"w": np.float32([3e30, 0.0]), "b": np.float32(4e30), "unused": None}))
        4.9999999241216036e+30

    Source:
        ``optax.global_norm``, `tf.linalg.global_norm`.
    """
    order = arguments.order("global_norm", ord)
    view = flat_view(tree)
    if view is None:
        return np.zeros((), np.float32)
    norm = view.global_norm(order)
    return _stored(view, norm)


@unconverted
def norms(tree: Any, *, ord: float | None = None) -> dict[str, Array]:
    r"""The norm of each leaf of a tree, by its path.

    .. math:: n_i = \Bigl(\sum_j |g_{ij}|^p\Bigr)^{1/p}

    Nothing is read on the host; all leaves are measured together.

    Args:
        tree: a pytree as `global_norm` takes it.
        ord: the order p of the norms, at least 1, or infinity; 2 if left out.

    Returns:
        A dict from path, the keys of the tree joined by "/", to a 0-d array of the tree's framework, float32, or
        float64 if a leaf is float64 or complex128; without None.

    Raises:
        TypeError: an integer leaf, arrays of two frameworks; names the path.
        ValueError: an order below 1, two leaves of one path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> found = gx.norms({"dense": {"kernel": np.float32([3.0, 4.0]), "bias": np.float32(2.0)}, "unused": None})
        >>> {path: float(norm) for path, norm in found.items()}
        {'dense/bias': 2.0, 'dense/kernel': 5.0}

    Source:
        `torch.linalg.vector_norm` of each of ``model.named_parameters()``.
    """
    order = arguments.order("norms", ord)
    view = flat_view(tree)
    if view is None:
        return {}
    found, paths = _stored(view, view.norms(order)), view.source.paths
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"norms: two leaves have the path {twice!r}; a key of a dict holds a '/'")
    return {path: found[i] for i, path in enumerate(paths)}


def paths(tree: Any) -> list[str]:
    """The paths by which `masked`, `partition` and `freeze` choose gradients.

    Args:
        tree: a pytree of arrays; PyTorch's module, named parameters, optimizer or handle of `attach`; Keras's model,
            layer or optimizer; a `GradientProcessor` or a `tf.Module`; a list of variables, or of (gradient, variable)
            pairs.

    Returns:
        The paths, in the order of the leaves; None has none.

    Raises:
        TypeError: what has no leaves that are arrays; arrays of two frameworks.
        ValueError: a Keras model or optimizer that is not built.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.paths({"encoder": [{"kernel": np.ones(2)}, {"kernel": np.ones(2)}], "head": np.ones(1), "unused": None})
        ['encoder/0/kernel', 'encoder/1/kernel', 'head']

    Source:
        The names of ``model.named_parameters()`` in PyTorch, `jax.tree_util.keystr`, ``Variable.path`` of Keras.
    """
    if isinstance(tree, Iterator):
        tree = list(tree)
    found = listed_paths(tree)
    if found is None and not isinstance(tree, (list, tuple, dict)) and lookup.owner(tree) is None:
        # Keras's layers come first: on PyTorch they are its modules too.
        adapters = (lookup.adapter(name) for name in ("keras", "torch", "tensorflow") if name in sys.modules)
        found = next((there for there in (module.paths_in(tree) for module in adapters) if there is not None), None)
    if found is not None:
        return found
    view = flat_view(tree)
    return [] if view is None else view.source.paths


def nonfinite_paths(tree: Any) -> list[str]:
    """The paths of the leaves that hold NaN or an infinity.

    It reads values, to be called where something has gone wrong; within traced code ask `norms`, which are not finite
    for the same leaves.

    Args:
        tree: a pytree of arrays of one framework, of any shapes and dtypes; sparse ones too.

    Returns:
        The paths, the keys of the tree joined by "/", in the order of the leaves; an empty list if all is finite.

    Raises:
        TypeError: arrays of two frameworks, named by their paths; traced arrays, which have no values yet.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.nonfinite_paths({"dense": {"kernel": np.array([1.0, np.inf]), "bias": np.ones(1)}, "step": 3})
        ['dense/kernel']

    Source:
        `torch.autograd.detect_anomaly`, for a tree of gradients.
    """
    view = flat_view(tree)
    if view is None:
        return []
    view = view.focus([dtype in INEXACT for dtype in view.source.dtypes])
    if not view.chosen:
        return []
    largest = _stored(view, view.norms(float("inf")))
    try:
        values = view.backend.to_numpy(largest)
    except Exception as error:
        raise TypeError(
            "nonfinite_paths reads values, and traced arrays have none; call it outside of the compiled function, or "
            "return gx.norms(tree) from it"
        ) from error
    paths = view.source.paths
    return [paths[i] for i in view.chosen if not np.isfinite(values[i])]


def _stored(view: Flat, norm: Norm) -> Array:
    """A norm, or norms, in the dtype that they count in."""
    return view.backend.stored(
        extended.rounded(norm.backend, norm.value), "float32" if norm.single is True else "float64", view.leaves[0]
    )
