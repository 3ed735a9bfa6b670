"""Which leaf of one recording is which of the other, and in which layout: by what proves most first."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gradxform.comparing import mapping
from gradxform.comparing.align import names
from gradxform.comparing.align.pairing import paired
from gradxform.comparing.align.parts import Leaf, cells_of, leaves_of
from gradxform.comparing.align.values import Values, equal
from gradxform.comparing.constants import SURE
from gradxform.comparing.findings import some
from gradxform.comparing.layouts import Layout, Shape, fits
from gradxform.comparing.mapping import Map, Pair
from gradxform.recording.reading import Recording

Both = tuple[Leaf, Leaf]


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
        done = ", ".join(f"{count} by {how}" for how, count in Counter(pair.how for pair in self.pairs).items())
        least = min(self.pairs, key=lambda pair: pair.sure, default=None)
        doubt = "" if least is None or least.sure >= SURE else f"; least sure: {least.label} ({least.sure:.0%})"
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
    matching = _Matching(shapes[0], shapes[1], read, given)
    matching.run(given.names)
    if not matching.pairs:
        found = [", ".join(f"{path!r} {shape}" for path, shape in list(side.items())[:3]) for side in shapes]
        more = [f" and {len(side) - 3} more" if len(side) > 3 else "" for side in shapes]
        raise ValueError(
            f"no leaf of A is one of B: A has {found[0]}{more[0]}, B has {found[1]}{more[1]}; write a map (--map)"
        )
    there = [{getattr(pair, side).path for pair in matching.pairs} for side in "ab"]
    alone_a, alone_b = ([path for path in side if path not in found] for side, found in zip(shapes, there, strict=True))
    return Alignment(
        _in_order(matching.pairs, *map(list, shapes)), alone_a, alone_b, list(trees), _not_aligned(matching)
    )


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

    def __init__(
        self,
        a: Mapping[str, Shape],
        b: Mapping[str, Shape],
        read: Mapping[str, tuple[Values, Values]],
        given: Map,
    ) -> None:
        self.read, self.cells, self.pairs = read, (cells_of(a), cells_of(b)), list(given.pairs)
        self.made: list[tuple[Leaf, Leaf, float]] = []
        taken = [{getattr(pair, side).path for pair in given.pairs} for side in "ab"]
        taken = [taken[0] | given.alone_a, taken[1] | given.alone_b]
        self.left_a = [leaf for leaf in leaves_of(a, b) if leaf.path not in taken[0]]
        self.left_b = [leaf for leaf in leaves_of(b, a) if leaf.path not in taken[1]]
        self._equal: dict[str, dict[Leaf, set[Leaf]]] = {}

    def run(self, given: Mapping[str, str]) -> None:
        """Make pairs, by what proves most first."""
        if given:
            self.add("the map", list(_by_map(self.left_a, self.left_b, given)))
        self.add("equal parameters", self.renumbered())
        self.add("equal paths", _by_path(self.left_a, self.left_b))
        if not (self.left_a and self.left_b):
            return
        self.add("equal parameters", _unique(self.equal("parameters")))
        self.add("names", _by_name(self.left_a, self.left_b))
        self.add_modules()
        may, equals = self.possible(), self.equal("gradients")
        self.add("equal gradients", _unique({a: {b for b in others if may(a, b)} for a, others in equals.items()}))
        self.add_modules()
        equals = self.equal("parameters")
        self.add("equal parameters and order", list(_zipped(*_grouped(self.left_a, self.left_b, equals))))
        self.add_modules()
        for axes in (2, 1, 0):  # matrices first, whose modules lead the vectors
            for by_role, by_axes in itertools.product((True, False), repeat=2):
                sides = (
                    [(_kind(leaf, by_role, by_axes), leaf) for leaf in _network_order(side) if len(leaf.shape) >= axes]
                    for side in (self.left_a, self.left_b)
                )
                may = self.possible()
                self.add("shape alone", [both for both in _zipped(*sides) if may(*both) and _may_meet(*both)])
            self.add_modules()

    def add(self, how: str, found: Sequence[Both], sure: Mapping[Leaf, float] | None = None) -> None:
        """Make pairs of leaves that are left; some are no surer than what led to them."""
        done = set()
        for one, other in found:
            pair = paired(one, other, how, self.read, self.cells)
            if pair is not None:
                self.pairs.append(pair._replace(sure=min(pair.sure, (sure or {}).get(one, 1.0))))
                self.made.append((one, other, self.pairs[-1].sure))
                done |= {(0, one), (1, other)}
            elif how == "the map":
                text = f"the map leads {one.path!r} {one.shape} to {other.path!r} {other.shape}"
                raise ValueError(f"{text}, and no layout brings them together")
        self.left_a = [leaf for leaf in self.left_a if (0, leaf) not in done]
        self.left_b = [leaf for leaf in self.left_b if (1, leaf) not in done]

    def add_modules(self) -> None:
        """Pair leaves of modules that other pairs have led to one another, where one leaf on each side has a role."""
        led: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
        for one, other, sure in self.made if self.left_a and self.left_b else ():
            ends, end = led.setdefault(_module(one), {}), _module(other)
            ends[end] = max(sure, ends.get(end, 0.0))
        near = {leaf: next(iter(ends)) for leaf in self.left_a if len(ends := led.get(_module(leaf), {})) == 1}
        sures = {leaf: led[_module(leaf)][end] for leaf, end in near.items()}
        self.add("modules", _meeting(near, self.left_b, [_module(leaf) for leaf in self.left_b]), sures)

    def equal(self, tree: str) -> dict[Leaf, set[Leaf]]:
        """The leaves that are left and have equal values in a tree."""
        if tree not in self.read:
            return {}
        if tree not in self._equal:
            self._equal[tree] = equal(self.left_a, self.left_b, *self.read[tree])
        left = set(self.left_b)
        return {leaf: self._equal[tree].get(leaf, set()) & left for leaf in self.left_a}

    def possible(self) -> Callable[[Leaf, Leaf], bool]:
        """Whether two leaves may belong together: they have equal parameters, or neither has them with another."""
        equals = self.equal("parameters")
        held = set[Leaf]().union(*equals.values())
        return lambda one, other: other in equals[one] if equals.get(one) else other not in held

    def renumbered(self) -> list[Both]:
        """Leaves whose paths the other side has too, for other values: Keras counts dense, dense_1 on in each model.

        Where both sides have the same paths, these are believed, and other values are a fault.
        """
        paths = [{leaf.name for leaf in side} for side in (self.left_a, self.left_b)]
        if paths[0] == paths[1] or paths[0].isdisjoint(paths[1]):
            return []
        equals = self.equal("parameters")
        if any(other in equals.get(one, ()) for one, other in _by_path(self.left_a, self.left_b)):
            return []  # some paths are right
        return [both for both in _unique(equals) if both[0].name in paths[1] or both[1].name in paths[0]]


def _module(leaf: Leaf) -> tuple[str, ...]:
    return names.read(leaf.name).module


def _role(leaf: Leaf) -> frozenset[str]:
    return names.role_in(names.read(leaf.name), len(leaf.shape))


def _unique(equals: Mapping[Leaf, set[Leaf]]) -> list[Both]:
    """The leaves that are equal to one other, which is equal to no further one."""
    counts = Counter(other for others in equals.values() for other in others)
    return [
        (leaf, next(iter(others)))
        for leaf, others in equals.items()
        if len(others) == 1 and counts[next(iter(others))] == 1
    ]


def _by_map(a: Sequence[Leaf], b: Sequence[Leaf], given: Mapping[str, str]) -> Iterator[Both]:
    """Leaves that a user's names lead to one another, those of whole modules by the rest of their names.

    Raises:
        ValueError: names that no leaf of a side has, or two leaves that are led to one.
    """
    used: dict[str, Leaf] = {}
    ends: dict[Leaf, Leaf] = {}
    for leaf in a:
        path = leaf.name.replace(".", "/")
        fits_ = (old for old in given if f"{path}/".startswith(f"{old}/"))
        old = max(fits_, key=len, default=None)
        if old is None:
            continue
        used[old] = leaf
        new = f"{given[old]}{path[len(old) :]}"
        wanted = names.read(new)
        near = [other for other in b if names.leads(wanted, names.read(other.name))]
        near.sort(key=lambda other: (other.name != new, names.read(other.name) != wanted))
        if near and near[0] in ends:
            text = f"the map leads {ends[near[0]].name!r} and {leaf.name!r} of A both to {near[0].name!r} of B"
            raise ValueError(text)
        if near:
            ends[near[0]] = leaf
            yield leaf, near[0]
    for old, new in given.items():
        for side, name, leaves in (("A", old, a), ("B", new, b)):
            there = [leaf.name for leaf in leaves]
            if old in used if side == "A" else any(f"{path}/".startswith(f"{name}/") for path in there):
                continue
            beginnings = {path.rsplit("/", k)[0] for path in there for k in range(path.count("/") + 1)}
            raise ValueError(
                f"the map has {name!r}, and no leaf or module of {side} is named so, or another entry has it; "
                f"{mapping.like(name, sorted(beginnings))}"
            )


def _by_path(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[Both]:
    places = {leaf.name.replace(".", "/"): leaf for leaf in b}
    return [(leaf, places[path]) for leaf in a if (path := leaf.name.replace(".", "/")) in places]


def _by_name(a: Sequence[Leaf], b: Sequence[Leaf]) -> list[Both]:
    """Leaves of modules of one name that have one role, if there is one of them on each side."""
    if not a or not b:
        return []
    read = (names.without_common([names.read(leaf.name) for leaf in side]) for side in (a, b))
    modules_a, modules_b = names.ranked(*([name.module for name in side] for side in read))
    found = _meeting(dict(zip(a, modules_a, strict=True)), b, modules_b)
    return found if 2 * len(found) >= min(len(a), len(b)) else []  # a few may be names of kinds, numbered


def _meeting(
    near: Mapping[Leaf, tuple[str, ...]], others: Sequence[Leaf], modules: Sequence[tuple[str, ...]]
) -> list[Both]:
    """Leaves that one leaf of a module fits in shape and role, and that no other leaf is led to."""
    there: dict[tuple[str, ...], list[Leaf]] = {}
    for module, other in zip(modules, others, strict=True):
        there.setdefault(module, []).append(other)
    return _unique(
        {
            leaf: {o for o in there.get(module, ()) if fits(leaf.shape, o.shape) and _role(leaf) & _role(o)}
            for leaf, module in near.items()
        }
    )


def _network_order(leaves: Sequence[Leaf]) -> list[Leaf]:
    return [leaves[place] for place in names.in_order([leaf.name for leaf in leaves])]


def _kind(leaf: Leaf, by_role: bool, by_axes: bool) -> tuple[Any, ...]:
    """What leaves must have in common to be paired by their order: the sizes of axes or of all, and a role."""
    sizes = sorted(size for size in leaf.shape if size != 1) if by_axes else [leaf.size]
    return (*sizes, *sorted(_kinds(leaf))) if by_role else tuple(sizes)


def _kinds(leaf: Leaf) -> frozenset[str]:
    """What a leaf may be: any kind of matrix, of bias, or of what has an unknown name."""
    role = _role(leaf)
    kinds = {"kernel": "matrix", "embedding": "matrix", "bias of the input": "bias"}
    return frozenset(kinds.get(each, each if names.is_known(role) else "matrix") for each in role)


def _may_meet(one: Leaf, other: Leaf) -> bool:
    """Whether two roles are one, or a role is none that the frameworks name."""
    roles = _role(one), _role(other)
    return bool(roles[0] & roles[1]) or not all(map(names.is_known, roles))


def _grouped(
    a: Sequence[Leaf], b: Sequence[Leaf], equals: Mapping[Leaf, set[Leaf]]
) -> tuple[list[tuple[Any, Leaf]], list[tuple[Any, Leaf]]]:
    """The leaves of both sides in order, each with the set of B's leaves that have its values."""
    groups = {leaf: frozenset(others) for leaf, others in equals.items() if others}
    ends = {other: group for group in groups.values() for other in group}
    ones = [(groups[leaf], leaf) for leaf in _network_order(a) if leaf in groups]
    return ones, [(ends[leaf], leaf) for leaf in _network_order(b) if leaf in ends]


