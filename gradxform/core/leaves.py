"""The leaves of one tree of gradients: which are in scope, what is pending for them, and the way back to the tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gradxform.backend.errors import not_an_array
from gradxform.backend.lookup import belong, is_number, known, opened, owner, unwrapped
from gradxform.backend.protocol import Backend, Row
from gradxform.core.group import Group
from gradxform.numerics import DOUBLE, Array, formulas
from gradxform.numerics.formulas import Mask

SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
INEXACT = SINGLE | DOUBLE
NARROW = frozenset({"float16", "bfloat16"})
_FLOATING = "gradients must be floating-point or complex; cast it, or exclude it with masked(...) or None"
Paths = Callable[[], list[str]]
"""Finds the paths of all slots, when they are needed."""
Absent = Callable[[], dict[str, str]]
"""Finds names that a user may expect among the paths, and why they are not there."""


class Source(NamedTuple):
    """The tree that was read."""

    structure: Any
    slots: Sequence[Any]
    """The original leaves, including None and float0."""
    kept: Sequence[int]
    """The slots of the leaves that are gradients."""
    dtypes: tuple[str, ...]
    """The names of these leaves' dtypes, in the input and in the result."""
    kinds: frozenset[str]
    """The set of dtypes; maybe also that of leaves which are no gradients."""
    rebuild: tuple[Callable[[Array], Array] | None, ...] | None
    """What makes the values of each leaf sparse again, None for a dense one; None if all are dense."""
    find_paths: Paths
    owners: Sequence[Any] | None = None
    """The variables or parameters of the slots, if an adapter knows them."""
    absent: Absent = dict

    @property
    def paths(self) -> list[str]:
        """The path of each leaf."""
        paths = self.find_paths()
        return [paths[slot] for slot in self.kept]

    def path(self, leaf: int) -> str:
        """Return the path of a leaf, for an error message."""
        return self.paths[leaf] or "(the only leaf)"

    def given(self, leaf: int) -> Array:
        """Return the original of a leaf."""
        return self.slots[self.kept[leaf]]


