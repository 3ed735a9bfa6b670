"""Which leaf of one recording is which of the other, and in which layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing import mapping
from gradxform.comparing.align import names
from gradxform.comparing.align.cells import cells_of
from gradxform.comparing.align.layouts import Layout, Shape
from gradxform.comparing.align.order import assigned, fitting
from gradxform.comparing.align.pairing import Values, paired
from gradxform.comparing.align.parts import Leaf, leaves_of
from gradxform.comparing.align.values import equal, unique
from gradxform.comparing.findings import some
from gradxform.comparing.mapping import Map, Pair
from gradxform.recording.reading import Recording

_DOUBT = 0.9
"""Certainty below which a pair is named as doubtful."""


class Alignment(NamedTuple):
    """The pairs in the order of the network, and what has no partner."""

    pairs: list[Pair]
    alone_a: list[str]
    alone_b: list[str]
    trees: list[str]
    """The trees that both have: "gradients", "parameters", "updates"."""

    not_aligned: frozenset[str] = frozenset()
    """Paths of A and B without a partner that may have one under another layout, since the other side lacks one too."""

    @property
    def words(self) -> str:
        """What was done, and how sure it is."""
        hows: dict[str, int] = {}
        for pair in self.pairs:
            hows[pair.how] = hows.get(pair.how, 0) + 1
        done = ", ".join(f"{count} by {how}" for how, count in hows.items())
        least = min(self.pairs, key=lambda pair: pair.sure, default=None)
        doubt = "" if least is None or least.sure >= _DOUBT else f"; least sure: {least.label} ({least.sure:.0%})"
        lacks = f"; without a partner: {len(self.alone_a)} of A, {len(self.alone_b)} of B"
        open_ = f"; not aligned: {some(sorted(self.not_aligned))}: write a map" if self.not_aligned else ""
        return f"{len(self.pairs)} pairs: {done}{doubt}" + (lacks if self.alone_a or self.alone_b else "") + open_


class _Side:
    """One recording at the step that is aligned by."""

    def __init__(self, recording: Recording, step: int, trees: Sequence[str]) -> None:
        self.recording, self.step = recording, step
        self.shapes: dict[str, Shape] = {}
        found = [recording.shapes(step, tree) for tree in trees]
        for shapes in sorted(
            found, key=lambda shapes: list(shapes) == sorted(shapes)
        ):  # the order of the network first
            self.shapes |= {path: shape for path, shape in shapes.items() if path not in self.shapes}
        self.cells = cells_of(self.shapes)

    def reader(self, tree: str) -> Values:
        """What reads the values of a leaf in a tree, None where the tree lacks it, and keeps the last ones."""
        there = self.recording.shapes(self.step, tree)

        @lru_cache(maxsize=4)
        def whole(path: str) -> Any:
            return self.recording.read(self.step, tree, path)

        def read(leaf: Leaf, place: Layout | None) -> Any:
            return (place or leaf.layout).of(whole(leaf.path)) if leaf.path in there else None

        return read


class _Matching:
    """The leaves that are left, and the pairs that were made of others."""

    def __init__(self, a: _Side, b: _Side, trees: Sequence[str], given: Map) -> None:
        self.a, self.b, self.pairs = a, b, list(given.pairs)
        self.made: list[tuple[Leaf, Leaf, float]] = []
        self._equal: dict[str, tuple[Any, list[Leaf], list[Leaf]]] = {}
        """Matrices of `equal` with the leaves that were left then."""
        self.read = {tree: (a.reader(tree), b.reader(tree)) for tree in trees}
        taken = [
            {getattr(p, side).path for p in given.pairs} | alone
            for side, alone in zip("ab", (given.alone_a, given.alone_b), strict=True)
        ]
        self.left_a = [leaf for leaf in leaves_of(a.shapes, b.shapes) if leaf.path not in taken[0]]
        self.left_b = [leaf for leaf in leaves_of(b.shapes, a.shapes) if leaf.path not in taken[1]]

    def add(
        self, how: str, found: Iterable[tuple[int, int]], sure: Mapping[tuple[int, int], float] | None = None
    ) -> None:
        """Make pairs of leaves that are left, by their places; some are no surer than what led to them."""
        done_a, done_b = set(), set()
        for i, j in found:
            pair = paired(self.left_a[i], self.left_b[j], how, self.read, (self.a.cells, self.b.cells))
            if pair is not None:
                pair = pair._replace(sure=min(pair.sure, (sure or {}).get((i, j), 1.0)))
                self.pairs.append(pair)
                self.made.append((self.left_a[i], self.left_b[j], pair.sure))
                done_a.add(i)
                done_b.add(j)
            elif how == "the map":
                one, other = self.left_a[i], self.left_b[j]
                text = f"the map leads {one.path!r} {one.shape} to {other.path!r} {other.shape}"
                raise ValueError(f"{text}, and no layout brings them together")
        self.left_a = [leaf for i, leaf in enumerate(self.left_a) if i not in done_a]
        self.left_b = [leaf for j, leaf in enumerate(self.left_b) if j not in done_b]

    def equal(self, tree: str) -> Any:
        """Which of the leaves that are left have equal values in a tree: a matrix of bools."""
        if tree not in self.read:
            return np.zeros((len(self.left_a), len(self.left_b)), bool)
        if tree not in self._equal:
            one, other = self.read[tree]
            found = equal(self.left_a, self.left_b, lambda leaf: one(leaf, None), lambda leaf: other(leaf, None))
            self._equal[tree] = found, list(self.left_a), list(self.left_b)
        found, *sides = self._equal[tree]
        places = ({id(leaf): i for i, leaf in enumerate(side)} for side in sides)
        left = (self.left_a, self.left_b)
        return found[np.ix_(*([place[id(leaf)] for leaf in side] for place, side in zip(places, left, strict=True)))]

    def add_modules(self) -> None:
        """Pair leaves of modules that other pairs have led to one another, where one leaf on each side has a role."""
        if not self.left_a or not self.left_b:
            return
        led: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
        for one, other, sure in self.made:
            ends = led.setdefault(names.read(one.name).module, {})
            end = names.read(other.name).module
            ends[end] = max(sure, ends.get(end, 0.0))
        modules: dict[tuple[str, ...], list[int]] = {}
        for j, leaf in enumerate(self.left_b):
            modules.setdefault(names.read(leaf.name).module, []).append(j)
        fits, sures = fitting(self.left_a, self.left_b), {}
        for i, leaf in enumerate(self.left_a):
            ends = led.get(names.read(leaf.name).module, {})
            if len(ends) == 1:
                ((end, sure),) = ends.items()
                near = [j for j in modules.get(end, ()) if fits[i, j] and _roles_meet(leaf, self.left_b[j])]
                if len(near) == 1:
                    sures[i, near[0]] = sure
        self.add("modules", _once(list(sures)), sures)

    def add_order(self) -> None:
        """Assign what is left by roles, shapes and order: matrices first, whose modules lead the vectors."""
        for axes in (2, 1, 0):
            possible = self.possible()
            for k, side in enumerate((self.left_a, self.left_b)):
                few = np.array([len(leaf.shape) < axes for leaf in side], bool)
                possible[(few, slice(None)) if k == 0 else (slice(None), few)] = False
            self.add("shape alone", assigned(self.left_a, self.left_b, possible))
            self.add_modules()

    def possible(self) -> Any:
        """Which leaves that are left do not have equal parameters with others."""
        equals = self.equal("parameters")
        return equals | ~(equals.any(1)[:, None] | equals.any(0))


def _roles_meet(a: Leaf, b: Leaf) -> bool:
    one, other = (names.role_in(names.read(leaf.name), len(leaf.shape)) for leaf in (a, b))
    return bool(one & other)


def _once(found: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of places without those whose second place occurs twice."""
    seconds = [j for _, j in found]
    return [(i, j) for i, j in found if seconds.count(j) == 1]


