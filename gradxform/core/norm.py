"""Norms of leaves and trees, on one device and over several, and the coefficients that limit them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core import group as devices
from gradxform.core.group import Group, Mask
from gradxform.core.leaves import SINGLE, Leaves
from gradxform.numerics import DOUBLE, Array, formulas

_FIRST = "first"
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


class Raw(NamedTuple):
    """The norms of leaves without pending factors, and for which leaves they are known."""

    vector: Array
    known: Mask


def clip_coefficient(norm: Norm, max_norm: Any) -> Array:
    """Return min(1, max_norm / norm), correct at zero, at the limit, at infinity and for nonfinite norms."""
    if isinstance(norm.single, tuple):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, single=norm.single)
    if not isinstance(norm.single, bool):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, norm.single)
    formula = formulas.clip_coefficient_single if norm.single else formulas.clip_coefficient_double
    return norm.backend.compute(formula, norm.value, max_norm)


class Measured(Leaves):
    """The leaves of one tree of gradients, and their norms: each leaf is read once for its norm."""

    __slots__ = ()

    def norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf, including its pending factor, as a vector."""
        found = self.own_norms(ord)
        return self.common(found, ord)[0] if self.groups else found

    def global_norm(self, ord: float = 2) -> Norm:
        """Return the global norm of all active leaves, a 0-d number."""
        norm = self.norm_of(self.own_norms(ord), ord, self.groups)
        if self.factor is None and len(self.scope) == len(self.leaves) and _FIRST not in self.measured:
            self._remember(_FIRST, (norm, self.chosen))
        return norm

    def norm_of(self, norms: Norm, ord: float = 2, groups: Sequence[Group] | None = None) -> Norm:
        """Return the global norm from the norms of the leaves, by default over devices that have their own leaves."""
        if not self.groups:
            return self.own_norm_of(norms, ord)
        whole = norms.everywhere()
        found = self.shared([(lambda mask: self.own_norm_of(whole, ord, mask).value, ord)], groups, norms.slots)
        return Norm(found.values[0], found.single, self.backend)

    def rms(self) -> Norm:
        """Return the root mean square of each active leaf, as a vector."""
        return self._per_element(formulas.per_root, 2)

    def average_norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf divided by its number of elements, as a vector."""
        return self._per_element(formulas.per_count, ord)

    def is_finite(self) -> Array:
        """Whether all active leaves of all devices are finite, as a 0-d number."""
        ord = math.inf if self.source.kinds & DOUBLE else 2  # the sum of float64 squares may overflow
        own = self.own_norms(ord)
        # Other devices may have chosen the other order, so all combine the norms with inf.
        found = self.shared([(lambda mask: self.own_norm_of(own, ord, mask).value, math.inf)], self.groups)
        return self.backend.compute(formulas.is_finite, found.values[0])

    def norm_before(self, left: Leaves, along: bool = False) -> Callable[[], Norm] | None:
        """Return a function for the global norm of this tree's leaves that are not stopped in what is left of it.

        None if some were not measured. It uses the first measured global norm, else the 2-norm from the norms of the
        leaves. It never communicates with other devices, and keeps no leaf alive.
        """
        live = self.live(left.stopped)
        found, chosen = self.measured.get(_FIRST, (None, ()))
        if found is not None and list(chosen) == list(live) and self.factor is None:
            return lambda: found
        raw, factor, backend = self.measured.get(2.0), self.factor, self.backend
        if along or raw is None or not live or not all(raw.known[i] for i in live):
            return None
        single, active = self._is_single(live), self.mask(live) if len(live) < len(self.leaves) else None

        def computed() -> Norm:
            norms = raw.vector if factor is None else backend.compute(formulas.scaled_norm, raw.vector, factor)
            return Norm(backend.compute(formulas.total_norm_scaled, norms, active=active, ord=2.0), single, backend)

        return computed

    def own_norms(self, ord: float) -> Norm:
        """Return the norms of this device's parts of the leaves."""
        self.check()
        value = self._raw(float(ord))
        if self.factor is not None:
            value = self.backend.compute(formulas.scaled_norm, value, self.factor)
        single: Any = self._is_single(self.chosen)
        if not single and not self.source.kinds.isdisjoint(SINGLE):
            single = tuple(dtype in SINGLE for dtype in self.source.dtypes)
        return Norm(value, single, self.backend)

    def own_norm_of(self, norms: Norm, ord: float, mask: Mask | None = None) -> Norm:
        """Return the global norm of the active leaves of this device, or of those in a mask."""
        if not (self.chosen if mask is None else any(mask)):
            return Norm(0.0, True, self.backend)
        single = norms.single is True or self._is_single(self.chosen)
        if mask is None and len(self.chosen) < len(self.leaves):
            mask = self.active
        plain = single and self.factor is None and ord in (1, 2, math.inf) and not self.groups
        formula = formulas.total_norm if plain else formulas.total_norm_scaled
        return Norm(self.backend.compute(formula, norms.value, active=mask, ord=float(ord)), single, self.backend)

    def _is_single(self, places: Sequence[int]) -> bool:
        """Whether the norms of leaves are compared in float32."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in places)

    def _raw(self, ord: float) -> Array:
        """Return the leaves' norms without factors, each measured once; any number for leaves that are not active."""
        count, compute = len(self.leaves), self.backend.compute
        if not self.chosen:
            return compute(formulas.stack, *[0.0] * count) if count else compute(devices.no_numbers)
        found = self.measured.get(ord) or Raw(0.0, (False,) * count)
        missing = [i for i in self.chosen if not found.known[i]]
        if len(missing) == count:
            found = Raw(self.backend.norms(self.leaves, ord), (True,) * count)
        elif missing:
            new, there = self.backend.norms([self.leaves[i] for i in missing], ord), self.mask(missing)
            rank = {i: rank for rank, i in enumerate(missing)}
            index = tuple([rank.get(i, 0) for i in range(count)])
            vector = compute(
                formulas.where_active, compute(formulas.take, new, index=index), found.vector, active=there
            )
            found = Raw(vector, tuple(map(operator.or_, there, found.known)))
        self._remember(ord, found)
        return found.vector

    def _remember(self, key: Any, found: Any) -> None:
        """Keep what was measured, but not in a branch inside of the trace that read the leaves: it would leave it."""
        if self.trace is None or self.backend.xp.current_trace() == self.trace:
            self.measured[key] = found

    def _per_element(self, formula: Callable[..., Array], ord: float) -> Norm:
        """Divide norms by a function of the numbers of elements, which may be unknown until run time."""
        found = tuple([self.backend.count(leaf, None) for leaf in self.dense().leaves])
        norms, compute = self.own_norms(ord), self.backend.compute
        if any(group.by_leaf for group in self.groups):
            counts = self._beside(norms, found)
            value, counts = map(self._of_leaves, self._common([(norms.value, ord), (counts, 1)]))
            return norms._replace(value=compute(formula, value, counts))
        return norms._replace(value=compute(formula, norms.value, counts=found)) if found else norms

    # --- norms over devices --------------------------------------------------------------------------------------

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
        groups, single = self._apart if groups is None else groups, self._is_single(self.chosen)
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

    def _common(self, vectors: Sequence[tuple[Any, float]]) -> list[Any]:
        """Combine vectors with one number per leaf over the devices that hold slices, as norms by slot."""
        count, compute = len(self.source.slots), self.backend.compute
        if not count:
            return [value for value, _ in vectors]
        place = {self.source.kept[i]: i for i in self.chosen}
        index, there = tuple(place.get(i, 0) for i in range(count)), tuple(i in place for i in range(count))
        if not all(there):  # another device may have what is None here
            none = compute(formulas.stack, *[0.0] * count)
            spread = [compute(formulas.take, v, index=index) if self.leaves else none for v, _ in vectors]
            orders = [ord for _, ord in vectors]
            vectors = [
                (compute(formulas.where_active, v, 0.0, active=there), ord)
                for v, ord in zip(spread, orders, strict=True)
            ]
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
        every = len(kept) == len(self.source.slots)
        return numbers if every else self.backend.compute(formulas.take, numbers, index=kept)
