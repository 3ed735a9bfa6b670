"""The leaves of one tree of gradients: which are in scope, what is pending for them, and the way back to the tree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gradxform.backend.lookup import belong, opened
from gradxform.backend.protocol import Backend
from gradxform.core.group import Group, Mask
from gradxform.core.source import ENDS, FLOATING, INEXACT, NARROW, Source, adopted, names
from gradxform.numerics import Array, current_trace, formulas

TRACE = "trace"
"""The key of the trace that read the leaves, beside what was measured."""


class _Fields(NamedTuple):
    backend: Backend
    """The framework that owns the leaves."""
    source: Source
    leaves: Sequence[Array]
    scope: Sequence[int]
    """The positions of the leaves that the current transform applies to, including stopped ones."""
    chosen: Sequence[int]
    """The same without stopped ones."""
    owned: Mask
    """Leaves that may be written in place: all in an in-place run, else the ones made by a transform."""
    measured: dict[Any, Any]
    """Norms of this device's leaves, without pending factors, by order."""
    stopped: Mask = ()
    """Empty if no leaf is stopped."""
    factor: Array | float | None = None
    """What the leaves are still to be multiplied by: a number, or a vector with one number per leaf."""
    due: Mask = ()
    """Leaves that the factor may change; it is 1 for the others. Empty if it may change all."""
    groups: tuple[Group, ...] = ()
    """The groups of devices that hold parts of the tree, outermost first."""