def align(a: Recording, b: Recording, step: int, trees: Sequence[str], given: Map) -> Alignment:
    """The pairs of two recordings at a step: by what proves most first, each with how sure it is.

    Equal paths prove most, then equal parameters, if they are no constants. Names and modules follow, then equal
    gradients, which a fault may have changed. What is left is assigned by roles, shapes and order.

    Raises:
        ValueError: a map with paths that a recording lacks; no pair at all.
    """
    side_a, side_b = _Side(a, step, trees), _Side(b, step, trees)
    mapping.check(given, side_a.shapes, side_b.shapes)
    values = not (a.norms_only or b.norms_only)
    telling = [tree for tree in ("parameters", "gradients") if tree in trees and values]
    matching = _Matching(side_a, side_b, telling, given)
    if given.names:
        matching.add("the map", _by_map(matching.left_a, matching.left_b, given.names))
    matching.add("equal parameters", _renumbered(matching))
    matching.add("equal paths", _by_path(matching.left_a, matching.left_b))
    if matching.left_a and matching.left_b:
        _by_evidence(matching)
    if not matching.pairs:
        raise ValueError(
            f"no leaf of A is one of B: A has {_some(side_a.shapes)}, B has {_some(side_b.shapes)}; write a map (--map)"
        )
    paths = [{getattr(pair, side).path for pair in matching.pairs} for side in "ab"]
    alone_a, alone_b = (
        [path for path in side.shapes if path not in there] for side, there in zip((side_a, side_b), paths, strict=True)
    )
    pairs = _in_order(matching.pairs, side_a.shapes, side_b.shapes)
    return Alignment(pairs, alone_a, alone_b, list(trees), _not_aligned(matching))


