"""Which leaf is which, as a user writes it down: a dict of names, or a TOML file of names and layouts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradxform.comparing.layouts import Gates, Layout

_FIELDS = {"a", "b", "how", "sure", *(f"{side}_{field}" for side in "ab" for field in Layout._fields)}
_ABOUT = """\
# Which leaf of A is which of B. Correct what is wrong, and give the file back with --map.
# A layout is, in this order: part = [axis, start, stop]; gates = [axis, block, block, ...]; axes, a permutation; shape.
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
    def label(self) -> str:
        """The path in A, with the part that is meant."""
        return named(self.a)


def named(view: View) -> str:
    """A path, and the part of the leaf that is meant."""
    part = view.layout.part
    return view.path if part is None else f"{view.path}[{', '.join([':'] * part[0] + [f'{part[1]}:{part[2]}'])}]"


class Map(NamedTuple):
    """What a user has said."""

    names: dict[str, str]
    pairs: list[Pair]


def read(given: str | Path | Mapping[str, str] | None) -> Map:
    """A map from a TOML file or a dict.

    Raises:
        ValueError: a file that is no TOML, or entries that are none of a map.
    """
    if given is None:
        return Map({}, [])
    if isinstance(given, Mapping):
        return Map({_text(key): _text(value) for key, value in given.items()}, [])
    try:
        found = tomllib.loads(Path(given).read_text())
    except OSError as error:
        raise ValueError(f"the map {str(given)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the map {str(given)!r} is no TOML: {error}") from error
    unknown = set(found) - {"names", "leaf", "alone"}
    if unknown:
        raise ValueError(f"the map {str(given)!r} has {sorted(unknown)[0]!r}; it may have [names] and [[leaf]]")
    pairs = [_pair(str(given), entry) for entry in found.get("leaf", [])]
    return Map({_text(key): _text(value) for key, value in found.get("names", {}).items()}, pairs)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a map leads paths of A to paths of B, got {value!r}")
    return value.replace(".", "/")


def _pair(file: str, entry: Any) -> Pair:
    strange = set(entry) - _FIELDS if isinstance(entry, dict) else {repr(entry)}
    if strange or not {"a", "b"} <= set(entry):
        raise ValueError(f"the map {file!r}: a [[leaf]] needs a and b, and may not have {sorted(strange)}: {entry}")
    a, b = (View(_text(entry[side]), _layout(entry, side)) for side in "ab")
    return Pair(a, b, "the map", 1.0)


def _layout(entry: Mapping[str, Any], side: str) -> Layout:
    given = {field: entry.get(f"{side}_{field}") for field in Layout._fields}
    numbers: dict[str, Any] = {field: tuple(map(int, value)) for field, value in given.items() if value is not None}
    gates = numbers.pop("gates", None)
    return Layout(**numbers, gates=Gates(gates[0], gates[1:]) if gates else None)


def written(pairs: Iterable[Pair], alone_a: Iterable[str], alone_b: Iterable[str]) -> str:
    """An alignment as a TOML file that `read` reads."""
    lines = [_ABOUT]
    for pair in pairs:
        lines += ["[[leaf]]", f"a = {json.dumps(pair.a.path)}", f"b = {json.dumps(pair.b.path)}"]
        for side, view in (("a", pair.a), ("b", pair.b)):
            for field, value in view.layout._asdict().items():
                if value is not None:
                    numbers = [value.axis, *value.order] if isinstance(value, Gates) else list(value)
                    lines.append(f"{side}_{field} = {json.dumps(numbers)}")
        lines += [f"how = {json.dumps(pair.how)}", f"sure = {pair.sure:.2f}", ""]
    lines += ["[alone]", f"a = {json.dumps(list(alone_a))}", f"b = {json.dumps(list(alone_b))}", ""]
    return "\n".join(lines)
