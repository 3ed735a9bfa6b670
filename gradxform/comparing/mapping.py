"""Which leaf is which, as a user writes it down: a dict of names, or a TOML file of names and layouts."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.layouts import Layout, reals
from gradxform.recording.reading import Recording

_FIELDS = {"a", "b", "how", "sure", *(f"{side}_{field}" for side in "ab" for field in Layout._fields)}
_ABOUT = """\
# Which leaf of A is which of B. Correct what is wrong, and give the file back with --map.
# A layout is, in this order: part = [axis, start, stop] or [axis, start, stop, sections]; gates = [axis, block, ...];
# axes, a permutation; shape. Leaves under [alone] are left out.
# Modules or leaves by name alone: a table [names] with lines such as "0" = "net/dense".
"""


class View(NamedTuple):
    """A leaf by its path, and the layout that it is looked at in."""

    path: str
    layout: Layout

    def of(self, recording: Recording, step: int, tree: str, norms: bool) -> Any:
        """The array of a recording in this layout; its norm alone, if one of two recordings has no more."""
        array = recording.read(step, tree, self.path)
        if norms:
            return np.asarray(array[:1] if recording.norms_only else [np.linalg.norm(reals(array))], np.float64)
        try:
            return self.layout.of(array)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            text = f"the layout {self.layout.words!r} does not fit the shape {array.shape} of {self.path!r}"
            raise ValueError(text) from error


class Pair(NamedTuple):
    """Two leaves that belong together, how that was found, and how sure it is."""

    a: View
    b: View
    how: str
    sure: float

    @property
    def views(self) -> tuple[View, View]:
        """The leaf of A and that of B."""
        return self.a, self.b

    @property
    def label(self) -> str:
        """The path in A, with the part that is meant."""
        return named(self.a)


def module_of(path: str) -> str:
    """The path of the module that a leaf belongs to."""
    return path.rpartition("/")[0]


def named(view: View) -> str:
    """A path, and the part of the leaf that is meant."""
    return view.path + view.layout.slices


class Map(NamedTuple):
    """What a user has said."""

    names: dict[str, str]
    pairs: list[Pair]
    alone: tuple[frozenset[str], ...] = (frozenset(), frozenset())
    """Paths of A and of B that have no partner, by the user's word."""


def read(given: str | Path | Mapping[str, str] | None) -> Map:
    """A map from a TOML file or a dict.

    Raises:
        TypeError: what is neither.
        ValueError: a file that is no TOML, or entries that are none of a map.
    """
    if given is None or isinstance(given, Mapping):
        return Map(_names("the map", given or {}), [])
    if not isinstance(given, (str, Path)):
        raise TypeError(f"compare: map must be a dict of paths or the path of a TOML file, got {given!r:.60}")
    file = f"the map {str(given)!r}"
    try:
        found = tomllib.loads(Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no TOML: {' '.join(str(error).split()):.120}") from error
    names, leaves, alone = found.get("names", {}), found.get("leaf", []), found.get("alone", {})
    tables = isinstance(names, dict) and isinstance(alone, dict) and alone.keys() <= {"a", "b"}
    if not found.keys() <= {"names", "leaf", "alone"} or not tables or not _are_lists(leaves, *alone.values()):
        raise ValueError(
            f"{file} may have [names], which leads paths of A to paths of B, [[leaf]] for each pair of leaves, and "
            f"[alone], with lists of paths a and b; got {found!r:.120}"
        )
    left_out = (frozenset(_text(file, path) for path in alone.get(side, [])) for side in "ab")
    return Map(_names(file, names), [_pair(file, entry) for entry in leaves], tuple(left_out))


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, list) for value in values)


def _names(file: str, given: Mapping[Any, Any]) -> dict[str, str]:
    found = [(_text(file, old), _text(file, new)) for old, new in given.items()]
    if twice := [name for name, count in Counter(old for old, _ in found).items() if count > 1]:
        raise ValueError(f"{file} has {twice[0]!r} twice")
    return dict(found)


def _text(file: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{file} leads paths of A to paths of B, got {value!r:.60}")
    return value.replace(".", "/")


def _pair(file: str, entry: Any) -> Pair:
    strange = set(entry) - _FIELDS if isinstance(entry, dict) else {repr(entry)}
    if strange or not {"a", "b"} <= set(entry):
        raise ValueError(f"{file}: a [[leaf]] needs a and b, and may not have {sorted(strange)}: {entry!r:.120}")
    numbers = {key: value for key, value in entry.items() if key[2:] in Layout._fields}
    for key, value in numbers.items():
        fits = _are_lists(value) and (key[2:] != "part" or len(value) in (3, 4))
        if not fits or not all(type(number) is int and number >= 0 for number in value):
            raise ValueError(f"{file}: {key} must be a list of integers, got {value!r:.60}; see --write-map")
    a, b = (
        View(_text(file, entry[side]), Layout(**{key[2:]: tuple(x) for key, x in numbers.items() if key[0] == side}))
        for side in "ab"
    )
    return Pair(a, b, "the map", 1.0)


def check(given: Map, *sides: Collection[str]) -> None:
    """Refuse a map whose leaves are not there, or are there twice.

    Args:
        given: the map.
        *sides: the paths of A and those of B.

    Raises:
        ValueError: says which entry, and which paths are like it.
    """
    for k, there in enumerate(sides):
        views = [pair.views[k] for pair in given.pairs]
        for path in (*(view.path for view in views), *sorted(given.alone[k])):
            if path not in there:
                raise ValueError(f"the map has {path!r}, and {'AB'[k]} has no such leaf; {like(path, there)}")
        counts = Counter(map(named, views))
        for view in views:
            if counts[named(view)] > 1 or view.path in given.alone[k]:
                raise ValueError(f"the map has {view.path!r} of {'AB'[k]} twice")


def like(path: str, there: Iterable[str]) -> str:
    """The paths that are like one, or the first of all."""
    paths = list(there)
    near = difflib.get_close_matches(path, paths, 3, 0.6)
    shown = ", ".join(near or paths[:3])
    return f"like it: {shown}" if near else f"it has {shown}{' and others' if len(paths) > 3 else ''}"


def written(pairs: Iterable[Pair], alone_a: Iterable[str], alone_b: Iterable[str]) -> str:
    """An alignment as a TOML file that `read` reads."""
    lines = [_ABOUT]
    for pair in pairs:
        lines += ["[[leaf]]", f"a = {json.dumps(pair.a.path)}", f"b = {json.dumps(pair.b.path)}"]
        fields = (
            (f"{side}_{key}", x)
            for side, view in zip("ab", pair.views, strict=True)
            for key, x in view.layout._asdict().items()
        )
        lines += [f"{key} = {json.dumps(value)}" for key, value in fields if value is not None]
        lines += [f"how = {json.dumps(pair.how)}", f"sure = {pair.sure:.2f}", ""]
    lines += ["[alone]", f"a = {json.dumps(list(alone_a))}", f"b = {json.dumps(list(alone_b))}", ""]
    return "\n".join(lines)