def _renumbered(matching: _Matching) -> list[tuple[int, int]]:
    """Leaves whose paths the other side has too, for other values: Keras counts dense, dense_1 on from model to model.

    Where both sides have the same paths, these are believed, and other values are a fault.
    """
    paths = [{leaf.name for leaf in side} for side in (matching.left_a, matching.left_b)]
    if paths[0] == paths[1] or paths[0].isdisjoint(paths[1]):
        return []
    equals = matching.equal("parameters")
    by_path = dict(_by_path(matching.left_a, matching.left_b))
    found = unique(equals)
    if any(by_path.get(i) == j for i, j in found) or any(equals[i, j] for i, j in by_path.items()):
        return []  # some paths are right
    return [(i, j) for i, j in found if matching.left_a[i].name in paths[1] or matching.left_b[j].name in paths[0]]


def _by_evidence(matching: _Matching) -> None:
    """Match what has no path in common: equal parameters, names, modules, equal gradients, order."""
    matching.add("equal parameters", unique(matching.equal("parameters")))
    matching.add("names", _by_name(matching.left_a, matching.left_b))
    matching.add_modules()
    matching.add("equal gradients", unique(matching.equal("gradients") & matching.possible()))
    matching.add_modules()
    matching.add("equal parameters and order", assigned(matching.left_a, matching.left_b, matching.equal("parameters")))
    matching.add_modules()
    matching.add_order()


def _not_aligned(matching: _Matching) -> frozenset[str]:
    """Leaves that are left on both sides and could be one another's in a layout that is not known."""
    sides = (matching.left_a, matching.left_b)
    shared = frozenset.intersection(*(frozenset(role for leaf in side for role in _role(leaf)) for side in sides))
    return frozenset(leaf.path for side in sides for leaf in side if _role(leaf) & shared)


def _role(leaf: Leaf) -> frozenset[str]:
    """What a leaf may be: any kind of matrix, of bias, or of what has an unknown name."""
    role = names.read(leaf.name).role
    kinds = {"kernel": "matrix", "recurrent": "matrix", "embedding": "matrix", "bias of the input": "bias"}
    return frozenset(kinds.get(each, each if names.is_known(role) else "matrix") for each in role)


