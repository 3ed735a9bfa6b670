"""Which leaf of one recording is which of the other, and in which layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradxform.comparing import assigning, names
from gradxform.comparing.layouts import SAME, Layout, Shape, blocks, candidates, conventional, cosine
from gradxform.comparing.leaves import Leaf, leaves_of
from gradxform.comparing.mapping import Map, Pair, View
from gradxform.recording.reading import Recording

_ALIKE, _UNLIKE = 0.99, 0.9
"""Cosines from which values are the same ones, and below which they are others."""


class Alignment(NamedTuple):
    """The pairs in the order of the network, and what has no partner."""

    pairs: list[Pair]
    alone_a: list[str]
    alone_b: list[str]
    trees: list[str]
    """The trees that both have: "gradients", "parameters", "updates"."""

    @property
    def words(self) -> str:
        """What was done, and how sure it is."""
        hows: dict[str, int] = {}
        for pair in self.pairs:
            hows[pair.how] = hows.get(pair.how, 0) + 1
        done = ", ".join(f"{count} by {how}" for how, count in hows.items())
        least = min(self.pairs, key=lambda pair: pair.sure, default=None)
        doubt = "" if least is None or least.sure >= _UNLIKE else f"; least sure: {least.label} ({least.sure:.0%})"
        lacks = f"; without a partner: {len(self.alone_a)} of A, {len(self.alone_b)} of B"
        return f"{len(self.pairs)} pairs: {done}{doubt}" + (lacks if self.alone_a or self.alone_b else "")


class _Side:
    """One recording at the step that is aligned by."""

    def __init__(self, recording: Recording, step: int, trees: Sequence[str], basis: str) -> None:
        self.recording, self.step, self.basis = recording, step, basis
        self.trees = trees
        self.shapes: dict[str, Shape] = {}
        for tree in trees:
            self.shapes |= {p: s for p, s in recording.shapes(step, tree).items() if p not in self.shapes}

    def read_all(self, leaf: Leaf) -> list[Any]:
        """The values of a leaf in each tree; None where a tree lacks it."""
        trees = [tree for tree in self.trees if tree != "updates"]
        return [
            leaf.layout.of(self.recording.read(self.step, tree, leaf.path))
            if leaf.path in self.recording.shapes(self.step, tree)
            else None
            for tree in trees
        ]

    def read(self, leaf: Leaf) -> Any:
        """The values of a leaf."""
        order = [self.basis, *self.trees]
        tree = next(tree for tree in order if leaf.path in self.recording.shapes(self.step, tree))
        return leaf.layout.of(self.recording.read(self.step, tree, leaf.path))


def align(a: Recording, b: Recording, step: int, trees: Sequence[str], given: Map) -> Alignment:
    """The pairs of two recordings at a step.

    Raises:
        ValueError: a map with paths that a recording lacks; no pair at all.
    """
    basis = "parameters" if "parameters" in trees else trees[0]
    side_a, side_b = _Side(a, step, trees, basis), _Side(b, step, trees, basis)
    for side, paths in (("A", [p.a.path for p in given.pairs]), ("B", [p.b.path for p in given.pairs])):
        shapes = (side_a if side == "A" else side_b).shapes
        lacking = [path for path in paths if path not in shapes]
        if lacking:
            raise ValueError(f"the map has {lacking[0]!r}, and {side} has no such leaf; it has {', '.join(shapes)}")
    pairs = list(given.pairs)
    taken_a, taken_b = ({getattr(p, side).path for p in pairs} for side in "ab")
    left_a = [leaf for leaf in leaves_of(side_a.shapes, list(side_b.shapes)) if leaf.path not in taken_a]
    left_b = [leaf for leaf in leaves_of(side_b.shapes, list(side_a.shapes)) if leaf.path not in taken_b]
    values = not (a.norms_only or b.norms_only)
    for how, match in (
        ("the map", lambda x, y: _by_map(x, y, given.names)),
        ("equal paths", _by_path),
        ("names", _by_name),
        ("shape and value", lambda x, y: assigning.assigned(x, y, side_a.read_all, side_b.read_all) if values else []),
    ):
        found = match(left_a, left_b)
        done_a, done_b = set(), set()
        for i, j in found:
            pair = _paired(left_a[i], left_b[j], side_a, side_b, how, basis if values else "")
            if pair is not None:
                pairs.append(pair)
                done_a.add(i)
                done_b.add(j)
        left_a = [leaf for i, leaf in enumerate(left_a) if i not in done_a]
        left_b = [leaf for j, leaf in enumerate(left_b) if j not in done_b]
    if not pairs:
        raise ValueError(
            f"no leaf of A is one of B: A has {_some(side_a.shapes)}, B has {_some(side_b.shapes)}; write a map (--map)"
        )
    alone_a, alone_b = (list(dict.fromkeys(leaf.path for leaf in left)) for left in (left_a, left_b))
    return Alignment(_in_order(pairs, side_a.shapes, side_b.shapes), alone_a, alone_b, list(trees))


def _some(shapes: Mapping[str, Shape]) -> str:
    shown = ", ".join(f"{path!r} {shape}" for path, shape in list(shapes.items())[:3])
    return shown + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _by_map(a: Sequence[Leaf], b: Sequence[Leaf], names_given: Mapping[str, str]) -> list[tuple[int, int]]:
    """Leaves that a user's names lead to one another, those of whole modules by the rest of their names."""
    found = []
    for i, leaf in enumerate(a):
        for old in sorted(names_given, key=len, reverse=True):
            path = leaf.name.replace(".", "/")
            if path == old or path.startswith(f"{old}/"):
                new = f"{names_given[old]}{path[len(old) :]}"
                fits = [j for j, other in enumerate(b) if names.read(other.name) == names.read(new)]
                near = [j for j in (fits or range(len(b))) if _leads(new, b[j].name)]
                if near:
                    found.append((i, near[0]))
                break
    return found


