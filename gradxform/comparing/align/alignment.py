"""Which leaf of one recording is which of the other, and in which layout: by what proves most first."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from gradxform.comparing import mapping
from gradxform.comparing.align.leaves import Leaf, Module, common, in_order, leaves_of, name_of, shortened
from gradxform.comparing.align.pairing import Values, equal, paired
from gradxform.comparing.constants import SURE
from gradxform.comparing.findings import some
from gradxform.comparing.layouts import Layout, Shape
from gradxform.comparing.mapping import Map, Pair
from gradxform.recording.reading import Recording


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
    matching = _Matching(read)
    for side in (0, 1):
        taken = {pair.views[side].path for pair in given.pairs} | given.alone[side]
        leaves = leaves_of(shapes[side], shapes[1 - side])
        matching.left.append({leaf: None for leaf in leaves if leaf.path not in taken})
    matching.run(given.names)
    matching.pairs += given.pairs
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


Key = Callable[[Leaf], Any]
"""What two leaves have in common that are a pair; None if a leaf is left out."""


class _Matching:
    """The leaves that are left, and the pairs that were made of others."""

    def __init__(self, read: Mapping[str, tuple[Values, Values]]):
        self.left: list[dict[Leaf, None]] = []
        self.read, self.pairs, self.made = read, list[Pair](), list[tuple[Leaf, Leaf]]()
        # Where pairs have led modules, and how surely.
        self.led: dict[Module, dict[Module, float]] = {}

    def run(self, given: Mapping[str, str]) -> None:
        """Make pairs, by what proves most first."""
        if given:
            ends = _ends(self.left, given)
            self.add("the map", ends.get, _name)
            self.add("the map", lambda x: name_of(ends[x], len(x.shape)) if x in ends else None, _about)
        self.add_renumbered()
        self.add("equal paths", _name)
        self.left = [dict.fromkeys(in_order([*side])) for side in self.left]
        self.add_equal("parameters", alone=True)
        begins = [common([leaf.about.module for leaf in side]) for side in self.left]
        for numbers in (False, True):
            one, other = (partial(_in_module, end=partial(shortened, begin=n, numbers=numbers)) for n in begins)
            self.add("names", one, other, alone=numbers)
        self.add_modules()
        self.add_equal("gradients", alone=True)
        self.add_modules()
        self.add_equal("parameters")
        self.add_modules()
        for axes, roles in itertools.product((2, 1, 0), (1, 0)):  # matrices first, whose modules lead the vectors
            self.add("shape alone", partial(_shape, axes=axes, roles=roles))
            self.add_modules()

    def add(self, how: str, key: Key, other: Key | None = None, alone: bool = False) -> None:
        """Pair leaves that are left and share a key: in their order, if both sides have as many, or one alone."""
        groups, others = _grouped(self.left[0], key), _grouped(self.left[1], other or key)
        shared = [(ones, others[value]) for value, ones in groups.items() if value in others]
        for ones, ends in shared if how == "the map" else ():
            if len(ones) > 1:
                names = f"{ones[0].name!r} and {ones[1].name!r} of A both to {ends[0].name!r} of B"
                raise ValueError(f"the map leads {names}")
        equals = [both for both in shared if len(both[0]) == len(both[1]) and (len(both[0]) == 1 or not alone)]
        found = [pair for both in equals for pair in zip(*both, strict=True)]
        if how != "names" or 2 * len(found) >= min(map(len, self.left)):  # a few may be names of kinds, numbered
            for pair in found:
                self.make(*pair, how)

    def make(self, one: Leaf, other: Leaf, how: str) -> None:
        """Make a pair if a layout brings two leaves together; it is no surer than what has led to it."""
        if how == "shape alone" and len({one.about.role, other.about.role} - {""}) > 1:
            return
        pair = paired(one, other, how, self.read)
        if pair is not None:
            sure = self.led[one.about.module][other.about.module] if how == "modules" else 1.0
            self.pairs.append(pair._replace(sure=min(pair.sure, sure)))
            self.made.append((one, other))
            del self.left[0][one], self.left[1][other]
        elif how == "the map":
            text = f"the map leads {one.path!r} {one.shape} to {other.path!r} {other.shape}"
            raise ValueError(f"{text}, and no layout brings them together")

    def add_modules(self) -> None:
        """Pair leaves of modules that other pairs have led to one another, where one leaf on each side has a role."""
        self.led = {}
        for (one, other), pair in zip(self.made, self.pairs, strict=True) if all(self.left) else ():
            led, end = self.led.setdefault(one.about.module, {}), other.about.module
            led[end] = max(pair.sure, led.get(end, 0.0))
        ends = {module: next(iter(led)) for module, led in self.led.items() if len(led) == 1}
        self.add("modules", partial(_in_module, end=ends.get), partial(_in_module, end=lambda x: x), alone=True)

    def add_equal(self, tree: str, alone: bool = False) -> None:
        """Pair leaves of equal values in a tree: alone among all that are left, or in their order."""
        groups = self.equal(tree)
        ends = {other: group for group in groups.values() for other in group}
        self.add(f"equal {tree}{'' if alone else ' and order'}", groups.get, ends.get, alone=alone)

    def equal(self, tree: str) -> Mapping[Leaf, frozenset[Leaf]]:
        """The leaves of B that have the values of a leaf of A."""
        return equal([*self.left[0]], [*self.left[1]], *self.read[tree]) if tree in self.read and all(self.left) else {}

    def add_renumbered(self) -> None:
        """Pair leaves whose paths mean other values in the other run: Keras counts dense, dense_1 on in each model.

        Where both sides have the same paths, or one of them has its values, these are believed.
        """
        paths, tree = [{leaf.name: leaf for leaf in side} for side in self.left], next(iter(self.read), "")
        shared = paths[0].keys() & paths[1].keys()
        groups = self.equal(tree) if shared and paths[0].keys() != paths[1].keys() else {}
        if groups and not any(paths[1][path] in groups.get(paths[0][path], ()) for path in shared):
            self.add_equal(tree, alone=True)


_name, _about = operator.attrgetter("name"), operator.attrgetter("about")


def _grouped(leaves: Iterable[Leaf], key: Key) -> dict[Any, list[Leaf]]:
    groups: dict[Any, list[Leaf]] = {}
    for leaf in leaves:
        groups.setdefault(key(leaf), []).append(leaf)
    groups.pop(None, None)
    return groups


def _in_module(leaf: Leaf, end: Callable[[Module], Module | None]) -> Any:
    """Where the module of a leaf is led, if it is, and the role and size of the leaf."""
    module, role = leaf.about
    return None if (found := end(module)) is None else (found, role, leaf.size)


def _shape(leaf: Leaf, axes: int, roles: int) -> Any:
    """The size of a leaf that has so many axes, and its role."""
    return (leaf.size, leaf.about.role * roles) if len(leaf.shape) >= axes else None


def _ends(sides: Sequence[Iterable[Leaf]], given: Mapping[str, str]) -> dict[Leaf, str]:
    """Where a user's names lead leaves, those of whole modules by the rest of their names.

    Raises:
        ValueError: names that no leaf of a side has.
    """
    for side, own, leaves in zip("AB", ([*given], [*given.values()]), sides, strict=True):
        parts = [leaf.name.split("/") for leaf in leaves]
        there = {"/".join(path[:count]) for path in parts for count in range(1, len(path) + 1)}
        if wrong := next((name for name in own if name not in there), None):
            like = mapping.like(wrong, sorted(there))
            raise ValueError(f"the map has {wrong!r}, and no leaf or module of {side} is named so; {like}")
    found: dict[Leaf, str] = {}
    for leaf in sides[0]:
        keys = leaf.name.split("/")
        around = ("/".join(keys[:count]) for count in range(len(keys), 0, -1))
        old = next((old for old in around if old in given), None)
        if old is not None:
            found[leaf] = given[old] + leaf.name[len(old) :]
    return found


def _not_aligned(matching: _Matching) -> frozenset[str]:
    """Leaves that are left on both sides and could be one another's in a layout that is not known."""
    kinds = {"bias": "bias", "bias of the input": "bias", "scale": "scale"}
    sides = [_grouped(side, lambda leaf: kinds.get(leaf.about.role, "matrix")) for side in matching.left]
    return frozenset(leaf.path for side in sides for kind in sides[0].keys() & sides[1] for leaf in side[kind])


def _in_order(pairs: list[Pair], a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    """The pairs in the order of the network: that of a recording whose paths are not merely sorted, if one is not."""
    side, paths = (1, b) if a == sorted(a) and b != sorted(b) else (0, a)
    places = {path: place for place, path in enumerate(paths)}
    return sorted(pairs, key=lambda pair: (places[pair.views[side].path], pair.views[side].layout.part or ()))
