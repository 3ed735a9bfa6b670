"""Which leaf of one recording is which of the other, and in which layout: by what proves most first."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gradxform.comparing import mapping
from gradxform.comparing.align.leaves import (
    Leaf,
    Module,
    cells_of,
    in_order,
    leaves_of,
    name_of,
    without_common,
    without_numbers,
)
from gradxform.comparing.align.pairing import Values, equal, paired
from gradxform.comparing.constants import SURE
from gradxform.comparing.findings import some
from gradxform.comparing.layouts import Layout, Shape
from gradxform.comparing.mapping import Map, Pair
from gradxform.recording.reading import Recording

Both = tuple[Leaf, Leaf]
Keyed = tuple[Any, Leaf]
_first = operator.itemgetter(0)


class Alignment(NamedTuple):
    """The pairs in the order of the network, and what has no partner."""

    pairs: list[Pair]
    alone_a: list[str]
    alone_b: list[str]
    not_aligned: frozenset[str] = frozenset()
    """Paths of A and B without a partner that may have one under another layout, since the other side lacks one too."""

    @property
    def words(self) -> str:
        """What was done, and how sure it is."""
        done = ", ".join(f"{count} by {how}" for how, count in Counter(pair.how for pair in self.pairs).items())
        least = min(self.pairs, key=lambda pair: pair.sure)
        doubt = f"; least sure: {least.label} ({least.sure:.0%})" if least.sure < SURE else ""
        lacks = f"; without a partner: {len(self.alone_a)} of A, {len(self.alone_b)} of B"
        open_ = f"; not aligned: {some(sorted(self.not_aligned))}: write a map" if self.not_aligned else ""
        return f"{len(self.pairs)} pairs: {done}{doubt}" + (lacks if self.alone_a or self.alone_b else "") + open_


def align(a: Recording, b: Recording, steps: Sequence[int], trees: Sequence[str], given: Map) -> Alignment:
    """The pairs of two recordings: by what proves most first, each with how sure it is.

    Equal paths prove most, then equal parameters, if they are no constants. Names and modules follow, then equal
    gradients, which a fault may have changed. What is left is paired by roles, shapes and order. Values are those of
    the first step.

    Raises:
        ValueError: a map with paths that a recording lacks; no pair at all.
    """
    shapes = [_shapes(side, steps, trees) for side in (a, b)]
    mapping.check(given, *shapes)
    values = not (a.norms_only or b.norms_only)
    telling = [tree for tree in ("parameters", "gradients") if tree in trees and values]
    read = {tree: (_reader(a, steps[0], tree), _reader(b, steps[0], tree)) for tree in telling}
    matching = _Matching(shapes, read, given)
    matching.run(given.names)
    if not matching.pairs:
        one, other = (some([f"{path!r} {shape}" for path, shape in side.items()]) for side in shapes)
        raise ValueError(f"no leaf of A is one of B: A has {one}, B has {other}; write a map (--map)")
    there = ({view.path for view in views} for views in zip(*(pair.views for pair in matching.pairs), strict=True))
    alone_a, alone_b = ([path for path in side if path not in found] for side, found in zip(shapes, there, strict=True))
    pairs = _in_order(matching.pairs, *map(list, shapes))
    return Alignment(pairs, alone_a, alone_b, _not_aligned(matching))


def _shapes(recording: Recording, steps: Sequence[int], trees: Sequence[str]) -> dict[str, Shape]:
    """The leaves of all steps: first those of a tree whose paths are not merely sorted, so in the network's order."""
    found = [recording.shapes(step, tree) for step in steps for tree in trees]
    ordered: dict[str, Shape] = {}
    for shapes in sorted(found, key=lambda shapes: list(shapes) == sorted(shapes)):
        ordered |= {path: shape for path, shape in shapes.items() if path not in ordered}
    return ordered


def _reader(recording: Recording, step: int, tree: str) -> Values:
    """What reads the values of a leaf in a tree, None where the tree lacks it, and keeps the last ones."""
    there = recording.shapes(step, tree)

    @lru_cache(maxsize=4)
    def whole(path: str) -> Any:
        return recording.read(step, tree, path)

    def read(leaf: Leaf, place: Layout | None) -> Any:
        return (place or leaf.layout).of(whole(leaf.path)) if leaf.path in there else None

    return read