def _zipped(a: Iterable[tuple[Any, Leaf]], b: Iterable[tuple[Any, Leaf]]) -> Iterator[Both]:
    """Leaves of one kind in their order, of kinds that both sides have as many of."""
    groups: tuple[dict[Any, list[Leaf]], dict[Any, list[Leaf]]] = ({}, {})
    for side, group in zip((a, b), groups, strict=True):
        for kind, leaf in side:
            group.setdefault(kind, []).append(leaf)
    for kind, ones in groups[0].items():
        others = groups[1].get(kind, [])
        if len(ones) == len(others):
            yield from zip(ones, others, strict=True)


def _not_aligned(matching: _Matching) -> frozenset[str]:
    """Leaves that are left on both sides and could be one another's in a layout that is not known."""
    sides = (matching.left_a, matching.left_b)
    kinds = [
        {leaf: _kinds(leaf) | ({"matrix"} if "recurrent" in _kinds(leaf) else set()) for leaf in side} for side in sides
    ]
    shared = frozenset.intersection(*(frozenset().union(*side.values()) for side in kinds))
    return frozenset(leaf.path for side in kinds for leaf, kind in side.items() if kind & shared)


def _in_order(pairs: list[Pair], a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    """The pairs in the order of the network: that of a recording whose paths are not merely sorted, if one is not."""
    side, paths = ("b", b) if a == sorted(a) and b != sorted(b) else ("a", a)
    places = {path: place for place, path in enumerate(paths)}
    return sorted(
        pairs, key=lambda pair: (places[getattr(pair, side).path], getattr(pair, side).layout.part or (0, 0, 0))
    )
