"""What the metadata of a step says, checked against the arrays of its file before anything relies on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Shape = tuple[int, ...]
_JSON = {str: "string", bool: "boolean", list: "array", dict: "object"}
_PLAIN = {"framework": str, "norms_only": bool, "complex128": list}


def key_of(name: str, path: str) -> str:
    """The name of an array in the file."""
    return f"{name}/{path}" if path else name


def read(text: str, stored: Mapping[str, Shape]) -> dict[str, Any]:
    """The description of a step.

    Args:
        text: JSON, as the recorder wrote it.
        stored: the shapes of the arrays in the file.

    Raises:
        ValueError: text that is no such description, or one of other arrays.
    """
    try:
        about = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    about = _typed("the description", about, dict)
    for field in ("framework", "norms_only", "complex128"):
        _typed(field, about.get(field), _PLAIN[field])
    for field, kind in (("versions", str), ("order", list), ("dtypes", dict), ("shapes", dict)):
        for name, value in _typed(field, about.get(field), dict).items():
            _typed(f"{field} of {name}", value, kind)
    pairs = {_typed("complex128", key, str) for key in about["complex128"]}
    if not pairs <= stored.keys() or not all(stored[key][-1:] == (2,) for key in pairs):
        raise ValueError("complex128 names arrays that have no real and imaginary part")
    for name, paths in about["order"].items():
        shapes, dtypes = (about[field].get(name, {}) for field in ("shapes", "dtypes"))
        if any(not isinstance(path, str) for path in paths) or sorted(paths) != sorted(shapes):
            raise ValueError(f"order and shapes of {name} have other paths")
        for path in paths:
            key = key_of(name, path)
            _typed(f"the dtype of {key}", dtypes.get(path), str)
            if key not in stored:
                raise ValueError(f"the array {key!r} is not there")
            there = stored[key][:-1] if key in pairs else stored[key]
            if there != ((2,) if about["norms_only"] else _shape(key, shapes[path])):
                raise ValueError(f"the array {key!r} has the shape {there} and is said to have {shapes[path]}")
    return about


def _typed(what: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {value!r:.40}, not a JSON {_JSON[kind]}")
    return value


def _shape(key: str, given: Any) -> Shape:
    if not isinstance(given, list) or not all(type(size) is int and size >= 0 for size in given):
        raise ValueError(f"the shape of {key!r} is {given!r:.40}")
    return tuple(given)