class Leaves(_Fields):
    """The leaves of one tree of gradients, with pending factors and measured norms."""

    __slots__ = ()

    @classmethod
    def read(cls, tree: Any) -> Self | None:
        """Read a tree of arrays; None if it has no array. A view is returned unchanged.

        Raises:
            TypeError: arrays of two frameworks, or a leaf that is not an array; names the paths.
        """
        if isinstance(tree, cls):
            return tree
        backend, (leaves, structure) = opened(tree)
        if backend is None:
            return None
        return cls.of(backend, leaves, structure, lambda: backend.paths(tree))

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
        given, kinds = slots, set(map(type, slots))
        if not belong(backend, kinds):
            slots = [slot if slot is None else adopted(backend, slots, i, paths) for i, slot in enumerate(slots)]
        kept: Sequence[int] = range(len(slots))
        leaves: Sequence[Any] = slots
        if type(None) in kinds:
            kept = [i for i, slot in enumerate(slots) if slot is not None]
            leaves = [slots[i] for i in kept]
        dtypes = names(backend, leaves)
        if "float0" in dtypes:
            kept = [slot for slot, dtype in zip(kept, dtypes, strict=True) if dtype != "float0"]
            leaves, dtypes = [slots[i] for i in kept], [dtype for dtype in dtypes if dtype != "float0"]
        if not kept:
            return None
        dense, rebuild = backend.dense(leaves)
        back = None if rebuild is None else tuple(rebuild)
        source = Source(structure, slots, kept, tuple(dtypes), frozenset(dtypes), back, paths, owners)
        owned = tuple([slots[i] is given[i] for i in kept]) if inplace else (False,) * len(kept)
        every = range(len(kept))
        return cls(backend, source, dense, every, every, owned, {TRACE: current_trace(backend.xp)})

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
        return cls(backend, Source(structure, slots, (), (), frozenset(), None, paths, owners), (), (), (), (), {})

    # --- scope ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Mask:
        """For each leaf, whether it is in scope and not stopped."""
        return self.mask(self.chosen)

    def focus(self, mask: Sequence[bool]) -> Self:
        """Restrict the scope to the leaves in a mask."""
        scope = [i for i in self.scope if mask[i]]
        if len(scope) == len(self.scope):
            return self
        return self._replace(scope=scope, chosen=[i for i in self.chosen if mask[i]] if self.stopped else scope)

    def widen(self, outer: Leaves) -> Self:
        """Restore the scope of the view that this one was focused from; stopped leaves stay holes."""
        if self.scope is outer.scope:
            return self
        chosen = [i for i in outer.scope if not self.stopped[i]] if self.stopped else outer.scope
        return self._replace(scope=outer.scope, chosen=chosen)

    def stop(self) -> Self:
        """Stop the active leaves: zeros in the result, holes for later transforms; adapters may skip them."""
        chosen = self.mask(self.chosen)
        stopped = tuple(map(operator.or_, self.stopped, chosen)) if self.stopped else chosen
        return self._replace(stopped=stopped, chosen=())

    def mask(self, places: Sequence[int]) -> Mask:
        """Return the mask of some leaves."""
        found = [False] * len(self.leaves)
        for i in places:
            found[i] = True
        return tuple(found)

    def check(self, wanted: frozenset[str] = INEXACT, why: str = FLOATING, transform: str = "") -> None:
        """Reject an active leaf whose dtype is not in `wanted`."""
        if self.source.kinds <= wanted:
            return
        for i in self.chosen:
            dtype = self.source.dtypes[i]
            if dtype not in wanted:
                name, why = f"{transform}: " if transform else "", why if dtype in INEXACT else FLOATING
                raise TypeError(f"{name}the gradient at {self.source.path(i)!r} has dtype {dtype}; {why}")

    # --- what is pending, applied --------------------------------------------------------------------------------

    def settled(self) -> Self:
        """Apply the pending factors of the active leaves."""
        return self if self.factor is None else self.given(self._multiplied(self.chosen))

    def materialized(self) -> Self:
        """Apply the pending factors of the active leaves and round them to their dtypes."""
        view = self.settled()
        wide = [view.leaves[i] for i in self.chosen]
        new = self._narrowed(self.chosen, wide)
        return view if new is wide else view.given(new, applied=False)

    def shown(self) -> Self:
        """Return the active leaves as they would be returned now, read-only; overflow is infinite.

        Half precision stays in float32, since a compiler may drop a cast to a narrower dtype and back.
        """
        narrow = [i for i in self.chosen if self.source.dtypes[i] in NARROW and not self._is_given(i)]
        ends = [self._ended(i, ENDS[self.source.dtypes[i]]) for i in narrow]
        return self.lent().with_leaves(narrow, ends, applied=True).settled()

    def dense(self) -> Self:
        """Make the active leaves dense; reject integers."""
        self.check()
        return self.densified()

    def densified(self) -> Self:
        """Make the active leaves dense."""
        if self.source.rebuild is None:
            return self
        rebuild, leaves = list(self.source.rebuild), list(self.leaves)
        for i in self.chosen:
            back = rebuild[i]
            if back is not None:
                leaves[i], rebuild[i] = self.backend.dense([back(leaves[i])], whole=True)[0][0], None
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)), leaves=leaves)

    def sparse(self, transform: str) -> Self:
        """Make the active leaves sparse in the result.

        Raises:
            TypeError: the framework has no sparse gradients; names the transform and the path.
        """
        rebuild = list(self.source.rebuild or [None] * len(self.leaves))
        for i in self.chosen:
            rebuild[i] = rebuild[i] or self.backend.sparse(self.leaves[i])
            if rebuild[i] is None:
                raise TypeError(
                    f"{transform}: the gradient at {self.source.path(i)!r} cannot become sparse: {self.backend.title} "
                    f"has no sparse gradients of single elements for a {type(self.leaves[i]).__name__}; leave "
                    "sparse=True out"
                )
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)))

    def given(self, new: Sequence[Array], applied: bool = True) -> Self:
        """Replace the active leaves of a dense view with new arrays that no state holds.

        `applied`: the arrays include the pending factors.
        """
        return self.with_leaves(self.chosen, new, applied)

    def with_leaves(self, places: Sequence[int], new: Sequence[Array], applied: bool = False) -> Self:
        """Replace some leaves. `applied`: the new leaves include the pending factors."""
        if not places:
            return self
        factor, due = self.factor, self.due
        measured: dict[Any, Any] = {TRACE: self.measured.get(TRACE)}
        if len(places) == len(self.leaves):
            leaves, replaced = new, (True,) * len(new)
            factor, due = (None, ()) if applied else (factor, due)
        else:
            leaves, replaced = list(self.leaves), self.mask(places)
            for i, leaf in zip(places, new, strict=True):
                leaves[i] = leaf
            if applied and factor is not None:
                due = tuple(map(operator.gt, due or (True,) * len(leaves), replaced))
                keep = tuple(map(operator.not_, replaced))
                factor = self.backend.compute(formulas.where_active, factor, active=keep) if any(due) else None
            measured |= {ord: norms.without(places) for ord, norms in self.measured.items() if type(ord) is float}
        owned = tuple([mine or new is not old for mine, new, old in zip(self.owned, leaves, self.leaves, strict=True)])
        return self._replace(leaves=leaves, owned=owned, factor=factor, due=due, measured=measured)

    def lent(self) -> Self:
        """Mark the active leaves as not writable, since a state or the user may hold them."""
        return self._replace(owned=tuple(map(operator.gt, self.owned, self.active)))

    def is_owned(self, places: Sequence[int]) -> bool:
        """Whether all of some leaves may be written in place."""
        return all(self.owned[i] for i in places)

    def each_factor(self) -> list[Any] | None:
        """Return the pending factor of each active leaf; None if nothing is pending."""
        factor = self.factor
        if factor is None or isinstance(factor, (int, float)) or not len(factor.shape):
            return factor if factor is None else [factor] * len(self.chosen)
        if isinstance(factor, np.ndarray):
            return [float(factor[i]) for i in self.chosen]
        return [self.backend.compute(formulas.take, factor, index=i) for i in self.chosen]

    def factors(self, places: Sequence[int]) -> Any:
        """Return the pending factors of some leaves; None if nothing is pending."""
        if self.factor is None or len(places) == len(self.leaves):
            return self.factor
        return self.backend.compute(formulas.take, self.factor, index=tuple(places))

    # --- the way out ---------------------------------------------------------------------------------------------

    def results(self) -> list[Any]:
        """Return the transformed leaves of the original tree, with None and float0 in place."""
        source, leaves, every = self.source, self.leaves, range(len(self.leaves))
        live = self.live(self.stopped) if self.stopped else every
        if self.factor is not None:
            new = self._multiplied(live)
            leaves = new if len(live) == len(leaves) else _put(leaves, live, new)
        leaves = self._narrowed(every, leaves)
        if self.stopped:
            halted = [i for i in every if self.stopped[i]]
            leaves = _put(leaves, halted, self.backend.zeros([leaves[i] for i in halted]))
        if source.rebuild is not None:
            rebuilds = zip(leaves, source.rebuild, strict=True)
            leaves = [leaf if rebuild is None else rebuild(leaf) for leaf, rebuild in rebuilds]
        return list(leaves) if len(leaves) == len(source.slots) else _put(source.slots, source.kept, leaves)

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
        found = self.of(self.backend, self._scoped_slots(), *given, owners=source.owners)
        if found is None:
            found = self.holes(self.backend, source.slots, *given, source.owners)
        return found._replace(groups=self.groups)

    def _scoped_slots(self) -> list[Any]:
        results, kept = self.settled()._replace(factor=None, due=()).results(), self.source.kept
        slots = [kept[i] for i in self.scope]
        return _put([None] * len(results), slots, [results[slot] for slot in slots])

    def skipped(self) -> set[int]:
        """Return the slots of the stopped leaves, for adapters that can skip a variable."""
        return {slot for slot, stopped in zip(self.source.kept, self.stopped, strict=False) if stopped}

    def live(self, stopped: Mask) -> Sequence[int]:
        """Return the positions of the leaves that are not stopped."""
        every = range(len(self.leaves))
        return [i for i in every if not stopped[i]] if stopped else every

    # --- inside --------------------------------------------------------------------------------------------------

    def _multiplied(self, places: Sequence[int]) -> Sequence[Array]:
        """Multiply some leaves by their pending factors."""
        due = [i for i in places if self.due[i]] if self.due else places
        if not due:
            return [self.leaves[i] for i in places]
        leaves = self.leaves if len(due) == len(self.leaves) else [self.leaves[i] for i in due]
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

    def _narrowed(self, places: Sequence[int], leaves: Sequence[Array]) -> Sequence[Array]:
        """Cast the new values of some leaves to their original dtypes."""
        if not self.source.kinds & NARROW:
            return leaves
        given = [self.source.given(i) for i in places]
        wide = [n for n, leaf in enumerate(leaves) if leaf.dtype != given[n].dtype]
        if not wide:
            return leaves
        return _put(leaves, wide, self.backend.cast([leaves[n] for n in wide], [given[n] for n in wide]))


def _put(items: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return the items with new ones in some places."""
    if len(places) == len(items):
        return list(new)
    out = list(items)
    for place, item in zip(places, new, strict=True):
        out[place] = item
    return out
