"""Which leaf is which, as a user writes it down: a dict of names, or a TOML file of names and layouts."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradxform.comparing.layouts import Layout, Shape

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
    alone_a: frozenset[str] = frozenset()
    """Paths that have no partner, by the user's word."""
    alone_b: frozenset[str] = frozenset()


def read(given: str | Path | Mapping[str, str] | None) -> Map:
    """A map from a TOML file or a dict.

    Raises:
        TypeError: what is neither.
        ValueError: a file that is no TOML, or entries that are none of a map.
    """
    if given is None:
        return Map({}, [])
    if isinstance(given, Mapping):
        return Map(_names("the map", given), [])
    if not isinstance(given, (str, Path)):
        raise TypeError(f"compare: map must be a dict of paths or the path of a TOML file, got {given!r:.60}")
    file = f"the map {str(given)!r}"
    try:
        found = tomllib.loads(Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no TOML: {' '.join(str(error).split()):.120}") from error
    alone, kinds = found.get("alone"), {"names": dict, "leaf": list, "alone": dict}
    right = all(isinstance(value, kinds.get(key, ())) for key, value in found.items())
    sides = alone if isinstance(alone, dict) else {}
    if not right or not sides.keys() <= {"a", "b"} or not all(isinstance(paths, list) for paths in sides.values()):
        raise ValueError(
            f"{file} may have [names], which leads paths of A to paths of B, [[leaf]] for each pair of leaves, and "
            f"[alone], with lists of paths a and b; got {found!r:.120}"
        )
    alone_a, alone_b = (frozenset(_text(file, path) for path in sides.get(side, [])) for side in "ab")
    return Map(
        _names(file, found.get("names", {})), [_pair(file, entry) for entry in found.get("leaf", [])], alone_a, alone_b
    )


def _names(file: str, given: Mapping[Any, Any]) -> dict[str, str]:
    found = [(_text(file, old), _text(file, new)) for old, new in given.items()]
    if twice := next((old for old, count in Counter(old for old, _ in found).items() if count > 1), None):
        raise ValueError(f"{file} has {twice!r} twice")
    return dict(found)


def _text(file: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{file} leads paths of A to paths of B, got {value!r:.60}")
    return value.replace(".", "/")


def _pair(file: str, entry: Any) -> Pair:
    strange = set(entry) - _FIELDS if isinstance(entry, dict) else {repr(entry)}
    if strange or not {"a", "b"} <= set(entry):
        raise ValueError(f"{file}: a [[leaf]] needs a and b, and may not have {sorted(strange)}: {entry!r:.120}")
    a, b = (View(_text(file, entry[side]), _layout(file, entry, side)) for side in "ab")
    return Pair(a, b, "the map", 1.0)


def _layout(file: str, entry: Mapping[str, Any], side: str) -> Layout:
    lengths = {"part": (3, 4), "gates": range(3, 66), "axes": range(1, 33), "shape": range(33)}
    numbers = {field: value for field in lengths if (value := entry.get(f"{side}_{field}")) is not None}
    for field, value in numbers.items():
        whole = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
        if not whole or len(value) not in lengths[field]:
            raise ValueError(f"{file}: {side}_{field} must be a list of integers, got {value!r:.60}; see --write-map")
    return Layout(**{field: tuple(value) for field, value in numbers.items()})


def check(given: Map, a: Mapping[str, Shape], b: Mapping[str, Shape]) -> None:
    """Refuse a map whose leaves are not there, are there twice or have layouts that do not fit.

    Args:
        given: the map.
        a: the shapes of the leaves of A by path.
        b: those of B.

    Raises:
        ValueError: says which entry, and which paths are like it.
    """
    for side, shapes, alone in (("a", a, given.alone_a), ("b", b, given.alone_b)):
        views = [getattr(pair, side) for pair in given.pairs]
        for path in (*(view.path for view in views), *sorted(alone)):
            if path not in shapes:
                raise ValueError(f"the map has {path!r}, and {side.upper()} has no such leaf; {like(path, shapes)}")
        counts = Counter(map(named, views))
        wholes = {view.path for view in views if view.layout.part is None}
        for view in views:
            if counts[named(view)] > 1 or (view.layout.part and view.path in wholes) or view.path in alone:
                raise ValueError(f"the map has {view.path!r} of {side.upper()} twice")
    for pair in given.pairs:
        ends = []
        for side, view, shapes in (("a", pair.a, a), ("b", pair.b, b)):
            try:
                ends.append(view.layout.shape_of(shapes[view.path]))
            except ValueError as error:
                raise ValueError(f"the map: {side}_{error}, which {view.path!r} of {side.upper()} has") from error
        if ends[0] != ends[1]:
            text = f"the map pairs {named(pair.a)!r} with {named(pair.b)!r}, whose shapes are {ends[0]} and {ends[1]}"
            raise ValueError(f"{text}: add a_axes or a_shape")


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
        for side, view in (("a", pair.a), ("b", pair.b)):
            for field, value in view.layout._asdict().items():
                if value is not None:
                    lines.append(f"{side}_{field} = {json.dumps(value)}")
        lines += [f"how = {json.dumps(pair.how)}", f"sure = {pair.sure:.2f}", ""]
    lines += ["[alone]", f"a = {json.dumps(list(alone_a))}", f"b = {json.dumps(list(alone_b))}", ""]
    return "\n".join(lines)
