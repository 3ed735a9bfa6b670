"""What the metadata of a step says, checked against the arrays of its file before anything relies on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import category

Shape = tuple[int, ...]
Stored = tuple[Shape, str]
"""The shape of an array in the file, and its dtype as the format calls it."""
_JSON = {str: "string", bool: "boolean", list: "array", dict: "object"}
_PLAIN = {"framework": str, "norms_only": bool}
_NESTED = {"complex128": (list, str), "versions": (dict, str), "order": (dict, list), "dtypes": (dict, dict)}
_STORED = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64", "complex128": "F64"}
"""Dtypes that the format does not call by a letter and their bits; a complex128 is two numbers."""


def key_of(name: str, path: str) -> str:
    """The name of an array in the file."""
    return f"{name}/{path}" if path else name


def read(text: str, stored: Mapping[str, Stored]) -> dict[str, Any]:
    """The description of a step.

    Args:
        text: JSON, as the recorder wrote it.
        stored: the shapes and dtypes of the arrays in the file.

    Raises:
        ValueError: text that is no such description, or one of other arrays.
    """
    try:
        about = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    about = _typed("the description", about, dict)
    for field, kind in _PLAIN.items():
        _typed(field, about.get(field), kind)
    for field, (kind, inner) in {**_NESTED, "shapes": (dict, dict)}.items():
        value = _typed(field, about.get(field), kind)
        for name, part in value.items() if kind is dict else enumerate(value):
            _typed(f"{field} of {name}", part, inner)
    pairs = set(about["complex128"])
    if not pairs <= stored.keys() or not all(stored[key][0][-1:] == (2,) for key in pairs):
        raise ValueError("complex128 names arrays that have no real and imaginary part")
    _printable([about["framework"], *about["versions"], *about["versions"].values(), *about["order"]])
    for name, paths in about["order"].items():
        shapes, dtypes = (about[field].get(name, {}) for field in ("shapes", "dtypes"))
        if any(not isinstance(path, str) for path in paths) or sorted(paths) != sorted(shapes):
            raise ValueError(f"order and shapes of {name} have other paths")
        _printable(paths)
        for path in paths:
            key = key_of(name, path)
            dtype = _typed(f"the dtype of {key}", dtypes.get(path), str)
            if key not in stored:
                raise ValueError(f"the array {key!r} is not there")
            shape, kept = stored[key]
            shape = shape[:-1] if key in pairs else shape
            shapes[path] = _shape(key, shapes[path])
            if shape != ((2,) if about["norms_only"] else shapes[path]):
                raise ValueError(f"the array {key!r} has the shape {shape} and is said to have {shapes[path]}")
            if not about["norms_only"] and kept != _stored(dtype):
                raise ValueError(f"the array {key!r} is {kept} and is said to be {dtype!r:.40}")
    return about


def unprintable(texts: Iterable[str]) -> str | None:
    """The first text with what would steer a terminal, if any: characters that are neither printable nor spaces."""
    return next((text for text in texts if not all(x.isprintable() or category(x) == "Zs" for x in text)), None)


def _printable(texts: Iterable[str]) -> None:
    if (wrong := unprintable(texts)) is not None:
        raise ValueError(f"{wrong!r:.60} has characters that cannot be printed")


def _typed(what: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {value!r:.40}, not a JSON {_JSON[kind]}")
    return value


def _shape(key: str, given: Any) -> Shape:
    if not isinstance(given, list) or not all(type(size) is int and size >= 0 for size in given):
        raise ValueError(f"the shape of {key!r} is {given!r:.40}")
    return tuple(given)


def _stored(dtype: str) -> str:
    """What the format calls a dtype; float8 is kept as float32, whose numbers it has."""
    letter, bits = dtype[:1].upper(), dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return _STORED.get(dtype, "F32" if dtype.startswith("float8") else f"{letter}{bits}")
