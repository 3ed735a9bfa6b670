"""What variables and parameters have in common: paths, keys made of them, and identity."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup

_SHOWN = 3
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_NONE = (str, re.Pattern, bool, int, float, dict, list, tuple, np.generic, type(None), *FUNCTIONS)
"""Types of which nothing is a variable."""


class Variables(tuple[Any, ...]):
    """Variables that are chosen by identity: equal, and hash-equal, to the same ones alone."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """The same variables in the same order."""
        return isinstance(other, Variables) and list(map(id, self)) == list(map(id, other))

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(tuple(map(id, self)))

    def __repr__(self) -> str:
        """Their paths, if they have some and are few; else their number."""
        names = [own_name(variable) for variable in self]
        if all(names) and len(names) <= _SHOWN:
            return f"<{', '.join(names)}>"
        return f"<{len(names)} variable{'s' * (len(names) != 1)}>"


def own_name(variable: Any) -> str:
    """The path of a variable, without the output number of its name; empty if it has neither."""
    path = getattr(variable, "path", None)
    name = path if isinstance(path, str) else getattr(variable, "name", None)
    return name.partition(":")[0] if isinstance(name, str) else ""


def path_of(variable: Any) -> str:
    """The path of a variable: a Keras variable's own, or the name without its output number."""
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else str(getattr(variable, "name", "variable")).partition(":")[0]


def listed_paths(given: Any) -> list[str] | None:
    """The paths of a list of variables, of (gradient, variable) or of (name, parameter) pairs; None for another."""
    if not isinstance(given, (list, tuple)) or not given:
        return None
    pairs = all(isinstance(item, (list, tuple)) and len(item) == 2 for item in given)
    if pairs and all(isinstance(name, str) for name, _ in given):
        return [name.replace(".", "/") for name, _ in given]
    variables = [item[1] for item in given] if pairs else given
    return list(map(path_of, variables)) if all(hasattr(item, "assign") for item in variables) else None


def has_keras_path(variable: Any) -> bool:
    """Whether a variable has a path of its own, as Keras's have, which may begin with a model's name."""
    return isinstance(getattr(variable, "path", None), str)


def is_variable(item: Any) -> bool:
    """Whether something is a variable, a parameter or an array, which is itself alone; masks and numbers are none."""
    if isinstance(item, _NONE) or "bool" in str(getattr(item, "dtype", "")):
        return False
    return lookup.unwrapped(item) is not item or lookup.owner(item) is not None


def recorded(where: Any) -> Any:
    """A `where` as a hyperparameter is kept, with its variables as `Variables`."""
    if isinstance(where, Variables):
        return where
    if type(where) in (list, tuple):
        if where and all(map(is_variable, where)):
            return Variables(where)
        return type(where)(Variables((item,)) if is_variable(item) else item for item in where)
    return Variables((where,)) if is_variable(where) else where


def are_among(owners: Iterable[Any], chosen: Iterable[Any]) -> list[bool]:
    """For each owner of a gradient, whether it is one of the variables, or holds one of them, or is held by one."""
    items = list(chosen)
    wanted = set(map(id, items))
    wider = wanted | {id(_held(item)) for item in items}
    return [id(owner) in wider or id(_held(owner)) in wanted for owner in owners]


def _held(variable: Any) -> Any:
    """The framework's variable in one of Keras; others are themselves."""
    keras = type(variable).__module__.partition(".")[0] == "keras"
    inner = getattr(variable, "_value", None) if keras else None
    return variable if inner is None else inner


def keys_of(paths: Sequence[str]) -> list[str]:
    """The paths as the keys of a dict: a path that has been there before gets a number."""
    taken = set(paths)
    if len(taken) == len(paths):
        return list(paths)
    keys: dict[str, None] = {}
    for path in paths:
        key, number = path, 0
        while key in keys or (number and key in taken):
            number += 1
            key = f"{path}_{number}"
        keys[key] = None
    return list(keys)
