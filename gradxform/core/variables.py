"""Paths, keys and identity of variables and parameters."""

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
"""Types that are never variables."""


class Variables(tuple[Any, ...]):
    """A selection of variables, compared and hashed by identity."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Whether both have the same variables in the same order."""
        return isinstance(other, Variables) and list(map(id, self)) == list(map(id, other))

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(tuple(map(id, self)))

    def __repr__(self) -> str:
        """Show a few paths if all have one; else the number of variables."""
        names = [own_name(variable) for variable in self]
        if all(names) and len(names) <= _SHOWN:
            return f"<{', '.join(names)}>"
        return f"<{len(names)} variable{'s' * (len(names) != 1)}>"


def own_name(variable: Any) -> str:
    """Return the path of a variable, or its name without the output number; empty if it has neither."""
    path = getattr(variable, "path", None)
    name = path if isinstance(path, str) else getattr(variable, "name", None)
    return name.partition(":")[0] if isinstance(name, str) else ""


def path_of(variable: Any) -> str:
    """Return the path of a Keras variable, or the name of another one without its output number."""
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else str(getattr(variable, "name", "variable")).partition(":")[0]


def listed_paths(given: Any) -> list[str] | None:
    """Return the paths of a list of variables or of (gradient, variable) or (name, parameter) pairs, else None."""
    if not isinstance(given, (list, tuple)) or not given:
        return None
    pairs = all(isinstance(item, (list, tuple)) and len(item) == 2 for item in given)
    if pairs and all(isinstance(name, str) for name, _ in given):
        return [name.replace(".", "/") for name, _ in given]
    variables = [item[1] for item in given] if pairs else given
    return list(map(path_of, variables)) if all(hasattr(item, "assign") for item in variables) else None


def has_keras_path(variable: Any) -> bool:
    """Whether a variable has a path like a Keras variable, which may begin with a model's name."""
    return isinstance(getattr(variable, "path", None), str)


def is_variable(item: Any) -> bool:
    """Whether an object is a variable, a parameter or an array, and not a mask or a number."""
    if isinstance(item, _NONE) or "bool" in str(getattr(item, "dtype", "")):
        return False
    return lookup.unwrapped(item) is not item or lookup.owner(item) is not None


def unpaired(where: Any) -> Any:
    """The parameters of a list of (name, parameter) pairs, or of a dict by name; any other `where` as it is."""
    if type(where) is dict and where and all(map(is_variable, where.values())):
        return list(where.values())
    if type(where) not in (list, tuple) or not where:
        return where
    pairs = all(isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in where)
    return [item[1] for item in where] if pairs and all(is_variable(item[1]) for item in where) else where


def recorded(where: Any) -> Any:
    """Wrap the variables of a `where` in `Variables`, to store it as a hyperparameter."""
    if isinstance(where, Variables):
        return where
    where = unpaired(where)
    if type(where) in (list, tuple):
        if where and all(map(is_variable, where)):
            return Variables(where)
        return type(where)(Variables((item,)) if is_variable(item) else item for item in where)
    return Variables((where,)) if is_variable(where) else where


def are_among(owners: Iterable[Any], chosen: Iterable[Any]) -> list[bool]:
    """For each owner of a gradient, whether it is one of the variables, wraps one, or is wrapped by one."""
    items = list(chosen)
    wanted = set(map(id, items))
    wider = wanted | {id(_held(item)) for item in items}
    return [id(owner) in wider or id(_held(owner)) in wanted for owner in owners]


def _held(variable: Any) -> Any:
    """Return the framework's variable inside a Keras variable; return others unchanged."""
    keras = type(variable).__module__.partition(".")[0] == "keras"
    inner = getattr(variable, "_value", None) if keras else None
    return variable if inner is None else inner


def keys_of(paths: Sequence[str]) -> list[str]:
    """Turn paths into unique dict keys by numbering repeated ones."""
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
