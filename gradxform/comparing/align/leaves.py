"""The leaves of a recording, as they are matched.

What their paths say across frameworks: modules under other names, and the role of a leaf in its module. Fused
projections and gates are parts, where the other recording has parts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gradxform.comparing.layouts import SAME, Gates, Layout, Shape
from gradxform.functions.conventions import ALIASES, FUSED, GATES, OTHER_GATES, ROLES, WRAPPERS

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
def name_of(path: str, axes: int) -> Name:
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


_MOST_SECTIONS = 256
_LAST = ("weight", "bias", "kernel")


class Leaf(NamedTuple):
    """A leaf of a recording, or a part of one, under the name that it is matched by."""

    name: str
    path: str
    layout: Layout
    shape: Shape
    sizes: tuple[int, ...] = ()
    """Of a part of a fused projection, the sizes of all parts along the axis."""

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
        if not self.sizes or self.layout.part is None:
            return
        (axis, start, stop, *_), common = self.layout.part, math.gcd(*self.sizes)
        counts = (count for count in range(2, min(common, _MOST_SECTIONS) + 1) if common % count == 0)
        yield from (Layout(part=(axis, start // count, stop // count, count)) for count in counts)


def in_order(leaves: Sequence[Leaf]) -> Sequence[Leaf]:
    """Leaves in the order of the network: as recorded, or by their numbers if they are merely sorted."""
    paths = [leaf.name for leaf in leaves]
    return leaves if paths != sorted(paths) else sorted(leaves, key=lambda leaf: _natural(leaf.name))


@lru_cache(maxsize=1 << 18)
def _natural(path: str) -> list[tuple[int, str]]:
    """What orders layer2 before layer10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def leaves_of(shapes: Mapping[str, Shape], other: Mapping[str, Shape], cells: Mapping[str, Cell]) -> list[Leaf]:
    """The leaves of a recording that has these cells; fused ones as parts if the other recording has the parts."""
    unlike = {path: shape for path, shape in other.items() if shapes.get(path) != shape}
    linen = {token for path, shape in unlike.items() for token, _ in name_of(path, len(shape)).module}
    has_two_biases, modules = any("bias_ih" in path for path in other), Siblings()
    for path, shape in other.items():
        module, role = name_of(path, len(shape))
        if module:
            modules.setdefault((*module[:-1], role == "bias"), {})[module[-1][0]] = math.prod(shape)
    found: list[Leaf] = []
    for path, shape in shapes.items():
        if other.get(path) == shape:
            found.append(Leaf(path, path, SAME, shape))
            continue
        parts = list(_projections(path, shape, modules))
        cell = cell_at(path, cells)
        if cell and cell[1] and {f"i{gate}" for gate in cell[1]} <= linen:
            parts += _gates(path, shape, cell)
        if not parts and len(shape) == 2 and shape[0] == 2 and path.split("/")[-1] == "bias" and has_two_biases:
            halves = enumerate(("ih", "hh"))  # of inputs and states, which Keras's GRU keeps in one
            parts = [_part(f"{path}_{name}", path, shape, 0, place, 1) for place, name in halves]
        found += parts or [Leaf(path, path, SAME, shape)]
    return found


Siblings = dict[tuple[Any, ...], dict[str, int]]
"""The sizes of the weights, or of the biases, of the modules in a module, by their names."""


def _projections(path: str, shape: Shape, other: Siblings) -> Iterator[Leaf]:
    """Query, key and value of a joint projection, and the like; keys and values may be fewer than queries."""
    module, _, last = path.lower().rpartition("/")
    if last in _LAST:
        module, _, joint = module.rpartition("/")
    else:  # in_proj_weight
        joint, _, end = last.rpartition("_")
        joint, last = (joint, end) if end in _LAST else (last, "weight")
    for pattern, tokens in FUSED:
        if not shape or not pattern.match(joint):
            continue
        axis = len(shape) - 1 if last == "kernel" or joint == "c_attn" else 0
        found = (x for (*_, bias), x in other.items() if bias == (last == "bias") and x.keys() >= {*tokens})
        each = (tuple(x[token] for token in tokens) for x in found)
        sizes = next((x for x in each if sum(x) == math.prod(shape)), ())
        rows = tuple(size * shape[axis] // math.prod(shape) for size in sizes)
        starts = itertools.accumulate(rows, initial=0)
        for token, size, start in zip(tokens, rows, starts, strict=False):
            yield _part(f"{module}/{token}/{last}".strip("/"), path, shape, axis, start, size)._replace(sizes=rows)


def _gates(path: str, shape: Shape, cell: Cell) -> Iterator[Leaf]:
    """The gates of a fused recurrent weight, as Flax's linen cells have them, each a module."""
    name, last, axis = name_of(path, 2), path.rpartition("/")[2], cell[0] % len(shape)
    kind = "bias" if name.role.startswith("bias") else "weight" if last.startswith("weight") else "kernel"
    side, size = "i" if name.role in ("matrix", "bias of the input") else "h", shape[axis] // len(cell[1])
    modules = [token if number < 0 else f"{token}_{number}" for token, number in name.module]
    for place, gate in enumerate(cell[1]):
        yield _part("/".join((*modules, f"{side}{gate}", kind)), path, shape, axis, place * size, size)


def _part(name: str, path: str, shape: Shape, axis: int, start: int, size: int) -> Leaf:
    new = (*shape[:axis], size, *shape[axis + 1 :])
    return Leaf(name, path, Layout(part=(axis, start, start + size)), new)


_HIDDEN = re.compile(r"^weight_hh(_l\d+)?(_reverse)?$")
Cell = tuple[int, str]
"""The axis of the gates of a recurrent layer, and their order; empty if it is not known."""


def cells_of(shapes: Mapping[str, Shape]) -> dict[str, Cell]:
    """The recurrent layers of a recording, by the path of the module, from the shape of one weight of each."""
    found: dict[str, Cell] = {}
    for path, shape in shapes.items():
        module, _, last = path.rpartition("/")
        family = "torch" if _HIDDEN.match(last) else "keras" if last == "recurrent_kernel" else ""
        if path.endswith("dense_h/kernel"):
            family, module = "flax", module.rpartition("/")[0]
        if family and len(shape) == 2 and all(shape):
            many, one = shape if family == "torch" else shape[::-1]
            if many % one == 0:
                order = OTHER_GATES.get((family, many // one), GATES.get(many // one, ""))
                found[module] = 0 if family == "torch" else -1, order
    return found


def cell_at(path: str, cells: Mapping[str, Cell]) -> Cell | None:
    """The cell that a leaf is in."""
    module = path.rpartition("/")[0]
    return cells.get(module) or cells.get(module.rpartition("/")[0] if module.endswith(("dense_i", "dense_h")) else "")


def gates_between(a: Cell | None, b: Cell | None, shape: Shape) -> Gates | None:
    """The order of A's gates that is B's, along the axis that has all gates; None if it is the same or unknown."""
    if a is None or b is None or a[1] == b[1] or {*a[1]} != {*b[1]} or not shape:
        return None
    axis = a[0] % len(shape)
    return None if shape[axis] % len(a[1]) else (axis, *map(a[1].index, b[1]))
