"""Which leaves of a tree a rule is for: by pattern, by function, by identity, by a tree of bools."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.backend.errors import short
from gradxform.core import suggesting
from gradxform.core.flat import Flat
from gradxform.core.readings import by_expression, by_glob
from gradxform.core.variables import FUNCTIONS, Variables, are_among, has_keras_path, is_variable, unpaired

Where = Any
"""A glob on the path, an `re.Pattern`, a function, a variable, a list of these, or a tree of bools."""

_FORMS = (
    "a glob ('encoder/**'), an re.Pattern, a function of the path, or of (path, leaf), a variable or parameter, a list "
    "of these, or a tree of bools"
)
_MODULES = {"named_parameters": "list(module.parameters())", "trainable_variables": "module.trainable_variables"}
_MAPS = {"tree_map", "tree_map_with_path", "map_with_path", "flatten_dict", "path_aware_map", "map_structure"}
"""Functions of whole trees, as a mask of optax calls them."""
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class _AnyOf(NamedTuple):
    """What chooses a leaf if any of its parts does."""

    choices: tuple[Any, ...]
    """Patterns and functions."""
    variables: tuple[Any, ...]


class _Function(NamedTuple):
    """A function of the path, or of path and leaf."""

    call: Any
    takes_leaf: bool


def check(transform: str, where: Where) -> Where:
    """A `where` as `chosen` takes it, when the transform is built.

    Raises:
        TypeError: what can be no `where`.
    """
    where = unpaired(where)
    if isinstance(where, (list, tuple)) and not hasattr(where, "_fields"):
        items = [part for item in where for part in (item if isinstance(item, Variables) else [item])]
        if any(isinstance(item, (str, re.Pattern, *FUNCTIONS)) or is_variable(item) for item in items):
            variables = tuple(item for item in items if is_variable(item))
            return _AnyOf(tuple(_listed(transform, item) for item in items if not is_variable(item)), variables)
        for item in items:
            _refuse_module(transform, item)
        return where
    return _AnyOf((), (where,)) if is_variable(where) else _single(transform, where)


def _listed(transform: str, item: Any) -> Any:
    """One item of a list that is no variable."""
    if isinstance(item, (str, re.Pattern, *FUNCTIONS)):
        return _single(transform, item)
    raise TypeError(
        f"{transform}: a list as where holds patterns, functions and variables; {short(item)} of type "
        f"{type(item).__name__} is none"
    )


def _single(transform: str, where: Any) -> Any:
    """A `where` that is no list and no variable."""
    if isinstance(where, re.Pattern) and not isinstance(where.pattern, str):
        raise TypeError(f"{transform}: where must be a pattern of str, got {where!r}")
    if isinstance(where, (str, re.Pattern)):
        return where
    if isinstance(where, FUNCTIONS):
        return _Function(where, _takes_leaf(transform, where))
    if where is None or _is_transformation(where) or (isinstance(where, (int, float, bytes)) and not _is_bool(where)):
        raise TypeError(f"{transform}: where must be {_FORMS}, got {where!r}")
    if isinstance(where, Iterator):
        raise TypeError(f"{transform}: where is {where!r:.100}, which can be read once; write list(...) of it")
    _refuse_module(transform, where)
    if callable(where):
        return _Function(where, _takes_leaf(transform, where))
    return where


def _refuse_module(transform: str, where: Any) -> None:
    for name, variables in _MODULES.items():
        if hasattr(where, name):
            raise TypeError(
                f"{transform}: where is a {type(where).__name__}; write its variables, {variables}, or a pattern"
            )


def _is_transformation(where: Any) -> bool:
    return callable(getattr(where, "init", None)) and callable(getattr(where, "update", None))


def _takes_leaf(transform: str, function: Any) -> bool:
    """Whether a function takes path and leaf, not the path alone: a default other than None means no leaf."""
    if isinstance(function, types.BuiltinFunctionType):  # `names.__contains__`, `re.compile("bias").search`
        return False
    code = getattr(function, "__code__", None) if isinstance(function, FUNCTIONS[0]) else None
    if code is not None and (_MAPS & {*code.co_names} or {"tree", "map"} <= {*code.co_names}):
        raise TypeError(
            f"{transform}: where is called with one path at a time, such as 'dense/kernel', and {short(function)} maps "
            "a tree; write the tree of bools that it returns, mask(params), or a function of path and leaf"
        )
    if code is not None and code.co_argcount in (1, 2) and not (code.co_kwonlyargcount or code.co_flags & _VARIADIC):
        if code.co_argcount == 1:  # torch.compile follows this, and no signature
            return False
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():  # which cannot tell defaults of functions made within
            return True
        return not function.__defaults__ or function.__defaults__[-1] is None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without one
        return True
    for takes_leaf in (True, False):
        try:
            signature.bind(*("path", "leaf")[: 1 + takes_leaf])
        except TypeError:
            continue
        second = list(signature.parameters.values())[1:2]
        return takes_leaf and all(each.default in (each.empty, None) for each in second)
    if isinstance(function, FUNCTIONS):
        raise TypeError(
            f"{transform}: where must be a function of the path, or of path and leaf; {function!r} takes {signature}"
        )
    return True  # a tree of bools that can be called


def chosen(transform: str, where: Where, view: Flat) -> tuple[bool, ...]:
    """For each leaf of a view, whether `where` is for it."""
    if isinstance(where, (str, re.Pattern)):
        return _by_pattern(transform, where, view)
    if isinstance(where, _AnyOf):
        masks = [chosen(transform, choice, view) for choice in where.choices]
        if where.variables:
            masks.append(_by_identity(transform, where.variables, view))
        return tuple(map(any, zip(*masks, strict=True)))
    if isinstance(where, _Function):
        if isinstance(where.call, FUNCTIONS) or not _is_tree_of_bools(where.call, view):
            return _by_function(transform, where, view)
        where = where.call
    return _by_tree(transform, where, view)


def verify(transform: str, where: Where, view: Flat) -> None:
    """Refuse patterns and variables that choose nothing; functions and trees of bools are left alone."""
    where = check(transform, where)
    parts = _AnyOf((where,), ()) if isinstance(where, (str, re.Pattern)) else where
    if isinstance(parts, (list, tuple)) and not parts:
        chosen(transform, parts, view)
    if isinstance(parts, _AnyOf):
        patterns = tuple(choice for choice in parts.choices if not isinstance(choice, _Function))
        chosen(transform, _AnyOf(patterns, parts.variables), view)


def _by_pattern(transform: str, pattern: str | re.Pattern[str], view: Flat) -> tuple[bool, ...]:
    paths, alone = view.source.find_paths(), not _alike(view)  # all, since one that is None now has its path as well
    owners = view.source.owners
    rooted = owners is not None and all(map(has_keras_path, owners))
    if isinstance(pattern, str):
        found = by_glob(pattern, paths, rooted, alone)
    else:
        found = by_expression(pattern, paths, rooted, alone)
    if not any(found) and not alone:
        advice = suggesting.advice(pattern, paths, lambda other: by_glob(other, paths, rooted))
        raise ValueError(f"{transform}: the pattern {pattern!r} matches no path; the paths are {_some(view)}{advice}")
    return tuple(found[slot] for slot in view.source.kept)


def _by_identity(transform: str, variables: Sequence[Any], view: Flat) -> tuple[bool, ...]:
    owners = view.source.owners
    if owners is None:
        raise TypeError(
            f"{transform}: where has variables ({Variables(variables)!r}), and gradients in a tree do not tell whose "
            "they are; choose by path ('encoder/**'). Variables are known to gx.torch.apply_ and attach, to "
            "gx.tensorflow.apply and GradientProcessor, and to gx.keras.wrap"
        )
    found = are_among(owners, variables)
    if not any(found) and _alike(view):
        raise ValueError(
            f"{transform}: the gradients belong to none of the variables {Variables(variables)!r} of where; the paths "
            f"are {_some(view)}; a variable is chosen by identity: copy the transformation together with the model"
        )
    return tuple(found[slot] for slot in view.source.kept)


def _by_function(transform: str, function: _Function, view: Flat) -> tuple[bool, ...]:
    leaves = [(leaf,) if function.takes_leaf else () for leaf in view.leaves]
    pairs = zip(view.source.paths, leaves, strict=True)
    return tuple(_decision(transform, function, path, *leaf) for path, leaf in pairs)


def _decision(transform: str, function: _Function, path: str, *leaf: Any) -> bool:
    """What a function says of one leaf."""
    try:
        result = function.call(path, *leaf)
    except (AttributeError, TypeError, LookupError, AssertionError) as error:
        if leaf and not isinstance(error, AttributeError):  # which may be of traced values
            raise
        given = "(path, leaf)" if leaf else "one path at a time"
        advice = "" if leaf else "; of a function of the parameters, write the tree of bools that it returns"
        raise TypeError(
            f"{transform}: where is called with {given}, and raised {short(error)} for {path!r}{advice}"
        ) from error
    if not isinstance(result, bool) and isinstance(result, (Mapping, list, tuple)):  # optax calls with the parameters
        raise TypeError(
            f"{transform}: where is called with one path at a time and must return a bool, got {short(result)}; write "
            "a tree of bools without a function"
        )
    return bool(result)


def _alike(view: Flat) -> bool:
    """Whether all devices have the same paths; else another one may have what a pattern is for."""
    return all(group.alike for group in view.groups)


def _some(view: Flat) -> str:
    """Some paths of the leaves that there are."""
    paths = view.source.paths
    return ", ".join(map(repr, paths[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _is_tree_of_bools(where: Any, view: Flat) -> bool:
    leaves = [leaf for leaf in view.backend.flatten(where)[0] if leaf is not None]
    return bool(leaves) and all(_is_bool(leaf) for leaf in leaves)


def _is_bool(leaf: Any) -> bool:
    return isinstance(leaf, (bool, np.bool_))


def _by_tree(transform: str, where: Any, view: Flat) -> tuple[bool, ...]:
    """A tree of bools, each for its leaf or for all that stands below it."""
    leaves = zip(view.backend.paths(where), view.backend.flatten(where)[0], strict=True)
    mask = {path: leaf for path, leaf in leaves if leaf is not None}
    if not mask:  # which is the mask of an empty tree, and of that alone
        raise ValueError(f"{transform}: where is an empty list or tree, which chooses nothing")
    given = list(mask)
    for path, leaf in mask.items():
        if not _is_bool(leaf):
            raise TypeError(f"{transform}: where must be a tree of bools; at {path!r} it has {short(leaf)}")
    mask = {path.replace(".", "/"): leaf for path, leaf in mask.items()} | mask  # PyTorch's names
    found = [_at(mask, path) for path in view.source.paths]
    if None in found and _is_in_one_model(view):  # whose name may be left out
        below = [_at(mask, path.partition("/")[2]) for path in view.source.paths]
        found = found if None in below else below
    if None in found:
        path = view.source.paths[found.index(None)]
        raise ValueError(f"{transform}: the tree of bools has none for {path!r}; it has {', '.join(map(repr, given))}")
    return tuple(map(bool, found))


def _is_in_one_model(view: Flat) -> bool:
    """Whether the gradients are of variables of Keras whose paths all begin with one name."""
    owners = view.source.owners
    names = {path.partition("/")[0] for path in view.source.find_paths()}
    return owners is not None and all(map(has_keras_path, owners)) and len(names) == 1


def _at(mask: Mapping[str, Any], path: str) -> Any:
    """The bool at a path, or at the nearest one above it; None if there is none."""
    keys = path.split("/") if path else []
    prefixes = ("/".join(keys[:depth]) for depth in range(len(keys), -1, -1))
    return next((mask[prefix] for prefix in prefixes if prefix in mask), None)
