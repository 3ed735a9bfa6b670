"""How a path may be read when a pattern is held against it: with "/" for ".", without the names that wrappers add.

A pattern without wildcards that is a path as written chooses that path alone. A glob chooses what it fits as written,
and what it fits with "/" for "." in both and without the keys of `torch.compile` and FSDP. A regular expression is
searched for in one reading after the other until it is found. The first key, if it is DDP's ``module`` or the name of a
Keras model, is left out where nothing else matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from gradxform.core import globs

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module")
"""The keys that `torch.compile` and FSDP add to the names of parameters."""
_DISTRIBUTED = "module"
"""The first key of parameters in DistributedDataParallel."""


def by_glob(pattern: str, paths: Sequence[str], rooted: bool, alone: bool = False) -> list[bool]:
    """For each path, whether a glob chooses it.

    Args:
        pattern: the glob.
        paths: all paths of a tree.
        rooted: whether the first key may be the name of a Keras model.
        alone: whether each path is read for itself, since other devices have other paths.
    """
    if not globs.is_glob(pattern) and pattern in paths:
        return [path == pattern for path in paths]
    found = list(map(bool, map(globs.matcher(pattern), paths)))
    slashed, plain = pattern.replace(".", "/"), _plain(paths, _names_wrapper(pattern))
    if slashed != pattern or plain is not paths:
        read = map(globs.matcher(slashed), plain)
        found = [there or bool(fits) for there, fits in zip(found, read, strict=True)]
    if any(found) or alone:
        return found
    shorter = _without_first(plain, rooted)
    return found if shorter is None else list(map(bool, map(globs.matcher(slashed), shorter)))


def by_expression(pattern: re.Pattern[str], paths: Sequence[str], rooted: bool, alone: bool = False) -> list[bool]:
    """For each path, whether a regular expression is found in it; as `by_glob`."""
    found = [False] * len(paths)
    for read in _readings(paths, rooted and not alone, _names_wrapper(pattern.pattern)):
        found = [pattern.search(path) is not None for path in read]
        if any(found) or alone:
            break
    return found


def _readings(paths: Sequence[str], rooted: bool, whole: bool) -> Iterator[Sequence[str]]:
    yield paths if whole else _unwrapped(paths)
    yield paths
    plain = _plain(paths, whole)
    yield plain
    yield [path.replace("/", ".") for path in plain]
    shorter = _without_first(plain, rooted)
    if shorter is not None:
        yield shorter


def _names_wrapper(pattern: str) -> bool:
    return any(name in pattern for name in _WRAPPERS)


def _plain(paths: Sequence[str], whole: bool) -> Sequence[str]:
    """Paths with "/" for ".", and, if they are not to be whole, without what wrappers add; the same if all are so."""
    if any("." in path for path in paths):
        paths = [path.replace(".", "/") for path in paths]
    return paths if whole else _unwrapped(paths)


def _unwrapped(paths: Sequence[str]) -> Sequence[str]:
    """Paths without what `torch.compile` and FSDP add, whose keys may be joined by dots; the same if there is none."""
    if not any(name in path for path in paths for name in _WRAPPERS):
        return paths
    return [_PREFIX.sub("", path) for path in paths]


_PREFIX = re.compile(rf"(?<![^/.])(?:{'|'.join(_WRAPPERS)})[/.]")


def _without_first(paths: Sequence[str], rooted: bool) -> list[str] | None:
    """Paths without the key that all of them begin with, if that is a wrapper's or a model's."""
    first: Any = {path.partition("/")[0] if "/" in path else None for path in paths}
    if len(first) != 1 or None in first or not (rooted or first == {_DISTRIBUTED}):
        return None
    return [path.partition("/")[2] for path in paths]
