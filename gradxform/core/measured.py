"""The norms of a flat view: of leaves and of all together, on this device and on those that share the tree."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core import extended
from gradxform.core import group as devices
from gradxform.core.group import Group
from gradxform.core.pending import Pending
from gradxform.core.source import DOUBLE, SINGLE, Mask
from gradxform.numerics import Array, formulas
from gradxform.numerics import devices as rows

_TOGETHER = 0, -2
"""Where the first norm of leaves together is kept, beside those of each, with which leaves they were."""


class Slots(NamedTuple):
    """Norms of what all devices have in each slot of a tree: where one has None, another may have a slice."""

    values: Array
    """Zero where no device has an active leaf."""
    there: Array
    """One where a device has, else zero."""


class Norm(NamedTuple):
    """A norm in float64, and whether it counts as a float32 one when it is compared with a limit.

    `single` is one bool, or one a leaf: the accumulation dtype is float32 unless a float64 leaf is in the scope. Where
    other devices may have such a leaf, it is a number that they have told.
    """

    value: Array
    single: bool | tuple[bool, ...] | Array
    backend: Backend
    slots: Slots | None = None
    """Of the norms of leaves that devices have slices of, where their trees may differ."""

    def everywhere(self) -> Norm:
        """The norms in all slots, where they are known, else those of the leaves."""
        return self if self.slots is None else self._replace(value=self.slots.values)


class Measured(Pending):
    """A view that is asked for norms; each leaf is read once for its own."""

    __slots__ = ()

    def norms(self, ord: float = 2) -> Norm:
        """The norm of each active leaf, its pending factor included; a vector."""
        return self.common(self.own_norms(ord), ord)[0]

    def common(self, norms: Norm, ord: float, *beside: Array) -> tuple[Norm, *tuple[Array, ...]]:
        """The norms of leaves of which each device knows a part, and the largest of other numbers of leaves.

        By slot, where slots are told. As they are, where devices have no slices of leaves.
        """
        if not any(group.by_leaf for group in self.groups):
            return norms, *beside
        vectors = [(norms.value, ord), *((numbers, math.inf) for numbers in beside)]
        if all(group.traced for group in self.groups if group.by_leaf):
            value, *others = map(self._of_leaves, self._common(vectors))
            return norms._replace(value=value), *others
        there = self._beside(norms, map(float, self.active))
        value, *others, held = self._common([*vectors, (there, math.inf)])
        slots = Slots(value, extended.rounded(self.backend, held))
        return norms._replace(value=self._of_leaves(value), slots=slots), *others

    def own_norms(self, ord: float) -> Norm:
        """The same of what this device has of the leaves."""
        self.check_inexact()
        raw = self._raw_norms(ord)
        value = raw if self.factor is None else self.backend.compute(formulas.scaled_norm, raw, self.factor)
        single = tuple(dtype in SINGLE for dtype in self.source.dtypes) if len(self.source.kinds) > 1 else ()
        return Norm(value, single if len(set(single)) == 2 else self._is_single(), self.backend)

    def global_norm(self, ord: float = 2) -> Norm:
        """The norm over all active leaves together; a 0-d number."""
        own = self.own_norms(ord)
        norm = self._norm_of(own, ord, self.groups) if self.groups else self.own_norm_of(own, ord, self.active)
        if self.factor is None and self.scope is self.source.everything:
            self.measured.setdefault(_TOGETHER, (norm, self.active))
        return norm

    def known_norm(self, stopped: Mask, along: bool = False) -> Callable[[], Norm] | None:
        """The norm over the leaves that were not stopped, if transforms have measured each; None if they have not.

        It is the first norm of them together that was asked for, else the 2-norm, from those of the leaves; not from
        them along axes of devices, which would have to be asked. What is returned keeps no leaf alive.
        """
        source, backend = self.source, self.backend
        left = source.everything if stopped is source.nothing else source.mask(map(operator.not_, stopped))
        found, active = self.measured.get(_TOGETHER, (None, None))
        if found is not None and active == left and self.factor is None:
            return lambda: found
        raw, factor = self.measured.get((2, -1)), self.factor
        every = raw is not None or all((2, i) in self.measured for i in self._places(left))
        if along or not every or left is source.nothing:
            return None
        each = [] if raw is not None else [self.measured.get((2, i), 0.0) for i in range(len(self.leaves))]
        single, active = self.focus(left)._is_single(), None if left is source.everything else left

        def computed() -> Norm:
            norms = backend.compute(formulas.stack, *each) if raw is None else raw
            norms = norms if factor is None else backend.compute(formulas.scaled_norm, norms, factor)
            return Norm(backend.compute(formulas.total_norm_scaled, norms, active=active, ord=2.0), single, backend)

        return computed

    def is_finite(self) -> Array:
        """Whether no active leaf of any device has a NaN or an infinite element; a 0-d number."""
        ord = math.inf if self.source.kinds & DOUBLE else 2  # float64 may not hold the sum of its squares
        own = self.own_norms(ord)
        # Other devices may have chosen the other order: the norms are put together by one that all of them share.
        found = self.shared([(lambda mask: self.own_norm_of(own, ord, mask).value, math.inf)], self.groups)
        return self.backend.compute(formulas.is_finite, found.values[0])

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """The same, from the norms of the leaves."""
        return self._norm_of(norms, ord, self._apart) if self.groups else self.own_norm_of(norms, ord, self.active)

    def own_norm_of(self, norms: Norm, ord: float, mask: Mask) -> Norm:
        """The norm over some leaves of this device."""
        if not any(mask):
            return Norm(0.0, True, self.backend)
        single = self._is_single()
        plain = single and self.factor is None and ord in (1, 2, math.inf) and not self.groups
        formula = formulas.total_norm if plain else formulas.total_norm_scaled
        active = None if mask is self.source.everything else mask
        return Norm(self.backend.compute(formula, norms.value, active=active, ord=float(ord)), single, self.backend)

    def shared(
        self,
        asked: Sequence[tuple[devices.Own, float]],
        groups: Sequence[Group] | None = None,
        slots: Slots | None = None,
    ) -> devices.Whole:
        """Numbers that this device makes of masks of its active leaves, and the others of theirs: the norms of them.

        They are told together; by default, along axes on which each device has leaves of its own. Of slots, if there
        are any, masks are of all of them.
        """
        groups, single = self._apart if groups is None else groups, self._is_single()
        mask, kept = self.active, self.source.kept
        if slots is not None:
            mask, kept = (True,) * len(self.source.slots), range(len(self.source.slots))
        there = None if slots is None else slots.there
        return devices.whole(self.backend, groups, asked, mask, kept, single, self._like, there)

    @property
    def _like(self) -> Array | None:
        return self.leaves[0] if self.leaves else None

    @property
    def _apart(self) -> Sequence[Group]:
        """The groups whose devices have leaves of their own."""
        return [group for group in self.groups if not group.by_leaf]

    def _norm_of(self, norms: Norm, ord: float, groups: Sequence[Group]) -> Norm:
        """The norm over the active leaves of all devices."""
        whole = norms.everywhere()
        found = self.shared([(lambda mask: self.own_norm_of(whole, ord, mask).value, ord)], groups, norms.slots)
        return Norm(found.values[0], found.single, self.backend)

    def _common(self, vectors: Sequence[tuple[Any, float]]) -> list[Any]:
        """Vectors with one number a leaf, of which each device knows a part, as the norms of these parts, by slot."""
        count, compute = len(self.source.slots), self.backend.compute
        if not count:
            return [value for value, _ in vectors]
        place = {self.source.kept[i]: i for i in self.chosen}
        index, there = tuple(place.get(i, 0) for i in range(count)), tuple(i in place for i in range(count))
        if not all(there):  # as another device may have what is None here
            none = compute(formulas.stack, *[0.0] * count)
            spread = [compute(rows.spread, v, index=index, there=there) if self.leaves else none for v, _ in vectors]
            vectors = [(value, ord) for value, (_, ord) in zip(spread, vectors, strict=True)]
        for group in reversed([group for group in self.groups if group.by_leaf]):
            found = devices.of_slots(self.backend, group, vectors, self._like)
            vectors = [(value, ord) for value, (_, ord) in zip(found, vectors, strict=True)]
        return [value for value, _ in vectors]

    def _beside(self, norms: Norm, numbers: Iterable[Any]) -> Array:
        """Known numbers of leaves as a vector."""
        return self.backend.compute(rows.beside, norms.value, numbers=tuple(numbers)) if self.leaves else 0.0

    def _of_leaves(self, numbers: Any) -> Any:
        """Numbers of slots as those of leaves."""
        kept = tuple(self.source.kept)
        return (
            numbers if len(kept) == len(self.source.slots) else self.backend.compute(formulas.take, numbers, index=kept)
        )

    def rms(self) -> Norm:
        """The root mean square of each active leaf; a vector."""
        return self._per_element(formulas.per_root)

    def average_norms(self) -> Norm:
        """The norm of each active leaf over its number of elements; a vector."""
        return self._per_element(formulas.per_count)

    def _per_element(self, formula: Callable[..., Array]) -> Norm:
        """The norms in relation to the numbers of elements, which may not be known before it runs."""
        found = [self.backend.count(leaf, None) for leaf in self.densified().leaves]
        norms, compute = self.own_norms(2), self.backend.compute
        if any(group.by_leaf for group in self.groups):
            counts_of = self._beside(norms, found)
            value, count = map(self._of_leaves, self._common([(norms.value, 2), (counts_of, 1)]))
            return norms._replace(value=compute(_PER_TOLD[formula], value, count))
        if not found:
            return norms
        counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)
        return norms._replace(value=compute(formula, norms.value, counts=counts))

    def _is_single(self) -> bool:
        """Whether all active leaves are of dtypes whose norms count in float32."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in self.chosen)

    def _raw_norms(self, ord: float) -> Array:
        """The vector of the leaves' own norms, each measured once; zero for a leaf that no one has asked for."""
        whole = self.measured.get((ord, -1))
        if whole is not None:
            return whole
        if not self.leaves:
            return self.backend.compute(rows.none)
        missing = [i for i in self.chosen if (ord, i) not in self.measured] if self.measured else self.chosen
        new = self.backend.norms([self.leaves[i] for i in missing], ord) if missing else None
        if len(missing) == len(self.leaves):
            self.measured[ord, -1] = new
            return new
        for position, i in enumerate(missing):
            self.measured[ord, i] = self.backend.compute(formulas.take, new, index=position)
        known = [self.measured.get((ord, i)) for i in range(len(self.leaves))]
        return self.backend.compute(formulas.stack, *(0.0 if norm is None else norm for norm in known))


_PER_TOLD = {formulas.per_root: rows.per_root, formulas.per_count: rows.per_count}
