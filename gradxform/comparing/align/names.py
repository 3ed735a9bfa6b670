"""What the paths of leaves say across frameworks: modules under other names, and the role of a leaf in its module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gradxform.functions.conventions import ALIASES, ROLES, WRAPPERS

Module = tuple[str, ...]
"""Names and numbers of modules, from the outermost on."""

_LAYER = re.compile(r"^(weight|bias)_(ih|hh)_l(\d+)(_reverse)?$")


class Name(NamedTuple):
    """A path, read."""

    module: Module
    """The modules around, without wrappers, under one name in all frameworks."""
    role: str
    """Of `ROLES`; else the last key, which counts as a module then."""

    @property
    def kind(self) -> str:
        """What the leaf may be at least: a matrix where the name is unknown."""
        return "bias" if self.role.startswith("bias") else self.role if self.is_known else "matrix"

    @property
    def is_known(self) -> bool:
        """Whether the role is one that the frameworks have a name for."""
        return self.role in ROLES.values()


@lru_cache(maxsize=1 << 18)
def read(path: str, axes: int) -> Name:
    """The modules and the role that the path of a leaf with so many axes names."""
    *modules, last = _in_order(path.lower().replace(".", "/").split("/"))
    if modules[-1:] == ["dense_h"] and last == "kernel":  # of Flax's recurrent cells
        last = "weight_hh"
    if modules[-1:] in (["dense_i"], ["dense_h"]):
        modules = modules[:-1]
    if last not in ROLES:
        return Name(_tokens([*modules, last]), last)
    return Name(_tokens(modules), "scale" if last == "weight" and axes < 2 else ROLES[last])


def _in_order(parts: Sequence[str]) -> list[str]:
    """The parts of a path, a layer's number and direction in PyTorch's recurrent weights before the name."""
    match = _LAYER.match(parts[-1])
    if not match:
        return list(parts)
    return [*parts[:-1], match[3], *(["backward"] if match[4] else []), f"{match[1]}_{match[2]}"]


def _tokens(modules: Iterable[str]) -> Module:
    found: list[str] = []
    for module in modules:
        match = re.fullmatch(r"(.*?)_?(\d+)", module)
        for token in (match[1], match[2]) if match else (module,):
            if token and token not in WRAPPERS:
                found.append(ALIASES.get(token, token))
    return tuple(found)


def without_common(modules: Sequence[Module]) -> list[Module]:
    """The modules without those that all of them begin with."""
    shared = 0
    while len(modules) > 1 and len({module[: shared + 1] for module in modules if len(module) > shared}) == 1:
        if any(len(module) <= shared for module in modules):
            break
        shared += 1
    return [module[shared:] for module in modules]


def ranked(a: list[Module], b: list[Module]) -> tuple[list[Module], list[Module]]:
    """Modules with numbers counted from 0 and without gaps: fc1 and fc2 are dense and dense_1, layers 0, 2 are 0, 1.

    Where one side has more numbers, they are left as they are.
    """
    place = 0
    while any(len(module) >= place for module in (*a, *b)):
        one, other = _numbers(a, place), _numbers(b, place)
        alike = {
            prefix: (one[prefix], other[prefix])
            for prefix in one.keys() & other.keys()
            if len(one[prefix]) == len(other[prefix]) and {*one[prefix], *other[prefix]} != {_NONE}
        }
        a, b = (
            [_ranked(module, place, {prefix: numbers[side] for prefix, numbers in alike.items()}) for module in modules]
            for side, modules in enumerate((a, b))
        )
        place += 1
    return a, b


_NONE = -1
"""The number of a module without one, as of the first of dense, dense_1 and dense_2."""


def _number(module: Module, place: int) -> int:
    return int(module[place]) if len(module) > place and module[place].isdecimal() else _NONE


def _numbers(modules: Iterable[Module], place: int) -> dict[Module, list[int]]:
    """The numbers at a place, in order, for each beginning of a module."""
    found: dict[Module, set[int]] = {}
    for module in modules:
        number = _number(module, place)
        if len(module) >= place and (place or number != _NONE or not module):
            found.setdefault(module[:place], set()).add(number)
    for numbers in found.values():
        if 0 in numbers:
            numbers.discard(_NONE)  # a neighbour of what is numbered, not the first of it
    return {prefix: sorted(numbers) for prefix, numbers in found.items()}


def _ranked(module: Module, place: int, alike: Mapping[Module, list[int]]) -> Module:
    number, numbers = _number(module, place), alike.get(module[:place], [])
    if len(module) < place or number not in numbers or not (place or number != _NONE or not module):
        return module
    rank = () if len(numbers) == 1 else (str(numbers.index(number)),)
    return (*module[:place], *rank, *module[place + (number != _NONE) :])


def in_order(paths: Sequence[str]) -> list[int]:
    """The places of paths in the order of the network: as recorded, or by their numbers if they are merely sorted."""
    places = list(range(len(paths)))
    if list(paths) != sorted(paths):
        return places
    return sorted(
        places, key=lambda i: [(int(t), "") if t.isdecimal() else (-1, t) for t in re.split(r"(\d+)", paths[i])]
    )