def _leads(new: str, path: str) -> bool:
    one, other = names.read(new), names.read(path)
    return one.module == other.module and bool(one.role & other.role)


def _by_path(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[tuple[int, int]]:
    places = {leaf.name.replace(".", "/"): j for j, leaf in enumerate(b)}
    return [(i, places[key]) for i, leaf in enumerate(a) if (key := leaf.name.replace(".", "/")) in places]


def _by_name(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[tuple[int, int]]:
    """Leaves of modules of one name that have one role, if there is one of them on each side."""
    names_a, names_b = (names.without_common([names.read(leaf.name) for leaf in leaves]) for leaves in (a, b))
    found = []
    for i, one in enumerate(names_a):
        fits = [j for j, other in enumerate(names_b) if one.module == other.module and one.role & other.role]
        if len(fits) != 1:
            continue
        back = [
            k for k, other in enumerate(names_a) if other.module == one.module and other.role & names_b[fits[0]].role
        ]
        if back == [i]:
            found.append((i, fits[0]))
    return found if 2 * len(found) >= min(len(a), len(b)) else []  # a few may be names of kinds, numbered


def _paired(a: Leaf, b: Leaf, side_a: _Side, side_b: _Side, how: str, basis: str) -> Pair | None:
    """Two leaves as a pair, `a` in the layout of `b`; None where no layout brings them together."""
    layouts = list(candidates(a.shape, b.shape))
    if not layouts:
        return None
    usual = conventional(a.name, b.name, a.shape, b.shape)
    first = usual or layouts[0]
    sure = {"the map": 1.0, "equal paths": 1.0, "names": 0.95}.get(how, 0.5)
    if how == "equal paths" and a.shape == b.shape and first == SAME:
        return _made(a, b, first, how, sure)
    if not basis or (len(layouts) == 1 and how != "shape and value" and basis != "parameters"):
        return _made(a, b, first, how, sure)
    one, other = side_a.read(a), side_b.read(b)
    fits = {layout: abs(cosine(layout.of(one), other)) for layout in layouts}
    best = max(layouts, key=lambda layout: (fits[layout], layout == first))
    decided = basis == "parameters" or how == "shape and value"
    if fits[first] < _UNLIKE and fits[best] < _UNLIKE and basis == "parameters":
        gates = blocks(first.of(one), other)
        if gates is not None:
            return _made(a, b, first, how, 0.9, gates)
    if not (decided and fits[best] > _ALIKE and fits[first] < _UNLIKE) and (usual is not None or fits[best] < _ALIKE):
        best = first
    if how == "shape and value":
        sure = 0.99 if fits[best] > _ALIKE else 0.3 + 0.5 * fits[best]
    return _made(a, b, best, how, sure)


def _made(a: Leaf, b: Leaf, layout: Layout, how: str, sure: float, gates: Any = None) -> Pair:
    own = layout._replace(part=a.layout.part)
    if gates is not None:  # blocks of the array beside the other, so they are reordered there
        return Pair(View(a.path, own), View(b.path, b.layout._replace(gates=_inverse(gates))), how, sure)
    return Pair(View(a.path, own), View(b.path, b.layout), how, sure)


def _inverse(gates: Any) -> Any:
    order = [0] * len(gates.order)
    for place, block in enumerate(gates.order):
        order[block] = place
    return gates._replace(order=tuple(order))


def _in_order(pairs: list[Pair], a: Mapping[str, Shape], b: Mapping[str, Shape]) -> list[Pair]:
    """The pairs in the order of the network: that of a recording whose paths are not merely sorted, if one is not."""
    side, paths = ("b", list(b)) if list(a) == sorted(a) and list(b) != sorted(b) else ("a", list(a))
    places = {path: place for place, path in enumerate(paths)}
    return sorted(
        pairs, key=lambda pair: (places[getattr(pair, side).path], getattr(pair, side).layout.part or (0, 0, 0))
    )