class _Matching:
    """The leaves that are left, and the pairs that were made of others."""

    def __init__(self, shapes: Sequence[Mapping[str, Shape]], read: Mapping[str, tuple[Values, Values]], given: Map):
        self.read, self.pairs, self.cells = read, list(given.pairs), (cells_of(shapes[0]), cells_of(shapes[1]))
        self.made: list[tuple[Leaf, Leaf, float]] = []
        leaves = [leaves_of(shapes[side], shapes[1 - side], self.cells[side]) for side in (0, 1)]
        known = [{pair.views[side].path for pair in given.pairs} | given.alone[side] for side in (0, 1)]
        self.left = _without(leaves, [{leaf for leaf in leaves[side] if leaf.path in known[side]} for side in (0, 1)])
        self._equal: dict[str, dict[Leaf, set[Leaf]]] = {}

    def run(self, given: Mapping[str, str]) -> None:
        """Make pairs, by what proves most first."""
        if given:
            self.add("the map", list(_by_map(*self.left, given)))
        if self.are_renumbered():
            self.add("equal parameters", self.by_values("parameters"))
        self.add("equal paths", _zipped([(leaf.name, leaf) for leaf in side] for side in self.left))
        if not all(self.left):
            return
        self.add("equal parameters", self.by_values("parameters"))
        self.add("names", _by_name(*self.left))
        self.add("equal gradients", self.by_values("gradients"))
        self.add("equal parameters and order", self.by_values("parameters", alone=False))
        for axes in (2, 1, 0):  # matrices first, whose modules lead the vectors
            for key in (_kind, lambda leaf: leaf.size):
                sides = ([leaf for leaf in in_order(side) if len(leaf.shape) >= axes] for side in self.left)
                found = _zipped([(key(leaf), leaf) for leaf in side] for side in sides)
                self.add("shape alone", [both for both in found if _may_meet(*both)])

    def add(self, how: str, found: Sequence[Both], sure: Mapping[Leaf, float] | None = None) -> None:
        """Make pairs of leaves that are left, and of what they lead to; some are no surer than what led to them."""
        done: list[set[Leaf]] = [set(), set()]
        for one, other in found:
            pair = paired(one, other, how, self.read, self.cells)
            if pair is None and how == "the map":
                text = f"the map leads {one.path!r} {one.shape} to {other.path!r} {other.shape}"
                raise ValueError(f"{text}, and no layout brings them together")
            if pair is not None:
                self.pairs.append(pair._replace(sure=min(pair.sure, (sure or {}).get(one, 1.0))))
                self.made.append((one, other, self.pairs[-1].sure))
                done[0].add(one)
                done[1].add(other)
        self.left = _without(self.left, done)
        if all(self.left) and how not in ("the map", "equal paths", "equal parameters", "modules"):  # names come before
            self.add_modules()

    def add_modules(self) -> None:
        """Pair leaves of modules that other pairs have led to one another, where one leaf on each side has a role."""
        led: dict[Module, dict[Module, float]] = {}
        for one, other, sure in self.made:
            ends, end = led.setdefault(one.about.module, {}), other.about.module
            ends[end] = max(sure, ends.get(end, 0.0))
        near = {leaf: next(iter(ends)) for leaf in self.left[0] if len(ends := led.get(leaf.about.module, {})) == 1}
        sures = {leaf: led[leaf.about.module][end] for leaf, end in near.items()}
        sides = (near.items(), ((leaf, leaf.about.module) for leaf in self.left[1]))
        self.add("modules", _zipped(map(_in_modules, sides), alone=True), sures)

    def equal(self, tree: str) -> dict[Leaf, set[Leaf]]:
        """The leaves that are left and have equal values in a tree."""
        if tree not in self.read:
            return {}
        if tree not in self._equal:
            self._equal[tree] = equal(*self.left, *self.read[tree])
        left = set(self.left[1])
        return {leaf: self._equal[tree].get(leaf, set()) & left for leaf in self.left[0]}

    def by_values(self, tree: str, alone: bool = True) -> list[Both]:
        """Leaves of equal values in a tree: alone among all, or in their order."""
        near = {leaf: frozenset(others) for leaf, others in self.equal(tree).items()}
        ends = {other: group for group in near.values() for other in group}
        ones = [(near[leaf], leaf) for leaf in in_order(self.left[0]) if near.get(leaf)]
        others = [(ends[leaf], leaf) for leaf in in_order(self.left[1]) if leaf in ends]
        return _zipped((ones, others), alone)

    def are_renumbered(self) -> bool:
        """Whether paths mean other values in the other run: Keras counts dense, dense_1 on in each model.

        Where both sides have the same paths, or one of them has its values, these are believed.
        """
        paths = [{leaf.name: leaf for leaf in side} for side in self.left]
        shared = paths[0].keys() & paths[1].keys()
        if paths[0].keys() == paths[1].keys() or not shared:
            return False
        equals = self.equal("parameters")
        return not any(paths[1][path] in equals.get(paths[0][path], ()) for path in shared)


