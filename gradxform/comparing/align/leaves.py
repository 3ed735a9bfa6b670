"""The leaves of a recording, as they are matched.

What their paths say across frameworks: modules under other names, and the role of a leaf in its module. Fused
projections, gates and pairs of biases are parts, where the other recording has parts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gradxform.comparing.layouts import SAME, Gates, Layout, Shape
from gradxform.functions.conventions import ALIASES, FUSED, GATES, OTHER_GATES, ROLES, SPELLINGS, WRAPPERS

Module = tuple[tuple[str, int], ...]
"""Names and numbers of modules, from the outermost on."""
_NONE = -1
"""The number of a module without one, as of the first of dense, dense_1 and dense_2."""


class Name(NamedTuple):
    """A path, read."""

    module: Module
    """The modules around, without wrappers, under one name in all frameworks."""
    role: str
    """Of `ROLES`; empty if the last key is none that the frameworks have: it counts as a module then."""


@lru_cache(maxsize=1 << 18)
def _spelled(path: str) -> str:
    """A path as all frameworks would write it."""
    path = path.lower()
    for pattern, new in SPELLINGS:
        path = pattern.sub(new, path)
    return path


@lru_cache(maxsize=1 << 18)
def name_of(path: str, axes: int) -> Name:
    """The modules and the role that the path of a leaf with so many axes names."""
    *modules, last = _spelled(path).split("/")
    if last not in ROLES:
        return Name(_tokens([*modules, last]), "")
    return Name(_tokens(modules), "scale" if last == "weight" and axes < 2 else ROLES[last])


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


def common(modules: Sequence[Module]) -> int:
    """How many modules all of them begin with."""
    ends = zip(min(modules), max(modules), strict=False) if modules else ()
    return len([*itertools.takewhile(lambda keys: keys[0] == keys[1], ends)])


def shortened(module: Module, begin: int, numbers: bool) -> Module:
    """A module without the first ones, and without numbers, which may count from 0 or 1, with gaps or on.

    fc1 and fc2 are dense and dense_1, or dense_6 and dense_7.
    """
    return tuple((name, number if numbers else _NONE) for name, number in module[begin:])


Cell = tuple[int, str]
"""The axis of the gates of a recurrent layer, and their order; empty if it is not known."""
_MOST_SECTIONS = 256


class Leaf(NamedTuple):
    """A leaf of a recording, or a part of one, under the name that it is matched by."""

    name: str
    path: str
    layout: Layout
    shape: Shape
    cell: Cell | None
    """That of the recurrent layer that it is in."""
    sizes: tuple[int, ...] = ()
    """Of a part, the sizes of all parts along the axis."""

    @property
    def about(self) -> Name:
        """What the name says."""
        return name_of(self.name, len(self.shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def variants(self) -> Iterator[Layout]:
        """The places where a part may stand: behind the parts before it, or in each of some sections, as of heads."""
        yield self.layout
        if self.layout.part is not None:
            (axis, start, stop), common = self.layout.part, math.gcd(*self.sizes)
            counts = (count for count in range(2, min(common, _MOST_SECTIONS) + 1) if common % count == 0)
            yield from (Layout(part=(axis, start // count, stop // count, count)) for count in counts)


def in_order(leaves: Sequence[Leaf]) -> Sequence[Leaf]:
    """Leaves in the order of the network: as recorded, or by their numbers if they are merely sorted."""
    paths = [leaf.name for leaf in leaves]
    return leaves if paths != sorted(paths) else sorted(leaves, key=lambda leaf: _natural(leaf.name))


def _natural(path: str) -> list[tuple[int, str]]:
    """What orders layer2 before layer10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def leaves_of(shapes: Mapping[str, Shape], other: Mapping[str, Shape]) -> list[Leaf]:
    """The leaves of a recording; fused ones as parts if the other recording has parts of their sizes."""
    known = dict(shapes.items() & other.items())
    cells = _cells({path: shape for path, shape in shapes.items() if path not in known})
    groups = _groups({path: shape for path, shape in other.items() if path not in known})
    found: list[Leaf] = []
    for path, shape in shapes.items():
        cell = None if path in known else cells.get(name_of(path, len(shape)).module)
        whole = Leaf(path, path, SAME, shape, cell)
        parts = [] if path in known else _parts(whole, groups)
        found += parts or [whole]
    return found