class Leaves(NamedTuple):
    """The leaves of one tree of gradients, with pending factors and measured norms."""

    backend: Backend
    """The framework that owns the leaves."""
    source: Source
    leaves: Sequence[Array]
    scope: Sequence[int]
    """The positions of the leaves that the current transform applies to, including stopped ones."""
    chosen: Sequence[int]
    """The same without stopped ones."""
    owned: frozenset[int]
    """The positions of leaves that may be written in place: all in an in-place run, else those made by a transform."""
    measured: dict[Any, Any]
    """Norms of this device's leaves without pending factors, and the positions for which they are known, by order."""
    stopped: frozenset[int] = frozenset()
    """The positions of the stopped leaves."""
    factor: Array | float | None = None
    """What the leaves are still to be multiplied by: a number, or a vector with one number per leaf."""
    due: frozenset[int] = frozenset()
    """The positions of the leaves that the factor may change; it is 1 for the others."""
    groups: tuple[Group, ...] = ()
    """The groups of devices that hold parts of the tree, outermost first."""

    trace: Any = None
    """What traced when the leaves were read, if the framework traces branches: one of `lax.cond` ends before it."""

    @classmethod
    def read(cls, tree: Any) -> Self | None:
        """Read a tree of arrays; None if it has no array. A view is returned unchanged.

        Raises:
            TypeError: arrays of two frameworks, or a leaf that is not an array; names the paths.
        """
        if isinstance(tree, cls):
            return tree
        backend, (leaves, structure) = opened(tree)
        view = None if backend is None else cls.of(backend, leaves, structure, lambda: backend.paths(tree))
        return view if view is not None and view.leaves else None

    @classmethod
    def of(
        cls, backend: Backend, slots: Row, structure: Any, paths: Paths, *, inplace: bool = False, **known: Any
    ) -> Self:
        """Build a view of leaves found by a tree engine or an adapter, which may know `owners` and `absent` names."""
        given, types = slots, set(map(type, slots))
        if not belong(backend, types):
            slots = [slot if slot is None else _adopted(backend, slots, i, paths) for i, slot in enumerate(slots)]
        kinds = {slot.dtype: slot for slot in slots if slot is not None}
        names = {kind: backend.dtype(slot) for kind, slot in kinds.items()}
        kept: Sequence[int] = range(len(slots))
        leaves: Row = slots
        if type(None) in types or "float0" in names.values():
            kept = [i for i, slot in enumerate(slots) if slot is not None and names[slot.dtype] != "float0"]
            leaves = [slots[i] for i in kept]
        dtypes = tuple([names[leaf.dtype] for leaf in leaves])
        dense, rebuild = (leaves, None) if backend.dense is None else backend.dense(leaves)
        back = None if rebuild is None else tuple(rebuild)
        source = Source(structure, slots, kept, dtypes, frozenset(names.values()), back, paths, **known)
        owned = frozenset([i for i, slot in enumerate(kept) if slots[slot] is given[slot]] if inplace else ())
        every, trace = range(len(kept)), getattr(backend.xp, "current_trace", None)
        return cls(backend, source, dense, every, every, owned, {}, trace=None if trace is None else trace())

    # --- scope ---------------------------------------------------------------------------------------------------

    def shape(self, leaf: int) -> tuple[int | None, ...] | None:
        """Return the static shape of a leaf, of a sparse one as of a dense one; None if its rank is unknown."""
        return self.backend.shape(self.source.given(leaf))

    @property
    def active(self) -> Mask:
        """For each leaf, whether it is in scope and not stopped."""
        return self.mask(self.chosen)

    def focus(self, mask: Sequence[bool]) -> Self:
        """Restrict the scope to the leaves in a mask."""
        return self._replace(scope=[i for i in self.scope if mask[i]], chosen=[i for i in self.chosen if mask[i]])

    def widen(self, outer: Leaves) -> Self:
        """Restore the scope of the view that this one was focused from; stopped leaves stay holes."""
        return self._replace(scope=outer.scope, chosen=[i for i in outer.scope if i not in self.stopped])

    def stop(self) -> Self:
        """Stop the active leaves: zeros in the result, holes for later transforms; adapters may skip them."""
        return self._replace(stopped=self.stopped.union(self.chosen), chosen=())

    def mask(self, places: Collection[int]) -> Mask:
        """Return the mask of some leaves."""
        return tuple(put([False] * len(self.leaves), places, [True] * len(places)))

    def check(self, wanted: frozenset[str] = INEXACT, why: str = _FLOATING, transform: str = "") -> None:
        """Reject an active leaf whose dtype is not in `wanted`."""
        if self.source.kinds <= wanted:
            return
        for i in self.chosen:
            dtype = self.source.dtypes[i]
            if dtype not in wanted:
                name, why = f"{transform}: " if transform else "", why if dtype in INEXACT else _FLOATING
                raise TypeError(f"{name}the gradient at {self.source.path(i)!r} has dtype {dtype}; {why}")

    def check_real(self, transform: str, why: str) -> None:
        """Reject active leaves that are not real floating-point numbers.

        Raises:
            TypeError: names the transform, the path, the dtype and the reason.
        """
        self.check(REAL, f"{why}; use masked(...) to exclude it", transform)

    # --- pending factors -----------------------------------------------------------------------------------------

    def scaled(self, factor: Array | float) -> Self:
        """Multiply the active leaves by a number, or by a vector with one factor per leaf."""
        self.check()
        if isinstance(factor, (int, float)) and factor == 1:
            return self
        if len(self.chosen) < len(self.leaves):
            factor = self.backend.compute(formulas.where_active, factor, active=self.active)
        if self.factor is not None:
            known = isinstance(self.factor, float) and isinstance(factor, (int, float))  # stays known
            factor = self.factor * factor if known else self.backend.compute(formulas.product, self.factor, factor)
        return self._replace(factor=factor, due=self.due.union(self.chosen))

    # --- new leaves ----------------------------------------------------------------------------------------------

    def settled(self) -> Self:
        """Apply the pending factors of the active leaves."""
        if self.factor is None:
            return self
        new = self._multiplied(self.chosen)
        return self.given([new[i] for i in self.chosen])

    def dense(self, integers: bool = False) -> Self:
        """Make the active leaves dense; reject integers unless they are wanted."""
        if not integers:
            self.check()
        if self.source.rebuild is None or self.backend.dense is None:
            return self
        rebuild, leaves = list(self.source.rebuild), list(self.leaves)
        for i in self.chosen:
            back = rebuild[i]
            if back is not None:
                leaves[i], rebuild[i] = self.backend.dense([back(leaves[i])], whole=True)[0][0], None
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)), leaves=leaves)

    def given(self, new: Sequence[Array], applied: bool = True) -> Self:
        """Replace the active leaves of a dense view with new arrays that no state holds.

        `applied`: the arrays include the pending factors.
        """
        return self.with_leaves(self.chosen, new, applied)

    def with_leaves(self, places: Sequence[int], new: Sequence[Array], applied: bool = False) -> Self:
        """Replace some leaves. `applied`: the new leaves include the pending factors."""
        if not places:
            return self
        leaves, factor, due = put(self.leaves, places, new), self.factor, self.due
        if applied and factor is not None:
            due = due.difference(places)
            factor = self.backend.compute(formulas.where_active, factor, active=self.mask(due)) if due else None
        owned = self.owned.union([i for i in places if leaves[i] is not self.leaves[i]])
        return self._replace(leaves=leaves, owned=owned, factor=factor, due=due, measured={})

    def lent(self) -> Self:
        """Mark the active leaves as not writable, since a state or the user may hold them."""
        return self._replace(owned=self.owned.difference(self.chosen))

    def is_owned(self, places: Sequence[int]) -> bool:
        """Whether all of some leaves may be written in place."""
        return self.owned.issuperset(places)

    def factors(self, places: Sequence[int]) -> Any:
        """Return the pending factors of some leaves; None if nothing is pending."""
        if self.factor is None or len(places) == len(self.leaves):
            return self.factor
        return self.backend.compute(formulas.take, self.factor, index=tuple(places))

    # --- the way out ---------------------------------------------------------------------------------------------

    def results(self) -> list[Any]:
        """Return the transformed leaves of the original tree, with None and float0 in place."""
        source, leaves, every = self.source, self.leaves, range(len(self.leaves))
        if self.factor is not None:
            leaves = self._multiplied([i for i in every if i not in self.stopped] if self.stopped else every)
        whole = len(source.kept) == len(source.slots)
        given = source.slots if whole else [source.slots[slot] for slot in source.kept]
        leaves = self.backend.as_given(given, list(self._narrowed(every, leaves)))
        if self.stopped:
            leaves = put(leaves, self.stopped, self.backend.zeros([leaves[i] for i in self.stopped]))
        if source.rebuild is not None:
            rebuilds = zip(leaves, source.rebuild, strict=True)
            leaves = [leaf if rebuild is None else rebuild(leaf) for leaf, rebuild in rebuilds]
        return leaves if whole else put(source.slots, source.kept, leaves)

    def tree(self) -> Any:
        """Return the transformed tree."""
        return self.backend.unflatten(self.source.structure, self.results())

    def scoped_tree(self) -> Any:
        """Return the tree of the leaves in scope: zeros for stopped leaves, None for leaves out of scope."""
        return self.backend.unflatten(self.source.structure, self._scoped_slots())

    def scoped_view(self) -> Self:
        """Return the view of `scoped_tree`, with the same paths. Without leaves, it keeps all slots."""
        source = self.source
        found = self.of(self.backend, self._scoped_slots(), source.structure, source.find_paths, owners=source.owners)
        if not found.leaves:
            found = found._replace(source=found.source._replace(slots=source.slots))
        return found._replace(groups=self.groups)

    def _scoped_slots(self) -> list[Any]:
        results, kept = self.settled()._replace(factor=None).results(), self.source.kept
        slots = [kept[i] for i in self.scope]
        return put([None] * len(results), slots, [results[slot] for slot in slots])

    def skipped(self) -> set[int]:
        """Return the slots of the stopped leaves, for adapters that can skip a variable."""
        return {self.source.kept[i] for i in self.stopped}

    # --- inside --------------------------------------------------------------------------------------------------

    def _multiplied(self, places: Sequence[int]) -> Sequence[Array]:
        """Return all leaves, some of them multiplied by their pending factors."""
        due = places if len(self.due) == len(self.leaves) else [i for i in places if i in self.due]
        if not due:
            return self.leaves
        every = len(due) == len(self.leaves)
        leaves = self.leaves if every else [self.leaves[i] for i in due]
        new = self.backend.multiply(leaves, self.factors(due), self.is_owned(due))
        return new if every else put(self.leaves, due, new)

    def _narrowed(self, places: Sequence[int], leaves: Sequence[Array]) -> Sequence[Array]:
        """Cast the new values of some leaves to their original dtypes."""
        if not self.source.kinds & NARROW:
            return leaves
        given = [self.source.given(i) for i in places]
        floats = [self.source.dtypes[i] in INEXACT for i in places]  # another library may make floats of integers
        wide = [n for n, leaf in enumerate(leaves) if floats[n] and leaf.dtype != given[n].dtype]
        if not wide:
            return leaves
        return put(leaves, wide, self.backend.cast([leaves[n] for n in wide], [given[n] for n in wide]))


