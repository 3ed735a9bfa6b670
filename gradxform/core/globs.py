"""Globs on paths: ``*`` within a key, ``**`` over any number of keys, ``?`` for one character."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

_FORMS = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_MOST = 4
"""Up to so many wildcards a regular expression is used; with more it could take exponential time."""


def is_glob(pattern: str) -> bool:
    """Whether a pattern has wildcards."""
    return "*" in pattern or "?" in pattern


def matcher(pattern: str) -> Callable[[str], Any]:
    """Return a function whose result is true if the glob matches a whole path."""
    parts = [part for part in re.split(r"(\*\*/|/\*\*|\*\*|\*|\?)", pattern) if part]
    if sum(part in _FORMS for part in parts) > _MOST:
        return functools.partial(_fits, parts)
    return re.compile("".join(_FORMS.get(part) or re.escape(part) for part in parts), re.DOTALL).fullmatch


def _fits(parts: Sequence[str], path: str) -> bool:
    """Match any number of wildcards, in time proportional to their number times the length of the path."""
    ends = 1
    """Bit i: the parts so far match the first i characters."""
    for part in parts:
        ends = _after(part, ends, path)
    return bool(ends >> len(path) & 1)


def _after(part: str, ends: int, path: str) -> int:
    """Return where a part may end if it begins where the earlier parts may end."""
    if part == "**":
        return _onward(ends, (2 << len(path)) - 1)
    if part == "**/":
        return ends | _after("/", _after("**", ends, path), path)
    if part == "/**":
        return ends | _after("**", _after("/", ends, path), path)
    if part == "*":
        start = 0
        for key in path.split("/"):
            inside = ((2 << len(key)) - 1) << start
            ends |= _onward(ends & inside, inside)
            start += len(key) + 1
        return ends
    if part == "?":
        return (ends & sum(1 << i for i, character in enumerate(path) if character != "/")) << 1
    places, place = 0, path.find(part)
    while place >= 0:
        places, place = places | 1 << place, path.find(part, place + 1)
    return (ends & places) << len(part)


def _onward(ends: int, inside: int) -> int:
    """Set all bits from the lowest set one up."""
    return inside & -(ends & -ends)
