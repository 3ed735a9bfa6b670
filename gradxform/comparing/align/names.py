"""What the paths of leaves say across frameworks: modules under other names, and the role of a leaf in its module."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gradxform.functions.conventions import ALIASES, ROLES, WRAPPERS

Module = tuple[tuple[str, int], ...]
"""Names and numbers of modules, from the outermost on."""
_NONE = -1
"""The number of a module without one, as of the first of dense, dense_1 and dense_2."""

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
    *modules, last = _in_order(path.lower().split("/"))
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
    found: list[tuple[str, int]] = []
    for module in modules:
        match = re.fullmatch(r"(.*?)_?(\d+)", module)
        token, number = (match[1], int(match[2])) if match else (module, _NONE)
        token = "" if token in WRAPPERS else ALIASES.get(token, token)
        if not token and found and found[-1][1] == _NONE:
            found[-1] = found[-1][0], number
        elif token or number != _NONE:
            found.append((token, number))
    return tuple(found)


def without_common(modules: Sequence[Module]) -> list[Module]:
    """The modules without those that all of them begin with."""
    ends = zip(min(modules), max(modules), strict=False) if len(modules) > 1 else ()
    shared = len([*itertools.takewhile(lambda keys: keys[0] == keys[1], ends)])
    return [module[shared:] for module in modules]


def without_numbers(module: Module) -> Module:
    """The names of modules alone: fc1 is what dense_1 may be."""
    return tuple((name, _NONE) for name, _ in module)


def in_order(paths: Sequence[str]) -> list[int]:
    """The places of paths in the order of the network: as recorded, or by their numbers if they are merely sorted."""
    places = list(range(len(paths)))
    if list(paths) != sorted(paths):
        return places
    return sorted(places, key=lambda i: _natural(paths[i]))


@lru_cache(maxsize=1 << 18)
def _natural(path: str) -> list[tuple[int, str]]:
    """What orders layer2 before layer10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]