def put(items: Sequence[Any], places: Collection[int], new: Sequence[Any]) -> list[Any]:
    """Return the items with new ones in some places."""
    out = list(items)
    for place, item in zip(places, new, strict=True):
        out[place] = item
    return out


def once(items: Sequence[Any]) -> list[Any]:
    """Return the items, with None for one that was there before."""
    first: dict[int, int] = {}
    return [item if first.setdefault(id(item), i) == i else None for i, item in enumerate(items)]


def _adopted(backend: Backend, slots: Sequence[Any], i: int, paths: Paths) -> Array:
    """Convert a leaf that is not of a known type of the backend.

    Raises:
        TypeError: it belongs to another framework, or to none; names the paths.
    """
    leaf = unwrapped(slots[i])
    found = owner(leaf)
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"the leaf at {paths()[i]!r} is a masked array, whose mask would be lost; fill it first")
    if found is backend:
        return leaf
    path, kind = paths()[i], type(leaf).__name__
    if (found is not None and found.name == "numpy") or is_number(leaf):
        try:
            return backend.xp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the leaf at {path!r} cannot be an array of {backend.name}: {error}") from error
    if found is None:
        raise not_an_array(path, leaf, known())
    other = next((repr(paths()[j]) for j, slot in enumerate(slots) if owner(slot) is backend), "the tree")
    both = f"{path!r} is {found.name}'s ({kind}), {other} is {backend.name}'s"
    raise TypeError(f"arrays of two frameworks in one tree: {both}; convert one of them")