def _cells(shapes: Mapping[str, Shape]) -> dict[Module, Cell]:
    """The recurrent layers of a recording, from the shape of one weight of each."""
    found: dict[Module, Cell] = {}
    for path, shape in shapes.items():
        last = re.search(r"weight_hh|recurrent_kernel", _spelled(path))
        if last and len(shape) == 2 and all(shape) and max(shape) % min(shape) == 0:
            count = max(shape) // min(shape)
            order = OTHER_GATES.get((last[0], count), GATES.get(count, ""))
            found[name_of(path, 2).module] = 0 if shape[0] > shape[1] else -1, order
    return found


def _groups(shapes: Mapping[str, Shape]) -> list[dict[str, int]]:
    """What a recording has side by side, once each: sizes of leaves by role, and of modules' weights or biases."""
    found: dict[tuple[object, ...], dict[str, int]] = {}
    for path, shape in shapes.items():
        module, role = name_of(path, len(shape))
        found.setdefault(module, {})[role] = math.prod(shape)
        if module:
            found.setdefault((*module[:-1], role == "bias"), {})[module[-1][0]] = math.prod(shape)
    return [dict(group) for group in {frozenset(group.items()) for group in found.values()}]


def _parts(whole: Leaf, groups: Sequence[Mapping[str, int]]) -> list[Leaf]:
    """A leaf as parts that a group has, of equal sizes but for those that are known."""
    shape, total = whole.shape, whole.size
    for axis, names in _splits(whole):
        each = ([group.get(key, total // len(names)) for key in names] for group in groups if group.keys() & names)
        sizes = tuple(size * shape[axis] // total for size in next((x for x in each if sum(x) == total > 0), ()))
        starts = itertools.accumulate(sizes, initial=0)
        if sizes:
            return [
                Leaf(
                    name,
                    whole.path,
                    Layout(part=(axis, start, start + size)),
                    (*shape[:axis], size, *shape[axis + 1 :]),
                    whole.cell,
                    sizes,
                )
                for name, size, start in zip(names.values(), sizes, starts, strict=False)
            ]
    return []


def _splits(leaf: Leaf) -> Iterator[tuple[int, dict[str, str]]]:
    """The axis along which a leaf may have parts, and their names, by what they are called in a group."""
    path, axes = _spelled(leaf.path), len(leaf.shape)
    for joint, tokens in FUSED.items():  # query, key and value of a joint projection, and the like
        if axes and (match := re.fullmatch(rf"(.*/)?({joint})(?:[/_](weight|bias|kernel))?", path)):
            last = match[3] or "weight"
            axis = axes - 1 if last == "kernel" or match[2] == "c_attn" else 0
            yield axis, {token: f"{match[1] or ''}{token}/{last}" for token in tokens}
    if leaf.cell is not None and leaf.cell[1]:  # the gates, as Flax's linen cells have them, each a module
        module, _, last = path.rpartition("/")
        side = "i" if leaf.about.role in ("matrix", "bias of the input") else "h"
        kind = next((kind for kind in ("bias", "weight") if last.startswith(kind)), "kernel")
        yield leaf.cell[0] % axes, {f"{side}{gate}": f"{module}/{side}{gate}/{kind}" for gate in leaf.cell[1]}
        if axes == 2 and last == "bias":  # of inputs and states, which Keras's GRU keeps in one
            ends = {"bias of the input": "ih", "bias_hh": "hh"}
            yield 0, {token: f"{path}_{end}" for token, end in ends.items()}


def gates_between(a: Leaf, b: Leaf) -> Gates | None:
    """The order of A's gates that is B's, along the axis that has all gates; None if it is the same or unknown."""
    if not (a.cell and b.cell and a.shape) or a.cell[1] == b.cell[1] or {*a.cell[1]} != {*b.cell[1]}:
        return None
    axis = a.cell[0] % len(a.shape)
    return None if a.shape[axis] % len(a.cell[1]) else (axis, *map(a.cell[1].index, b.cell[1]))
