"""What to write in the place of a pattern that matches nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from gradxform.core.globs import is_glob

_SHOWN = 2
_SYNTAX = re.compile(r"[\\^$|+()]|\.\*")
"""What stands in regular expressions, and hardly in paths."""
_NUMBERS = (
    ". The leaves of a list have numbers for paths; in PyTorch, build the optimizer from model.named_parameters(); in "
    "TensorFlow, write gx.tensorflow.apply(tx, grads_and_vars)"
)


def advice(pattern: Any, paths: Sequence[str], fitting: Callable[[str], Sequence[bool]]) -> str:
    """The end of an error: patterns that would match, or how paths get names; nothing if none is known.

    Args:
        pattern: a glob, or an `re.Pattern`.
        paths: all paths of the tree.
        fitting: the paths that a glob chooses, as bools.
    """
    if all(path.isdigit() for path in paths):
        return _NUMBERS
    if not isinstance(pattern, str):
        return ""
    if _is_found_in(pattern, paths):
        return f"; it is a regular expression: write re.compile({pattern!r})"
    found: dict[tuple[bool, ...], str] = {}
    for candidate in _candidates(pattern, paths):
        fits = tuple(fitting(candidate))
        if any(fits):
            found.setdefault(fits, candidate)
    shown = list(found.values())[:_SHOWN] or ([] if is_glob(pattern) else _closest(pattern, paths))
    return f"; did you mean {' or '.join(map(repr, shown))}?" if shown else ""


def _is_found_in(pattern: str, paths: Sequence[str]) -> bool:
    """Whether a pattern that matches no path as a glob is found as a regular expression."""
    try:
        return bool(_SYNTAX.search(pattern)) and any(re.search(pattern, path) for path in paths)
    except re.error:
        return False


def _candidates(pattern: str, paths: Sequence[str]) -> Iterator[str]:
    """Patterns near another one, the nearest first."""
    bare = pattern.strip("/").removesuffix(":0")  # of a variable's name in TensorFlow
    yield from _wider(bare)
    corrected = _corrected(bare, paths)
    if corrected != bare:
        yield from _wider(corrected)


def _closest(word: str, words: Collection[str], most: int = _SHOWN) -> list[str]:
    import difflib  # which nothing but an error needs

    return difflib.get_close_matches(word, list(words), most)


def _wider(pattern: str) -> Iterator[str]:
    yield pattern
    yield re.sub(r"(?<!\*)\*(?!\*)", "**", pattern)
    yield f"{pattern}/**"
    yield f"**/{pattern}"
    yield f"**/{pattern}/**"


def _corrected(pattern: str, paths: Sequence[str]) -> str:
    """A pattern with the nearest key that there is for each that there is not."""
    keys = {key for path in paths for key in re.split("[/.]", path)}
    near = {
        key: _closest(key, keys, 1)
        for key in pattern.replace(".", "/").split("/")
        if key not in keys and not is_glob(key)
    }
    return "/".join((near.get(key) or [key])[0] for key in pattern.replace(".", "/").split("/"))
