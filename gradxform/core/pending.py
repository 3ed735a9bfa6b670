"""The data of a flat view: the leaves, which are in scope, and the pending factors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from gradxform.backend.protocol import Backend
from gradxform.core import checks
from gradxform.core.group import Group
from gradxform.core.source import ENDS, INEXACT, NARROW, Mask, Source, read
from gradxform.numerics import Array, formulas


class Pending(NamedTuple):
    """The leaves of one tree of gradients, with pending factors and measured norms."""

    source: Source
    leaves: tuple[Array, ...]
    factor: Array | float | None
    due: Mask
    """Leaves that the factor may change; it is 1 for the others."""
    scope: Mask
    """The leaves that the current transform applies to, including stopped ones."""
    active: Mask
    stopped: Mask
    owned: Mask
    """Leaves that may be written in place: all in an in-place run, else the ones made by a transform."""
    measured: dict[tuple[float, int], Array]
    """Norms of the leaves without pending factors: 0-d numbers by order and leaf, or a vector.

    They cover this device only.
    """
    groups: tuple[Group, ...] = ()
    """The groups of devices that hold parts of the tree, outermost first."""

    @classmethod
    def of(
        cls,
        backend: Backend,
        slots: Sequence[Any],
        structure: Any,
        paths: Callable[[], list[str]],
        *,
        inplace: bool = False,
        owners: Sequence[Any] | None = None,
    ) -> Self | None:
        """Build a view of leaves found by a tree engine or an adapter; None if all are holes."""
        found = read(backend, slots, structure, paths, owners)
        if found is None:
            return None
        source, leaves = found
        owned = source.nothing
        if inplace:
            same = source.slots is slots
            owned = source.everything if same else source.mask([source.slots[i] is slots[i] for i in source.kept])
        every, nothing = source.everything, source.nothing
        return cls(source, leaves, None, nothing, every, every, nothing, owned, {})

    @classmethod
    def holes(
        cls,
        backend: Backend,
        slots: Sequence[Any],
        structure: Any,
        paths: Callable[[], list[str]],
        owners: Sequence[Any] | None = None,
    ) -> Self:
        """Build a view of a tree without leaves; its slots determine the device of a new state."""
        source = Source(backend, structure, slots, (), (), frozenset(), None, paths, (), (), owners)
        return cls(source, (), None, (), (), (), (), (), {})

    # --- scope ---------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The framework that owns the leaves."""
        return self.source.backend

    @property
    def chosen(self) -> Sequence[int]:
        """The positions of the active leaves."""
        return self._places(self.active)

    def focus(self, mask: Sequence[bool]) -> Self:
        """Restrict the scope to the leaves in a mask."""
        if mask is self.scope:
            return self
        return self._scoped(self.source.mask(map(operator.and_, mask, self.scope)))

    def widen(self, outer: Pending) -> Self:
        """Restore the scope of the view that this one was focused from; stopped leaves stay holes."""
        return self._scoped(outer.scope)

    def _scoped(self, scope: Mask) -> Self:
        if scope is self.scope and self.stopped is self.source.nothing:
            return self
        active = scope
        if self.stopped is not self.source.nothing:
            active = self.source.mask(map(operator.gt, scope, self.stopped))
        return self if scope == self.scope and active == self.active else self._replace(scope=scope, active=active)

    def _places(self, mask: Mask) -> Sequence[int]:
        """Return the positions where a mask is true."""
        if mask is self.source.everything:
            return range(len(self.leaves))
        return () if mask is self.source.nothing else [i for i, there in enumerate(mask) if there]

    # --- what is pending, applied --------------------------------------------------------------------------------

    def settled(self) -> Self:
        """Apply the pending factors of the active leaves."""
        return self if self.factor is None else self.given(self._multiplied(self.chosen))

    def materialized(self) -> Self:
        """Apply the pending factors of the active leaves and round them to their dtypes."""
        view = self.settled()
        if not self.source.kinds & NARROW:
            return view
        wide = [view.leaves[i] for i in self.chosen]
        new = self._narrowed(self.chosen, wide)
        return view if all(map(operator.is_, new, wide)) else view.given(new, applied=False)

    def shown(self) -> Self:
        """Return the active leaves as they would be returned now, read-only; overflow is infinite.

        Half precision stays in float32, since a compiler may drop a cast to a narrower dtype and back.
        """
        narrow = [i for i in self.chosen if self.source.dtypes[i] in NARROW and not self._is_given(i)]
        ends = [self._ended(i, ENDS[self.source.dtypes[i]]) for i in narrow]
        return self._replace(owned=self.source.nothing).with_leaves(narrow, ends, applied=True).settled()

    def dense(self) -> Self:
        """Make the active leaves dense."""
        self.check_inexact()
        return self.densified()

    def given(self, new: Sequence[Array], applied: bool = True) -> Self:
        """Replace the active leaves of a dense view with new arrays that no state holds.

        `applied`: the arrays include the pending factors.
        """
        return self.with_leaves(self.chosen, new, applied=applied)

    def lent(self) -> Self:
        """Mark the active leaves as not writable."""
        return self._replace(owned=self.source.mask(map(operator.gt, self.owned, self.active)))

    def replaced(self, new: dict[int, Array]) -> Self:
        """Replace some leaves with arrays of a foreign transformation."""
        view = self.densified()
        # The arrays may belong to the user, or share memory.
        owned = self.source.mask(own and i not in new for i, own in enumerate(view.owned))
        return view.with_leaves(list(new), list(new.values()), applied=True)._replace(owned=owned)

    def is_owned(self, places: Sequence[int]) -> bool:
        """Whether all of some leaves may be written in place."""
        return self.owned is self.source.everything or all(self.owned[i] for i in places)

    def factors(self, places: Sequence[int]) -> Any:
        """Return the pending factors of some leaves; None if nothing is pending."""
        factor = self.factor
        if factor is not None and len(places) < len(self.leaves):
            factor = self.backend.compute(formulas.take, factor, index=tuple(places))
        return factor

    def with_leaves(self, places: Sequence[int], new: Sequence[Array], applied: bool = False) -> Self:
        """Replace some leaves. `applied`: the new leaves include the pending factors."""
        if not places:
            return self
        if len(places) == len(self.leaves):
            made = map(operator.is_not, new, self.leaves)
            owned = self.owned if self.owned is self.source.everything else map(operator.or_, self.owned, made)
            view = self._replace(leaves=tuple(new), owned=self.source.mask(owned), measured={})
            return view._replace(factor=None, due=self.source.nothing) if applied else view
        leaves, mine, keep = list(self.leaves), list(self.owned), [True] * len(self.leaves)
        for i, leaf in zip(places, new, strict=True):
            mine[i], leaves[i], keep[i] = mine[i] or leaf is not leaves[i], leaf, False
        factor, due = self.factor, self.due
        if applied and factor is not None:
            due = self.source.mask(map(operator.and_, due, keep))
            left = due is not self.source.nothing
            factor = self.backend.compute(formulas.where_active, factor, active=tuple(keep)) if left else None
        measured = {key: norm for key, norm in self.measured.items() if key[1] >= 0 and keep[key[1]]}
        view = self._replace(leaves=tuple(leaves), owned=self.source.mask(mine), measured=measured)
        return view._replace(factor=factor, due=due)

    def densified(self) -> Self:
        """Convert the active sparse leaves to dense ones."""
        if self.source.rebuild is None:
            return self
        rebuild, leaves = list(self.source.rebuild), list(self.leaves)
        for i in self.chosen:
            back = rebuild[i]
            if back is not None:
                leaves[i], rebuild[i] = self.backend.densify(back(leaves[i])), None
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)), leaves=tuple(leaves))

    def sparse(self, transform: str) -> Self:
        """Make the active leaves sparse in the result.

        Raises:
            TypeError: the framework has no sparse gradients; names the transform and the path.
        """
        rebuild = list(self.source.rebuild or [None] * len(self.leaves))
        for i in self.chosen:
            make = rebuild[i] or self.backend.sparse(self.leaves[i])
            if make is None:
                raise TypeError(
                    f"{transform}: the gradient at {self.source.path(i)!r} cannot become sparse: {self.backend.title} "
                    f"has no sparse gradients of single elements for a {type(self.leaves[i]).__name__}; leave "
                    "sparse=True out"
                )
            rebuild[i] = make
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)))

    # --- the way out ---------------------------------------------------------------------------------------------

    def results(self) -> list[Any]:
        """Return the transformed leaves of the original tree, with None and float0 in place."""
        source, leaves = self.source, list(self.leaves)
        if self.factor is not None:
            live = self._live()
            for i, leaf in zip(live, self._multiplied(live), strict=True):
                leaves[i] = leaf
        if source.kinds & NARROW:
            leaves = self._narrowed(range(len(leaves)), leaves)
        if self.stopped is not source.nothing:
            halted = self._places(self.stopped)
            for i, zero in zip(halted, self.backend.zeros([leaves[i] for i in halted]), strict=True):
                leaves[i] = zero
        if source.rebuild is not None:
            rebuilds = zip(leaves, source.rebuild, strict=True)
            leaves = [leaf if rebuild is None else rebuild(leaf) for leaf, rebuild in rebuilds]
        if len(leaves) == len(source.slots):
            return leaves
        out = list(source.slots)
        for slot, leaf in zip(source.kept, leaves, strict=True):
            out[slot] = leaf
        return out

    def tree(self) -> Any:
        """Return the transformed tree."""
        return self.backend.unflatten(self.source.structure, self.results())

    def scoped_tree(self) -> Any:
        """Return the tree of the leaves in scope: zeros for stopped leaves, None for leaves out of scope."""
        return self.backend.unflatten(self.source.structure, self._scoped_slots())

    def scoped_view(self) -> Self:
        """Return the view of `scoped_tree`, with the same paths. Without leaves, it keeps all slots."""
        source = self.source
        given = source.structure, source.find_paths
        found = self.of(source.backend, self._scoped_slots(), *given, owners=source.owners)
        if found is None:
            found = self.holes(source.backend, source.slots, *given, source.owners)
        return found._replace(groups=self.groups)

    def _scoped_slots(self) -> list[Any]:
        out: list[Any] = [None] * len(self.source.slots)
        results = self.settled()._replace(factor=None, due=self.source.nothing).results()
        for i in self._places(self.scope):
            out[self.source.kept[i]] = results[self.source.kept[i]]
        return out

    def skipped(self) -> set[int]:
        """Return the slots of the stopped leaves, for adapters that can skip a variable."""
        return {self.source.kept[i] for i in self._places(self.stopped)}

    def check_inexact(self) -> None:
        """Reject an active leaf whose dtype is neither floating-point nor complex."""
        checks.dtypes(self.source, self.chosen, INEXACT, checks.FLOATING)

    # --- inside --------------------------------------------------------------------------------------------------

    def _live(self) -> Sequence[int]:
        """Return the positions of the leaves that are not stopped."""
        every = range(len(self.leaves))
        return every if self.stopped is self.source.nothing else [i for i in every if not self.stopped[i]]

    def _multiplied(self, places: Sequence[int]) -> Sequence[Array]:
        """Multiply some leaves by their pending factors."""
        due = places if self.due is self.source.everything else [i for i in places if self.due[i]]
        if not due:
            return [self.leaves[i] for i in places]
        leaves: Sequence[Array] = [self.leaves[i] for i in due]
        leaves = self.backend.multiply(leaves, self.factors(due), self.is_owned(due))
        if len(due) == len(places):
            return leaves
        new = dict(zip(due, leaves, strict=True))
        return [new.get(i, self.leaves[i]) for i in places]

    def _is_given(self, i: int) -> bool:
        """Whether a leaf would be returned unchanged."""
        return self.factor is None and self.leaves[i].dtype == self.source.given(i).dtype

    def _ended(self, i: int, end: float) -> Array:
        """Multiply a leaf by its factor in float32; infinite from `end` on."""
        factors = None if self.factor is None else [self.backend.compute(formulas.take, self.factor, index=i)]
        return self.backend.elementwise(formulas.ended, [[self.leaves[i]]], (), factors, end=end)[0]

    def _narrowed(self, places: Sequence[int], leaves: Sequence[Array]) -> list[Array]:
        """Cast the new values of some leaves to their original dtypes."""
        given = [self.source.given(i) for i in places]
        wide, out = [n for n, leaf in enumerate(leaves) if leaf.dtype != given[n].dtype], list(leaves)
        if not wide:
            return out
        for n, leaf in zip(wide, self.backend.casts([leaves[n] for n in wide], [given[n] for n in wide]), strict=True):
            out[n] = leaf
        return out
