"""What variables and parameters have in common: paths, and keys made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def path_of(variable: Any) -> str:
    """The path of a variable: a Keras variable's own, or the name without its output number."""
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else str(getattr(variable, "name", "variable")).partition(":")[0]


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
