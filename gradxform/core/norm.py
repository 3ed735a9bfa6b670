"""Norms of leaves and trees, on one device and over several, and the coefficients that limit them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core import group as devices
from gradxform.core.group import Group
from gradxform.core.leaves import SINGLE, Leaves
from gradxform.numerics import DOUBLE, Array, formulas
from gradxform.numerics.formulas import Mask

_FIRST = "first"
"""The key of the first global norm and its leaves, beside the norms of single leaves."""


class Slots(NamedTuple):
    """What all devices know of each slot of a tree; a device may have None where another has a slice."""

    values: Array
    """The norm; 0 where no device has an active leaf."""
    there: Array
    """1 where a device has an active leaf, else 0."""
    double: Array
    """1 where that leaf is float64, else 0."""


class Norm(NamedTuple):
    """A norm in float64, and whether it is compared with a limit as a float32 number.

    `single` is one bool, or one per leaf: false if a float64 leaf is in scope. If other devices may have such a leaf,
    it is a number gathered from them.
    """

    value: Array
    single: bool | tuple[bool, ...] | Array
    backend: Backend
    slots: Slots | None = None
    """The norms by slot, if other devices hold parts of the tree."""


def clip_coefficient(norm: Norm, max_norm: Any) -> Array:
    """Return min(1, max_norm / norm), correct at zero, at the limit, at infinity and for nonfinite norms."""
    if isinstance(norm.single, (bool, tuple)):
        return norm.backend.compute(formulas.clip_coefficient, norm.value, max_norm, single=norm.single)
    return norm.backend.compute(formulas.clip_coefficient, norm.value, max_norm, norm.single)


def _beside(xp: Any, vector: Array, *, numbers: tuple[Any, ...]) -> Array:
    """Turn known numbers into a vector on the device of another one."""
    return formulas.stack(xp, *numbers)


class Measured(Leaves):
    """The leaves of one tree of gradients, and their norms: each leaf is read once for its norm."""

    __slots__ = ()

    def norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf, including its pending factor, as a vector."""
        norms = self.own_norms(ord)
        return self.common(norms, ord)[0] if self.groups else norms

    def global_norm(self, ord: float = 2) -> Norm:
        """Return the global norm of all active leaves, a 0-d number."""
        norm = self.norm_of(self.norms(ord), ord)
        if self.factor is None and _FIRST not in self.measured and len(self.scope) == len(self.leaves):
            self._remember(_FIRST, (norm, self.chosen))
        return norm

    def known_norm(self, value: Any) -> Norm:
        """Return a norm that was measured elsewhere, as the global norm of the active leaves."""
        return Norm(value, self._is_single(), self.backend)

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """Return the global norm from the norms of the leaves; that of this device, if they are not common."""
        if norms.slots is None:
            if not self.chosen:
                return Norm(0.0, True, self.backend)
            mask = self.active if len(self.chosen) < len(self.leaves) else None
            return Norm(self.total(norms.value, mask, ord), norms.single is True, self.backend)
        values, _, double = norms.slots
        asked = [(lambda mask: self.total(values, mask, ord), ord)]
        if all(group.traced for group in self.groups):
            return Norm(self.shared(asked)[0], self._is_single(), self.backend)
        value, wide = self.shared([*asked, (lambda mask: self.total(double, mask, math.inf), math.inf)])
        single = self.backend.compute(formulas.difference, 1.0, wide)
        return Norm(value, bool(single) if isinstance(single, float) else single, self.backend)

    def rms(self) -> Norm:
        """Return the root mean square of each active leaf, as a vector."""
        return self._per_element(2, root=True)

    def average_norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf divided by its number of elements, as a vector."""
        return self._per_element(ord, root=False)

    def is_finite(self) -> Array:
        """Whether all active leaves of all devices are finite, as a 0-d number."""
        ord = math.inf if self.source.kinds & DOUBLE else 2  # the sum of float64 squares may overflow
        own = self.norm_of(self.own_norms(ord), ord).value
        # Other devices may have chosen the other order, so all combine the norms with inf.
        return self.backend.compute(formulas.is_finite, self.shared([(lambda mask: own, math.inf)], self.groups)[0])

    def norm_before(self, left: Leaves, along: bool = False) -> Callable[[], Norm] | None:
        """Return a function for the global norm of this tree's leaves that are not stopped in what is left of it.

        None if some were not measured. It uses the first measured global norm, else the 2-norm from the norms of the
        leaves. It never communicates with other devices, and keeps no leaf alive.
        """
        live = [i for i in range(len(self.leaves)) if i not in left.stopped]
        found, chosen = self.measured.get(_FIRST, (None, ()))
        if found is not None and list(chosen) == live and self.factor is None:
            return lambda: found
        if along or not live or not self.measured.get(2.0, (0.0, frozenset()))[1].issuperset(live):
            return None
        without = self.source._replace(slots=())
        return self._replace(source=without, leaves=[None] * len(self.leaves), chosen=live).global_norm

    def own_norms(self, ord: float) -> Norm:
        """Return the norms of this device's parts of the leaves, each measured once; any number for holes."""
        self.check()
        order, count, compute = float(ord), len(self.leaves), self.backend.compute
        vector, known = self.measured.get(order, (0.0, frozenset()))
        missing = [i for i in self.chosen if i not in known] if known else self.chosen
        if not self.chosen:
            vector = self.vector([0.0] * count)
        elif len(missing) == count:
            vector = self.backend.norms(self.leaves, order)
        elif missing:
            rank = {i: rank for rank, i in enumerate(missing)}
            new = self.backend.norms([self.leaves[i] for i in missing], order)
            new = compute(formulas.take, new, index=tuple([rank.get(i, 0) for i in range(count)]))
            vector = compute(formulas.where_active, new, vector, active=self.mask(missing))
        if missing:
            self._remember(order, (vector, known.union(missing)))
        value = vector if self.factor is None else compute(formulas.scaled_norm, vector, self.factor)
        single: Any = self._is_single()
        if not single and not self.source.kinds.isdisjoint(SINGLE):
            single = tuple([dtype in SINGLE for dtype in self.source.dtypes])
        return Norm(value, single, self.backend)

    def total(self, norms: Array, mask: Mask | None, ord: float) -> Array:
        """Combine the norms of some slots, or leaves."""
        plain = self.factor is None and not self.groups and ord in (1, 2, math.inf) and self._is_single()
        return self.backend.compute(formulas.total_norm, norms, active=mask, ord=float(ord), scaled=not plain)

    def _is_single(self) -> bool:
        """Whether the norms of the active leaves are compared as float32 numbers."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in self.chosen)

    def _remember(self, key: Any, found: Any) -> None:
        """Keep what was measured, but not in a branch inside of the trace that read the leaves: it would leave it."""
        if self.trace is None or self.backend.xp.current_trace() == self.trace:
            self.measured[key] = found

    def _per_element(self, ord: float, *, root: bool) -> Norm:
        """Divide norms by the numbers of elements or their roots, which may be unknown until run time."""
        found = tuple([self.backend.count(leaf, None) for leaf in self.dense().leaves])
        norms, known = self.own_norms(ord), found
        gathered: tuple[Array, ...] = ()
        if any(group.by_leaf for group in self.groups):
            norms, counts = self.common(norms, ord, (self.vector(found, norms.value), 1))
            gathered, known = (self._of_leaves(counts),), ()
        if not found:
            return norms
        formula = formulas.per_element
        return norms._replace(value=self.backend.compute(formula, norms.value, *gathered, root=root, counts=known))

    # --- norms over devices --------------------------------------------------------------------------------------

    def common(self, norms: Norm, ord: float, *beside: tuple[Array, float]) -> tuple[Norm, *tuple[Array, ...]]:
        """Combine the norms of leaves, and numbers beside them with an order, over the devices that hold slices.

        One collective for each axis carries them all. What is beside them is returned by slot.
        """
        if not self.groups:
            return norms, *[numbers for numbers, _ in beside]
        count, slots = len(self.source.slots), self.by_slot(norms)
        known = [(slots.there, math.inf), (slots.double, math.inf)]
        given = [(slots.values, ord), *[(self._by_slot(numbers), order) for numbers, order in beside], *known]
        slices = [group for group in self.groups if group.by_leaf and count]
        told = len(given) if not all(group.traced for group in slices) else len(given) - len(known)
        for group in reversed(slices):
            found = devices.of_slots(self.backend, group, count, given[:told], self.leaves)
            given[:told] = [(value, order) for value, (_, order) in zip(found, given, strict=False)]
        value, *others, there, double = [value for value, _ in given]
        return norms._replace(value=self._of_leaves(value), slots=Slots(value, there, double)), *others

    def shared(
        self, asked: Sequence[tuple[devices.Own, float]], groups: Sequence[Group] | None = None
    ) -> Sequence[Array]:
        """Combine numbers that every device computes from its active leaves, as norms; with one collective per axis.

        Args:
            asked: functions of a mask, and the orders of the norms. With groups, masks are by slot, and true where
                another device may have a leaf.
            groups: by default the axes on which devices have their own leaves.
        """
        if not self.groups:
            return [own(self.active) if self.chosen else 0.0 for own, _ in asked]
        groups = [group for group in self.groups if not group.by_leaf] if groups is None else groups
        mask = (True,) * len(self.source.slots)
        found = devices.whole(self.backend, groups, asked, [mask], self.leaves)
        return [self.backend.compute(formulas.take, found, index=i) for i in range(len(asked))]

    def vector(self, numbers: Sequence[Any], beside: Array | None = None) -> Array:
        """Turn numbers of the leaves into a vector; known ones on the device of another, to which nothing is sent."""
        if beside is None:
            return self.backend.compute(formulas.stack, *numbers)
        return self.backend.compute(_beside, beside, numbers=tuple(numbers))

    def by_slot(self, norms: Norm) -> Slots:
        """Arrange the norms of this device's leaves by slot."""
        double = [float(dtype in DOUBLE) for dtype in self.source.dtypes]
        vectors = norms.value, self.vector([1.0] * len(double), norms.value), self.vector(double, norms.value)
        return Slots(*map(self._by_slot, vectors))

    def _by_slot(self, numbers: Array) -> Array:
        """Arrange numbers of the leaves by slot; zero where there is no active leaf."""
        place = {self.source.kept[i]: i for i in self.chosen}
        slots, compute = range(len(self.source.slots)), self.backend.compute
        if not place:
            return self.vector([0.0] * len(slots))
        index, there = tuple(place.get(i, 0) for i in slots), tuple(i in place for i in slots)
        numbers = compute(formulas.take, numbers, index=index)
        return numbers if all(there) else compute(formulas.where_active, numbers, 0.0, active=there)

    def _of_leaves(self, numbers: Array) -> Array:
        """Select the numbers of the leaves from numbers of slots."""
        kept = tuple(self.source.kept)
        every = len(kept) == len(self.source.slots)
        return numbers if every else self.backend.compute(formulas.take, numbers, index=kept)
