"""The leaves of a recording, as they are matched: fused projections and gates as parts, where the other has parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradxform.comparing import names
from gradxform.comparing.layouts import SAME, Layout, Shape

_FUSED = re.compile(r"^(in_proj|qkv|c_attn|query_key_value|qkv_proj|wqkv)(?:[_/](weight|bias|kernel))?$")
_THIRDS = ("query", "key", "value")
_GATES = {"kernel": ("ii", "if", "ig", "io"), "recurrent": ("hi", "hf", "hg", "ho"), "bias": ("hi", "hf", "hg", "ho")}
"""The gates of Flax's linen cells, each a module, in the order that PyTorch, Keras and nnx have them in."""


class Leaf(NamedTuple):
    """A leaf of a recording, or a part of one, under the name that it is matched by."""

    name: str
    path: str
    layout: Layout
    shape: Shape
    place: int


def leaves_of(shapes: Mapping[str, Shape], other: Sequence[str]) -> list[Leaf]:
    """The leaves of a recording; fused ones as parts if the paths of the other recording have the parts."""
    parted = {token for path in other for token in names.read(path).module}
    found: list[Leaf] = []
    for place, (path, shape) in enumerate(shapes.items()):
        parts: Iterator[Leaf] = iter(())
        if set(_THIRDS) <= parted:
            parts = _thirds(path, shape, place)
        if set(_GATES["kernel"]) <= parted:
            parts = _gates(path, shape, place)
        found += list(parts) or [Leaf(path, path, SAME, shape, place)]
    return found


def _thirds(path: str, shape: Shape, place: int) -> Iterator[Leaf]:
    """Query, key and value of a joint projection."""
    module, _, last = path.replace(".", "/").rpartition("/")
    if last in ("weight", "bias", "kernel"):
        module, _, joint = module.rpartition("/")
        match = _FUSED.match(f"{joint}/{last}")
    else:
        match = _FUSED.match(last)
    if match is None or not shape:
        return
    role = match[2] or "weight"
    axis = len(shape) - 1 if role == "kernel" or match[1] == "c_attn" else 0
    for third, name in enumerate(_THIRDS):
        yield _part(f"{module}/{name}/{role}".strip("/"), path, shape, axis, third, 3, place)


def _gates(path: str, shape: Shape, place: int) -> Iterator[Leaf]:
    """The four gates of a fused recurrent weight."""
    name = names.read(path)
    role = next((role for role in _GATES if role in name.role), None)
    last = path.rpartition("/")[2]
    module = "/".join(name.module)
    if role is None or not shape or len(shape) > 2 or not re.search("lstm|_ih|_hh|recurrent|cell|rnn", path.lower()):
        return
    axis = 0 if last.startswith(("weight", "bias")) or len(shape) == 1 else len(shape) - 1
    kind = "bias" if role == "bias" else "weight" if last.startswith("weight") else "kernel"
    if shape[axis] % 4 == 0:
        for gate, token in enumerate(_GATES[role]):
            yield _part(f"{module}/{token}/{kind}".strip("/"), path, shape, axis, gate, 4, place)


def _part(name: str, path: str, shape: Shape, axis: int, index: int, count: int, place: int) -> Leaf:
    size = shape[axis] // count
    new = (*shape[:axis], size, *shape[axis + 1 :])
    return Leaf(name, path, Layout(part=(axis, index * size, (index + 1) * size)), new, place)


def size_of(leaf: Leaf) -> int:
    """The number of elements of a leaf."""
    return math.prod(leaf.shape)
