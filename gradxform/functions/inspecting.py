"""Inspect gradients: norms, paths and nonfinite leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.core import align, arguments
from gradxform.core.leaves import INEXACT
from gradxform.core.norm import Norm
from gradxform.core.transform import unconverted
from gradxform.core.tree import Tree
from gradxform.core.where import path_of
from gradxform.numerics import Array


@unconverted
def global_norm(tree: Any, *, ord: float | None = None) -> Array:
    r"""Compute the joint norm of all leaves of a tree, without overflow or underflow.

    The norm is ``sum(abs(g) ** p) ** (1 / p)`` over all elements g:

    .. math:: n = \Bigl(\sum_{i,j} |g_{ij}|^p\Bigr)^{1/p}

    Nothing is read on the host: in traced code or on an accelerator, the norm is part of the computation.

    Args:
        tree: A pytree of arrays of one framework, of any shapes and floating or complex dtype. Sparse arrays count like
            their dense form.
        ord: Order p of the norm: at least 1, or infinity. Default: 2.

    Returns:
        A 0-d array of the tree's framework, float64 if a leaf is float64 or complex128, else float32. NaN if a leaf
        holds NaN. A tree without leaves gives NumPy's zero.

    Raises:
        TypeError: A leaf is integer, or arrays belong to two frameworks; the message gives the path.
        ValueError: `ord` is below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> float(gx.global_norm({"w": np.float32([3e30, 0.0]), "b": np.float32(4e30), "unused": None}))
        4.9999999241216036e+30

    References:
        ``optax.global_norm``, `tf.linalg.global_norm`.
    """
    order = arguments.order("global_norm", ord)
    view = align.gradients_view("global_norm", tree)
    if view is None:
        return np.zeros((), np.float32)
    return _stored(view, view.global_norm(order))


@unconverted
def norms(tree: Any, *, ord: float | None = None) -> dict[str, Array]:
    r"""Compute the norm of each leaf of a tree, by path.

    .. math:: n_i = \Bigl(\sum_j |g_{ij}|^p\Bigr)^{1/p}

    Nothing is read on the host, and all leaves are measured together.

    Args:
        tree: A pytree, as in `global_norm`.
        ord: Order p of the norms: at least 1, or infinity. Default: 2.

    Returns:
        A dict from path (keys of the tree joined by "/") to a 0-d array of the tree's framework, float64 if a leaf is
        float64 or complex128, else float32. None is left out.

    Raises:
        TypeError: A leaf is integer, or arrays belong to two frameworks; the message gives the path.
        ValueError: `ord` is below 1, or two leaves have the same path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> found = gx.norms({"dense": {"kernel": np.float32([3.0, 4.0]), "bias": np.float32(2.0)}, "unused": None})
        >>> {path: float(norm) for path, norm in found.items()}
        {'dense/bias': 2.0, 'dense/kernel': 5.0}

    References:
        `torch.linalg.vector_norm` for each of ``model.named_parameters()``.
    """
    order = arguments.order("norms", ord)
    view = align.gradients_view("norms", tree)
    if view is None:
        return {}
    found, paths = _stored(view, view.norms(order)), view.source.paths
    return by_path("norms", paths, [found[i] for i in range(len(paths))])


def by_path(what: str, paths: Sequence[str], leaves: Iterable[Any], between: str = "'/'") -> dict[str, Any]:
    """Return the leaves by path, without None. `between` names what separates keys.

    Raises:
        ValueError: two leaves have the same path.
    """
    found: dict[str, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        if leaf is None:
            continue
        if path in found:
            raise ValueError(f"{what}: two leaves have the same path {path!r}; rename the key that contains {between}")
        found[path] = leaf
    return found


def paths(tree: Any) -> list[str]:
    """List the paths by which `masked`, `partition` and `freeze` select gradients.

    Args:
        tree: A pytree of arrays; a PyTorch module, its named parameters, an optimizer or an `attach` handle; a Keras
            model, layer or optimizer; a `GradientProcessor` or `tf.Module`; or a list of variables or of (gradient,
            variable) pairs.

    Returns:
        The paths, in the order of the leaves. None has no path.

    Raises:
        TypeError: `tree` has no arrays, or arrays of two frameworks.
        ValueError: A Keras model or optimizer is not built, or an iterator is used up.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.paths({"encoder": [{"kernel": np.ones(2)}, {"kernel": np.ones(2)}], "head": np.ones(1), "unused": None})
        ['encoder/0/kernel', 'encoder/1/kernel', 'head']

    References:
        ``model.named_parameters()`` in PyTorch, `jax.tree_util.keystr`, ``Variable.path`` in Keras.
    """
    if isinstance(tree, Iterator) and not (tree := list(tree)):
        raise ValueError("paths: the iterator is empty, or used up after one pass; write list(...) of it")
    if (listed := listed_leaves(tree)) is not None:
        return [path for path, _ in listed]
    if not isinstance(tree, (list, tuple, dict)) and lookup.owner(tree) is None:
        for name in ("keras", "torch", "tensorflow"):  # Keras first: on the PyTorch backend, layers are also modules
            if name in sys.modules and (found := lookup.adapter(name).paths_in(tree)) is not None:
                return list(found)
    view = Tree.read(tree)
    return [] if view is None else view.source.paths


def nonfinite_paths(tree: Any) -> list[str]:
    """List the paths of leaves that hold NaN or infinity.

    It reads values, so call it after something has gone wrong. In traced code use `norms`, which are nonfinite for the
    same leaves.

    Args:
        tree: A pytree of arrays of one framework, of any shapes and dtypes, sparse arrays included.

    Returns:
        The paths (keys of the tree joined by "/"), in the order of the leaves. Empty if all leaves are finite.

    Raises:
        TypeError: Arrays belong to two frameworks (the message gives the paths), or are traced and have no values.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.nonfinite_paths({"dense": {"kernel": np.array([1.0, np.inf]), "bias": np.ones(1)}, "step": 3})
        ['dense/kernel']

    References:
        `torch.autograd.detect_anomaly`.
    """
    view = align.gradients_view("nonfinite_paths", tree)
    if view is None:
        return []
    view = view.focus([dtype in INEXACT for dtype in view.source.dtypes])
    if not view.chosen:
        return []
    largest = _stored(view, view.norms(float("inf")))
    try:
        values = view.backend.to_numpy(largest)
    except Exception as error:
        advice = "call it outside the compiled function, or return gx.norms(tree) from it"
        raise TypeError(f"nonfinite_paths: traced arrays have no values; {advice}") from error
    paths = view.source.paths
    return [paths[i] for i in view.chosen if not np.isfinite(values[i])]


def _stored(view: Tree, norm: Norm) -> Array:
    """Cast norms to the dtype in which they are returned."""
    return view.backend.stored(norm.value, "float32" if norm.single is True else "float64", view.leaves[0])


def listed_leaves(given: Any) -> list[tuple[str, Any]] | None:
    """Return path and leaf of each variable, (gradient, variable) or (name, parameter) pair of a list, else None."""
    if not isinstance(given, (list, tuple)) or not given:
        return None
    pairs = all(isinstance(item, (list, tuple)) and len(item) == 2 for item in given)
    if pairs and all(isinstance(name, str) for name, _ in given):
        return [(name.replace(".", "/"), leaf) for name, leaf in given]
    both = given if pairs else [(item, item) for item in given]
    return [(path_of(own), leaf) for leaf, own in both] if all(hasattr(own, "assign") for _, own in both) else None
