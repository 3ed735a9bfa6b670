"""Rename and re-lay out the leaves of a state."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradxform.transforms.history import AdaGCState, PercentileState, ZScoreState

Rename = Callable[[str, Any], Mapping[str, Any]]


def renamed(what: str, given: Mapping[str, Any], like: Any, rename: Rename) -> tuple[dict[str, Any], dict[str, str]]:
    """Leaves by new path, and the old path of each. Only trees of parameters are renamed, not counts."""
    trees = list(_trees(what, like, ""))
    found: dict[str, Any] = {}
    old: dict[str, str] = {}
    for path, array in given.items():
        tree = next((tree for tree in trees if path.startswith(tree)), None)
        parts = {path: array} if tree is None else _asked(what, rename, tree, path, array)
        for new, part in parts.items():
            if new in found:
                raise ValueError(f"{what}: rename maps two leaves to {new!r}: {old[new]!r} and {path!r}")
            found[new], old[new] = part, path
    return found, old


def _asked(what: str, rename: Rename, tree: str, path: str, array: Any) -> dict[str, Any]:
    parts = rename(path.removeprefix(tree), array)
    if not isinstance(parts, Mapping):
        raise TypeError(
            f"{what}: rename must return a dict from new paths to arrays, such as {{path: array}}; for {path!r} it "
            f"returned {parts!r:.80}"
        )
    return {tree + name: part for name, part in parts.items()}


def _trees(what: str, node: Any, path: str) -> Iterator[str]:
    """Paths in a state where trees of parameters begin: at fields of its named tuples."""
    if isinstance(node, (AdaGCState, PercentileState, ZScoreState)) and node.count.shape[0] > 1:
        raise ValueError(
            f"{what}: the state at {path.removesuffix('/')!r} has one row per parameter in path order "
            "(clip_adagc, or per_leaf=True), which rename would change; drop this part and use its initial state"
        )
    children = _children(node) if _is_state(node) else None
    if children is None:
        yield path
    for key, child in children or ():
        yield from _trees(what, child, f"{path}{key}/")


def _is_state(node: Any) -> bool:
    """Whether a node is a named tuple, or a container of named tuples only."""
    if hasattr(node, "_fields"):
        return True
    children = _children(node)
    return children is not None and all(_is_state(child) for _, child in children)


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    if hasattr(node, "_fields"):
        return list(zip(node._fields, node, strict=True))
    if isinstance(node, (tuple, list)):
        return list(enumerate(node))
    return list(node.items()) if isinstance(node, dict) else None


def axes_that_fit(shape: Sequence[int], wanted: Sequence[int | None] | None) -> str:
    """Suggest transpositions that turn one shape into another."""
    if wanted is None or Counter(shape) != Counter(wanted) or len(shape) > 5:
        return ""
    orders = itertools.permutations(range(len(shape)))
    found = [order for order in orders if tuple(shape[axis] for axis in order) == tuple(wanted)]
    return "; in rename, " + " or ".join(f"array.transpose{order}" for order in found[:2]) + " has that shape"
