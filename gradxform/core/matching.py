"""Which leaves of a tree a rule is for: by pattern, by function, by a tree of bools."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from gradxform.core.flat import Flat
from gradxform.core.transformation import GradientTransformation

Where = Any
"""A glob on the path, an `re.Pattern`, a function of path and leaf, or a tree of bools."""

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


def check(transform: str, where: Where) -> Where:
    """Refuse what can be no `where`, when the transform is built."""
    if isinstance(where, re.Pattern) and not isinstance(where.pattern, str):
        raise TypeError(f"{transform}: where must be a pattern of str, got {where!r}")
    if (
        where is None
        or isinstance(where, GradientTransformation)
        or (isinstance(where, (int, float, bytes)) and not isinstance(where, bool))
    ):
        raise TypeError(
            f"{transform}: where must be a glob ('encoder/**'), an re.Pattern, a function of (path, leaf) or a tree of "
            f"bools, got {where!r}"
        )
    return where


def chosen(transform: str, where: Where, view: Flat) -> tuple[bool, ...]:
    """For each leaf of a view, whether `where` is for it."""
    if isinstance(where, str):
        return _by_pattern(transform, repr(where), glob(where).fullmatch, view)
    if isinstance(where, re.Pattern):
        return _by_pattern(transform, repr(where), where.search, view)
    if isinstance(where, _FUNCTIONS) or (callable(where) and not _is_tree_of_bools(where, view)):
        return tuple(bool(where(path, leaf)) for path, leaf in zip(view.source.paths, view.leaves, strict=True))
    return _by_tree(transform, where, view)


def glob(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: ``*`` within a key, ``**`` over any number of keys, ``?`` for one character."""
    if pattern == "**":
        return re.compile(".*", re.DOTALL)
    parts = re.split(r"(\*\*/|/\*\*|\*\*|\*|\?)", pattern)
    forms = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(forms.get(part, re.escape(part)) for part in parts), re.DOTALL)


def _by_pattern(transform: str, shown: str, matches: Callable[[str], Any], view: Flat) -> tuple[bool, ...]:
    paths = view.source.paths
    found = tuple(matches(path) is not None for path in paths)
    alike = all(group.alike for group in view.groups)  # else another device may have what it is for
    if alike and not any(found) and not any(matches(path) for path in view.source.find_paths()):  # one may be None
        some = ", ".join(map(repr, paths[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        raise ValueError(f"{transform}: the pattern {shown} matches no path; the paths are {some}")
    return found


def _is_tree_of_bools(where: Any, view: Flat) -> bool:
    leaves = [leaf for leaf in view.backend.flatten(where)[0] if leaf is not None]
    return bool(leaves) and all(_is_bool(leaf) for leaf in leaves)


def _is_bool(leaf: Any) -> bool:
    return isinstance(leaf, (bool, np.bool_))


def _by_tree(transform: str, where: Any, view: Flat) -> tuple[bool, ...]:
    """A tree of bools, each for its leaf or for all that stands below it."""
    leaves = zip(view.backend.paths(where), view.backend.flatten(where)[0], strict=True)
    mask = {path: leaf for path, leaf in leaves if leaf is not None}
    for path, leaf in mask.items():
        if not _is_bool(leaf):
            raise TypeError(f"{transform}: where must be a tree of bools; at {path!r} it has {leaf!r}")
    found = []
    for path in view.source.paths:
        keys = path.split("/") if path else []
        prefixes = ("/".join(keys[:depth]) for depth in range(len(keys), -1, -1))
        bool_ = next((mask[prefix] for prefix in prefixes if prefix in mask), None)
        if bool_ is None:
            raise ValueError(
                f"{transform}: the tree of bools has none for {path!r}; it has {', '.join(map(repr, mask))}"
            )
        found.append(bool(bool_))
    return tuple(found)
