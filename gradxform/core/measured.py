"""Norms of a flat view, per leaf and global, on this device and on all devices that share the tree."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core import group as devices
from gradxform.core.group import Group
from gradxform.core.pending import Pending
from gradxform.core.source import DOUBLE, SINGLE, Mask
from gradxform.numerics import Array, formulas

_TOGETHER = 0, -2
"""The key of the first global norm and its leaves, beside the norms of single leaves."""


class Slots(NamedTuple):
    """Norms over all devices for each slot of a tree; a device may have None where another has a slice."""

    values: Array
    """0 where no device has an active leaf."""
    there: Array
    """1 where a device has an active leaf, else 0."""


class Norm(NamedTuple):
    """A norm in float64, and whether it is compared with a limit in float32.

    `single` is one bool, or one per leaf: false if a float64 leaf is in scope. If other devices may have such a leaf,
    it is a number gathered from them.
    """

    value: Array
    single: bool | tuple[bool, ...] | Array
    backend: Backend
    slots: Slots | None = None
    """The norms by slot, if devices have slices of leaves and their trees may differ."""

    def everywhere(self) -> Norm:
        """Return the norms of all slots if known, else the norms of the leaves."""
        return self if self.slots is None else self._replace(value=self.slots.values)


class Measured(Pending):
    """A view with norms; each leaf is read once for its norm."""

    __slots__ = ()

    def norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf, including its pending factor, as a vector."""
        return self.common(self.own_norms(ord), ord)[0]

    def common(self, norms: Norm, ord: float, *beside: Array) -> tuple[Norm, *tuple[Array, ...]]:
        """Combine the norms of leaves whose slices are on several devices, and the maxima of other numbers per leaf.

        Returns them unchanged if devices have no slices of leaves.
        """
        if not any(group.by_leaf for group in self.groups):
            return norms, *beside
        vectors = [(norms.value, ord), *((numbers, math.inf) for numbers in beside)]
        if all(group.traced for group in self.groups if group.by_leaf):
            value, *others = map(self._of_leaves, self._common(vectors))
            return norms._replace(value=value), *others
        there = self._beside(norms, map(float, self.active))
        value, *others, held = self._common([*vectors, (there, math.inf)])
        slots = Slots(value, held)
        return norms._replace(value=self._of_leaves(value), slots=slots), *others

    def own_norms(self, ord: float) -> Norm:
        """Return the norms of this device's parts of the leaves."""
        self.check_inexact()
        raw = self._raw_norms(ord)
        value = raw if self.factor is None else self.backend.compute(formulas.scaled_norm, raw, self.factor)
        single = tuple(dtype in SINGLE for dtype in self.source.dtypes) if len(self.source.kinds) > 1 else ()
        return Norm(value, single if len(set(single)) == 2 else self._is_single(), self.backend)

    def global_norm(self, ord: float = 2) -> Norm:
        """Return the global norm of all active leaves, a 0-d number."""
        own = self.own_norms(ord)
        norm = self._norm_of(own, ord, self.groups) if self.groups else self.own_norm_of(own, ord, self.active)
        if self.factor is None and self.scope is self.source.everything:
            self.measured.setdefault(_TOGETHER, (norm, self.active))
        return norm

    def known_norm(self, stopped: Mask, along: bool = False) -> Callable[[], Norm] | None:
        """Return a function for the global norm of the leaves that were not stopped, or None if some were not measured.

        It uses the first measured global norm, else the 2-norm from the norms of the leaves. It never communicates with
        other devices, and keeps no leaf alive.
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
        """Whether all active leaves of all devices are finite, as a 0-d number."""
        ord = math.inf if self.source.kinds & DOUBLE else 2  # the sum of float64 squares may overflow
        own = self.own_norms(ord)
        # Other devices may have chosen the other order, so all combine the norms with inf.
        found = self.shared([(lambda mask: self.own_norm_of(own, ord, mask).value, math.inf)], self.groups)
        return self.backend.compute(formulas.is_finite, found.values[0])

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """Return the global norm from the norms of the leaves."""
        return self._norm_of(norms, ord, self._apart) if self.groups else self.own_norm_of(norms, ord, self.active)

    def own_norm_of(self, norms: Norm, ord: float, mask: Mask) -> Norm:
        """Return the global norm of some leaves of this device."""
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
        """Combine numbers that every device computes from masks of its active leaves, as norms.

        One collective carries them all. By default along the axes on which devices have their own leaves. With `slots`,
        masks cover all slots.
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
        """The groups whose devices have their own leaves."""
        return [group for group in self.groups if not group.by_leaf]

    def _norm_of(self, norms: Norm, ord: float, groups: Sequence[Group]) -> Norm:
        """Return the global norm of the active leaves of all devices."""
        whole = norms.everywhere()
        found = self.shared([(lambda mask: self.own_norm_of(whole, ord, mask).value, ord)], groups, norms.slots)
        return Norm(found.values[0], found.single, self.backend)

    def _common(self, vectors: Sequence[tuple[Any, float]]) -> list[Any]:
        """Combine vectors with one number per leaf over the devices that hold slices, as norms by slot."""
        count, compute = len(self.source.slots), self.backend.compute
        if not count:
            return [value for value, _ in vectors]
        place = {self.source.kept[i]: i for i in self.chosen}
        index, there = tuple(place.get(i, 0) for i in range(count)), tuple(i in place for i in range(count))
        if not all(there):  # another device may have what is None here
            none = compute(formulas.stack, *[0.0] * count)
            spread = [compute(devices.spread, v, index=index, there=there) if self.leaves else none for v, _ in vectors]
            vectors = [(value, ord) for value, (_, ord) in zip(spread, vectors, strict=True)]
        for group in reversed([group for group in self.groups if group.by_leaf]):
            found = devices.of_slots(self.backend, group, vectors, self._like)
            vectors = [(value, ord) for value, (_, ord) in zip(found, vectors, strict=True)]
        return [value for value, _ in vectors]

    def _beside(self, norms: Norm, numbers: Iterable[Any]) -> Array:
        """Turn known numbers of leaves into a vector."""
        return self.backend.compute(devices.beside, norms.value, numbers=tuple(numbers)) if self.leaves else 0.0

    def _of_leaves(self, numbers: Any) -> Any:
        """Select the numbers of the leaves from numbers of slots."""
        kept = tuple(self.source.kept)
        return (
            numbers if len(kept) == len(self.source.slots) else self.backend.compute(formulas.take, numbers, index=kept)
        )

    def rms(self) -> Norm:
        """Return the root mean square of each active leaf, as a vector."""
        return self._per_element(formulas.per_root)

    def average_norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf divided by its number of elements, as a vector."""
        return self._per_element(formulas.per_count, ord)

    def _per_element(self, formula: Callable[..., Array], ord: float = 2) -> Norm:
        """Divide norms by a function of the numbers of elements, which may be unknown until run time."""
        found = [self.backend.count(leaf, None) for leaf in self.densified().leaves]
        norms, compute = self.own_norms(ord), self.backend.compute
        if any(group.by_leaf for group in self.groups):
            counts_of = self._beside(norms, found)
            value, count = map(self._of_leaves, self._common([(norms.value, ord), (counts_of, 1)]))
            return norms._replace(value=compute(_PER_TOLD[formula], value, count))
        if not found:
            return norms
        counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)
        return norms._replace(value=compute(formula, norms.value, counts=counts))

    def _is_single(self) -> bool:
        """Whether the norms of all active leaves are compared in float32."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in self.chosen)

    def _raw_norms(self, ord: float) -> Array:
        """Return the leaves' norms without factors, each measured once; 0 for unmeasured leaves."""
        whole = self.measured.get((ord, -1))
        if whole is not None:
            return whole
        if not self.leaves:
            return self.backend.compute(devices.no_numbers)
        missing = [i for i in self.chosen if (ord, i) not in self.measured] if self.measured else self.chosen
        new = self.backend.norms([self.leaves[i] for i in missing], ord) if missing else None
        if len(missing) == len(self.leaves):
            self.measured[ord, -1] = new
            return new
        for position, i in enumerate(missing):
            self.measured[ord, i] = self.backend.compute(formulas.take, new, index=position)
        known = [self.measured.get((ord, i)) for i in range(len(self.leaves))]
        return self.backend.compute(formulas.stack, *(0.0 if norm is None else norm for norm in known))


_PER_TOLD = {formulas.per_root: devices.per_root, formulas.per_count: devices.per_count}
