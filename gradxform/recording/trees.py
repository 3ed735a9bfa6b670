"""What a training loop has at hand, as leaves by path and as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradxform.backend import lookup
from gradxform.core.leaves import INEXACT
from gradxform.core.tree import Tree
from gradxform.core.where import Where, chosen, keys_of
from gradxform.functions.convert import values
from gradxform.functions.inspecting import listed_paths, norms


def leaves_of(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, without None; one array or number alone has the empty path.

    Raises:
        TypeError: a leaf that is no array; names the path.
        ValueError: two leaves of a tree have one path.
    """
    tree = _opened(name, tree)
    listed = listed_paths(tree)
    if listed is not None:
        paths, leaves = listed, [_of_pair(item) for item in tree]
    else:
        try:
            backend, (leaves, _) = lookup.opened(tree)
        except TypeError as error:
            raise TypeError(f"record: {name}: {error}") from error
        paths = [] if backend is None else backend.paths(tree)
    keys = [path.replace(".", "/") for path in paths]
    unique = keys_of(keys)
    if keys != unique and listed is None:
        twice = next(key for key, own in zip(keys, unique, strict=True) if key != own)
        raise ValueError(f"record: {name} has two leaves at {twice!r}: rename the key that contains '/' or '.'")
    return {key: leaf for key, leaf in zip(unique, leaves, strict=True) if leaf is not None}


def _opened(name: str, tree: Any) -> Any:
    """The named parameters or variables of a model, or their gradients; other trees are themselves."""
    if hasattr(tree, "trainable_variables"):
        return list(tree.trainable_variables)
    if hasattr(tree, "named_parameters"):
        named = list(tree.named_parameters())
        return {path: p.grad for path, p in named} if name.startswith("gradients") else named
    return list(tree) if isinstance(tree, Iterator) else tree


def _of_pair(item: Any) -> Any:
    """The array of a variable, of a (name, parameter) or of a (gradient, variable) pair."""
    if isinstance(item, (list, tuple)):
        item = item[1] if isinstance(item[0], str) else item[0]
    return lookup.unwrapped(item)


def choose(where: Where, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves that `where` is for.

    Raises:
        ValueError: a pattern that matches no path.
    """
    view = Tree.read(dict(leaves))
    if view is None:
        return {}
    mask = dict(zip(view.source.paths, chosen("record", where, view), strict=True))
    return {path: leaf for path, leaf in leaves.items() if mask[path]}


def arrays_of(name: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves as NumPy arrays, which may share memory with them.

    Raises:
        TypeError: a traced or symbolic leaf, a masked one, or one whose values NumPy cannot hold; names the path.
    """
    masked = next((path for path, leaf in leaves.items() if isinstance(leaf, np.ma.MaskedArray)), None)
    if masked is not None:
        raise TypeError(f"record: {name}: the leaf at {masked!r} is masked; record its data and its mask as two leaves")
    return {path: values(f"record: {name}", path, leaf) for path, leaf in leaves.items()}


def numbers_of(name: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The 2-norm and the largest magnitude of each floating leaf, measured on its device."""
    two, largest = (arrays_of(name, norms(dict(leaves), ord=order)) for order in (2, float("inf")))
    return {path: np.array([float(two[path]), float(largest[path])]) for path in leaves}


def floating(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves that have norms."""
    return {path: leaf for path, leaf in leaves.items() if dtype_of(leaf) in INEXACT}


def dtype_of(leaf: Any) -> str:
    """The name of a leaf's dtype."""
    owner = lookup.owner(leaf)
    return str(np.asarray(leaf).dtype) if owner is None else owner.dtype(leaf)