def _some(shapes: Mapping[str, Shape]) -> str:
    shown = ", ".join(f"{path!r} {shape}" for path, shape in list(shapes.items())[:3])
    return shown + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")


def _by_map(a: Sequence[Leaf], b: Sequence[Leaf], names_given: Mapping[str, str]) -> list[tuple[int, int]]:
    """Leaves that a user's names lead to one another, those of whole modules by the rest of their names.

    Raises:
        ValueError: names that no leaf of a side has, or two leaves that are led to one.
    """
    found: list[tuple[int, int]] = []
    used: set[str] = set()
    for i, leaf in enumerate(a):
        path = leaf.name.replace(".", "/")
        old = next(
            (old for old in sorted(names_given, key=len, reverse=True) if f"{path}/".startswith(f"{old}/")), None
        )
        if old is None:
            continue
        used.add(old)
        new = f"{names_given[old]}{path[len(old) :]}"
        fits = [j for j, other in enumerate(b) if names.read(other.name) == names.read(new)]
        near = [j for j in (fits or range(len(b))) if _leads(new, b[j].name)]
        near = [j for j in near if b[j].name == new] or near
        taken = next((k for k, j in found if near and j == near[0]), None)
        if taken is not None:
            raise ValueError(f"the map leads {a[taken].name!r} and {leaf.name!r} of A both to {b[near[0]].name!r} of B")
        if near:
            found.append((i, near[0]))
    for old, new in names_given.items():
        for side, name, leaves in (("A", old, a), ("B", new, b)):
            there = [leaf.name for leaf in leaves]
            known = old in used if side == "A" else any(f"{path}/".startswith(f"{name}/") for path in there)
            if not known:
                beginnings = {path.rsplit("/", k)[0] for path in there for k in range(path.count("/") + 1)}
                raise ValueError(
                    f"the map has {name!r}, and no leaf or module of {side} is named so, or another entry has it; "
                    f"{mapping.like(name, sorted(beginnings))}"
                )
    return found


def _leads(new: str, path: str) -> bool:
    one, other = names.read(new), names.read(path)
    return one.module == other.module and bool(one.role & other.role)


def _by_path(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[tuple[int, int]]:
    places = {leaf.name.replace(".", "/"): j for j, leaf in enumerate(b)}
    return [(i, places[key]) for i, leaf in enumerate(a) if (key := leaf.name.replace(".", "/")) in places]


def _by_name(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[tuple[int, int]]:
    """Leaves of modules of one name that have one role, if there is one of them on each side."""
    if not a or not b:
        return []
    read_a, read_b = names.ranked(*(names.without_common([names.read(leaf.name) for leaf in s]) for s in (a, b)))
    fits = fitting(a, b)
    modules: dict[tuple[str, ...], list[int]] = {}
    for j, other in enumerate(read_b):
        modules.setdefault(other.module, []).append(j)
    near = [
        [j for j in modules.get(one.module, ()) if fits[i, j] and _roles_meet(a[i], b[j])]
        for i, one in enumerate(read_a)
    ]
    found = _once([(i, js[0]) for i, js in enumerate(near) if len(js) == 1])
    return found if 2 * len(found) >= min(len(a), len(b)) else []  # a few may be names of kinds, numbered


def _in_order(pairs: list[Pair], a: Mapping[str, Shape], b: Mapping[str, Shape]) -> list[Pair]:
    """The pairs in the order of the network: that of a recording whose paths are not merely sorted, if one is not."""
    side, paths = ("b", list(b)) if list(a) == sorted(a) and list(b) != sorted(b) else ("a", list(a))
    places = {path: place for place, path in enumerate(paths)}
    return sorted(
        pairs, key=lambda pair: (places[getattr(pair, side).path], getattr(pair, side).layout.part or (0, 0, 0))
    )