def _without(sides: Sequence[Sequence[Leaf]], taken: Sequence[Container[Leaf]]) -> tuple[list[Leaf], list[Leaf]]:
    one, other = ([leaf for leaf in side if leaf not in done] for side, done in zip(sides, taken, strict=True))
    return one, other


def _by_map(a: Sequence[Leaf], b: Sequence[Leaf], given: Mapping[str, str]) -> Iterator[Both]:
    """Leaves that a user's names lead to one another, those of whole modules by the rest of their names.

    Raises:
        ValueError: names that no leaf of a side has, or two leaves that are led to one.
    """
    for side, own, leaves in (("A", given.keys(), a), ("B", given.values(), b)):
        parts = [leaf.name.split("/") for leaf in leaves]
        there = {"/".join(path[:count]) for path in parts for count in range(1, len(path) + 1)}
        if wrong := next((name for name in own if name not in there), None):
            like = mapping.like(wrong, sorted(there))
            raise ValueError(f"the map has {wrong!r}, and no leaf or module of {side} is named so; {like}")
    others: dict[Any, Leaf] = {key: other for other in reversed(b) for key in (other.about, other.name)}
    ends: dict[Leaf, Leaf] = {}
    for leaf in a:
        keys = leaf.name.split("/")
        around = ("/".join(keys[:count]) for count in range(len(keys), 0, -1))
        old = next((old for old in around if old in given), None)
        if old is not None:
            new = given[old] + leaf.name[len(old) :]
            end = others.get(new) or others.get(name_of(new, len(leaf.shape)))
            if end in ends:
                raise ValueError(f"the map leads {ends[end].name!r} and {leaf.name!r} of A both to {end.name!r} of B")
            if end is not None:
                ends[end] = leaf
                yield leaf, end


def _by_name(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[Both]:
    """Leaves of modules of one name that have one role: as many on each side, in their order, or one of a number.

    Numbers count from 0 or 1, with gaps or on from another model: fc1 and fc2 are dense and dense_1.
    """
    sides, found = (a, b), list[Both]()
    for key in (without_numbers, tuple):
        modules = (without_common([leaf.about.module for leaf in side]) for side in sides)
        pairs = (sorted(zip(keys, side, strict=True), key=_first) for keys, side in zip(modules, sides, strict=True))
        named = ([(leaf, key(module)) for module, leaf in side] for side in pairs)
        found += _zipped(map(_in_modules, named), alone=key is tuple)
        sides = _without(sides, [{both[side] for both in found} for side in (0, 1)])
    return found if 2 * len(found) >= min(len(a), len(b)) else []  # a few may be names of kinds, numbered


def _in_modules(leaves: Iterable[tuple[Leaf, Module]]) -> list[Keyed]:
    """Leaves by their module, role and size."""
    return [((module, leaf.about.role, leaf.size), leaf) for leaf, module in leaves]


def _kind(leaf: Leaf) -> tuple[Any, ...]:
    """What leaves have in common that are paired by their order: the sizes of axes, and a role."""
    return (*sorted(size for size in leaf.shape if size != 1), leaf.about.kind)


def _may_meet(one: Leaf, other: Leaf) -> bool:
    """Whether two roles are one, or a role is none that the frameworks name."""
    return one.about.role == other.about.role or not (one.about.is_known and other.about.is_known)


def _zipped(sides: Iterable[Iterable[Keyed]], alone: bool = False) -> list[Both]:
    """Leaves of one key in their order, of keys that both sides have as many of; or that both have one of."""
    groups: tuple[dict[Any, list[Leaf]], dict[Any, list[Leaf]]] = ({}, {})
    for side, group in zip(sides, groups, strict=True):
        for key, leaf in side:
            group.setdefault(key, []).append(leaf)
    found = ((ones, groups[1].get(key, ())) for key, ones in groups[0].items() if not alone or len(ones) == 1)
    return [both for ones, others in found if len(ones) == len(others) for both in zip(ones, others, strict=True)]


def _not_aligned(matching: _Matching) -> frozenset[str]:
    """Leaves that are left on both sides and could be one another's in a layout that is not known."""
    kinds = [{(leaf.path, leaf.about.kind.replace("recurrent", "matrix")) for leaf in side} for side in matching.left]
    shared = set.intersection(*({kind for _, kind in side} for side in kinds))
    return frozenset(path for side in kinds for path, kind in side if kind in shared)


def _in_order(pairs: list[Pair], a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    """The pairs in the order of the network: that of a recording whose paths are not merely sorted, if one is not."""
    side, paths = (1, b) if a == sorted(a) and b != sorted(b) else (0, a)
    places = {path: place for place, path in enumerate(paths)}
    return sorted(pairs, key=lambda pair: (places[pair.views[side].path], pair.views[side].layout.part or ()))
