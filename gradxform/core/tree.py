"""The view of a tree of gradients that rules see: norms, scaling, clipping and stopping."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradxform.core import group as devices
from gradxform.core.group import Group, Mask
from gradxform.core.leaves import TRACE, Leaves
from gradxform.core.norm import Norm, Raw, Slots
from gradxform.core.source import DOUBLE, NARROW, REAL, SINGLE
from gradxform.numerics import Array, current_trace, formulas

_FIRST = "first"
"""The key of the first global norm and its leaves, beside the norms of single leaves."""


class Tree(Leaves):
    """The leaves of one tree of gradients, each with a pending factor.

    Scaling multiplies the pending factors. A leaf is read once for its norm, and read and written once at the end.
    Transforms act on the *active* leaves only: None, stopped and masked-out leaves are holes.
    """

    __slots__ = ()

    # --- norms ---------------------------------------------------------------------------------------------------

    def norms(self, ord: float = 2) -> Norm:
        """Return the norm of each active leaf, including its pending factor, as a vector."""
        found = self.own_norms(ord)
        return self.common(found, ord)[0] if self.groups else found

    def global_norm(self, ord: float = 2) -> Norm:
        """Return the global norm of all active leaves, a 0-d number."""
        own = self.own_norms(ord)
        norm = self._norm_of(own, ord, self.groups) if self.groups else self.own_norm_of(own, ord)
        if self.factor is None and len(self.scope) == len(self.leaves):
            self._remember(_FIRST, self.measured.get(_FIRST, (norm, self.chosen)))
        return norm

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """Return the global norm from the norms of the leaves."""
        return self._norm_of(norms, ord, self._apart) if self.groups else self.own_norm_of(norms, ord)

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

    def norm_before(self, left: Tree, along: bool = False) -> Callable[[], Norm] | None:
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
        if not self.leaves:
            return self.backend.compute(devices.no_numbers)
        found: Raw | None = self.measured.get(ord)
        missing = self.chosen if found is None else [i for i in self.chosen if not found.known[i]]
        if not self.chosen:
            return self.backend.compute(formulas.stack, *[0.0] * len(self.leaves))
        if found is not None and not missing:
            return found.vector
        if len(missing) == len(self.leaves):
            found = Raw(self.backend.norms(self.leaves, ord), (True,) * len(missing))
        else:
            new, there = self.backend.norms([self.leaves[i] for i in missing], ord), self.mask(missing)
            rank = {i: rank for rank, i in enumerate(missing)}
            index = tuple([rank.get(i, 0) for i in range(len(there))])
            old = 0.0 if found is None else found.vector
            vector = self.backend.compute(formulas.spread, new, old, index=index, there=there)
            found = Raw(vector, there if found is None else tuple(map(operator.or_, there, found.known)))
        self._remember(ord, found)
        return found.vector

    def _remember(self, key: Any, found: Any) -> None:
        """Keep what was measured, but not in a branch inside of the trace that read the leaves: it would leave it."""
        if current_trace(self.backend.xp) == self.measured.get(TRACE):
            self.measured[key] = found

    def _per_element(self, formula: Callable[..., Array], ord: float) -> Norm:
        """Divide norms by a function of the numbers of elements, which may be unknown until run time."""
        found = [self.backend.count(leaf, None) for leaf in self.dense().leaves]
        norms, compute = self.own_norms(ord), self.backend.compute
        if any(group.by_leaf for group in self.groups):
            counts_of = self._beside(norms, found)
            value, count = map(self._of_leaves, self._common([(norms.value, ord), (counts_of, 1)]))
            return norms._replace(value=compute(_PER_TOLD[formula], value, count))
        if not found:
            return norms
        counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)
        return norms._replace(value=compute(formula, norms.value, counts=counts))

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
            vectors = [
                (compute(formulas.spread, v, 0.0, index=index, there=there) if self.leaves else none, ord)
                for v, ord in vectors
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
        return (
            numbers if len(kept) == len(self.source.slots) else self.backend.compute(formulas.take, numbers, index=kept)
        )

    # --- what a rule does ----------------------------------------------------------------------------------------

    def compute(self, formula: Callable[..., Array], *operands: Any) -> Array:
        """Compute `formula(xp, *operands)` on numbers and norms in float64."""
        return self.backend.compute(formula, *(x.value if isinstance(x, Norm) else x for x in operands))

    def scaled(self, factor: Array | float) -> Tree:
        """Multiply the active leaves by a number, or by a vector with one factor per leaf."""
        self.check()
        if isinstance(factor, (int, float)) and factor == 1:
            return self
        before, due = self.factor, self.due[:0]
        if len(self.chosen) < len(self.leaves):
            due = self.active
            factor = self.backend.compute(formulas.where_active, factor, active=due)
            if before is not None:
                due = tuple(map(operator.or_, self.due, due)) if self.due else ()
        if isinstance(before, float) and isinstance(factor, (int, float)):
            factor = before * factor  # stays known
        elif before is not None:
            factor = self.backend.compute(formulas.product, before, factor)
        return self._replace(factor=factor, due=due)

    def scaled_over(self, axes: tuple[int, ...], ord: float, factor_of: Callable[[Norm], Array]) -> Tree:
        """Multiply each slice of the active leaves over some axes by a factor computed from its norm."""
        self.check_axes(axes)
        return self.scaled_by([axes] * len(self.chosen), ord, lambda _, norm: factor_of(norm))

    def scaled_by(
        self, axes: Sequence[tuple[int, ...]], ord: float, factor_of: Callable[[Sequence[int], Norm], Array]
    ) -> Tree:
        """Multiply slices with separate axes per active leaf; `factor_of` takes the leaves' positions and their norms.

        A leaf whose factors are all one keeps its pending factor and is not rounded.
        """
        view, left = self.dense(), {}
        backend, compute, leaves = self.backend, self.backend.compute, view.leaves
        new = [leaves[i] for i in self.chosen]
        groups = backend.groups(new) if view.factor is None else [[place] for place in range(len(new))]
        for places in groups:
            own, over = [self.chosen[place] for place in places], [axes[place] for place in places]
            norm = backend.norms_over([leaves[i] for i in own], over, ord)
            pending = None if view.factor is None else compute(formulas.take, view.factor, index=own[0])
            norm = norm if pending is None else compute(formulas.scaled_norm, norm, pending)
            factor = factor_of(places, Norm(norm, self.source.dtypes[own[0]] in SINGLE, backend))
            if pending is not None:
                factor, left[own[0]] = compute(formulas.joined, factor, pending)
            made = backend.multiply_over(view._widened(own), over, factor, [view.owned[i] for i in own])
            for place, leaf in zip(places, made, strict=True):
                new[place] = leaf
        view = view.given(new, applied=False)
        if not left:
            return view
        every = [
            left[i] if i in left else compute(formulas.take, self.factor, index=i) for i in range(len(self.leaves))
        ]
        return view._replace(factor=compute(formulas.stack, *every))

    def clipped(self, low: Any, high: Any) -> Tree:
        """Clip each element of the active leaves to two bounds."""
        if not self.chosen:
            return self
        why = "only real floating-point values can be ordered; use clip_norm, or masked(...) to exclude it"
        self.check(REAL, why, "clip_value")
        for name, bound in (("low", low), ("high", high)):
            self._check_broadcast(name, bound)
        view = self if _includes_zero(low, high) else self.dense()
        if not view.source.kinds & NARROW:
            return view._clipped(self.chosen, low, high)
        changed = {i: view._changed(i) for i in self.chosen}
        for kind in dict.fromkeys(changed.values()):
            bounds = [bound if bound is None or not kind else view._bound(bound, kind) for bound in (low, high)]
            view = view._clipped([i for i in self.chosen if changed[i] == kind], *bounds)
        return view

    def _clipped(self, places: Sequence[int], low: Any, high: Any) -> Tree:
        """Apply the factors of some leaves and clip them, in their current dtypes."""
        leaves = [self.leaves[i] for i in places]
        new = self.backend.clip(leaves, low, high, self.factors(places), self.is_owned(places))
        return self.with_leaves(places, new, applied=True)

    def slices(self, axes: tuple[int, ...]) -> Tree:
        """Make the active leaves dense, and check that each has the axes."""
        self.check_axes(axes)
        return self.dense()

    def divided(self, divisors: dict[int, Array], function: str) -> Tree:
        """Divide some leaves by numbers or broadcasting arrays, rounded as in a library's function."""
        view = self.materialized()
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], list(divisors.values()))
        return view.with_leaves(list(divisors), new)

    # --- inside --------------------------------------------------------------------------------------------------

    def _changed(self, i: int) -> str:
        """The original dtype of a leaf whose values are wider now; else an empty string."""
        own = self.source.dtypes[i]
        return own if own in NARROW and self.leaves[i].dtype != self.source.given(i).dtype else ""

    def _widened(self, places: Sequence[int]) -> list[Array]:
        """Convert leaves to the dtypes of their sums."""
        found = [self.leaves[i] for i in places]
        narrow = [n for n, i in enumerate(places) if self.source.dtypes[i] in NARROW]
        if narrow:
            wide = self.backend.elementwise(formulas.same, [[found[n] for n in narrow]], ())
            for n, leaf in zip(narrow, wide, strict=True):
                found[n] = leaf
        return found

    def _bound(self, bound: Any, dtype: str) -> Any:
        """Round a bound to a dtype."""
        return self.backend.compute(formulas.rounded, bound, dtypes=(dtype,))

    def check_axes(self, axes: tuple[int, ...]) -> None:
        """Reject axes that an active leaf does not have."""
        self.check()
        for i in self.chosen:
            shape = self.backend.shape(self.leaves[i])
            if shape is None:
                continue
            there = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}
            if len(there) < len(axes):
                raise ValueError(
                    f"axes {axes} are not {len(axes)} axes of the gradient at {self.source.path(i)!r}, whose shape is "
                    f"{shape}; choose the gradients with masked(...)"
                )

    def _check_broadcast(self, name: str, bound: Any) -> None:
        """Reject a bound that would broadcast a leaf to a larger shape."""
        if bound is None or isinstance(bound, (int, float)):
            return
        given = getattr(bound, "shape", ())
        bound_shape = () if getattr(given, "rank", 0) is None else tuple(given)
        if not bound_shape:
            return
        for i in self.chosen:
            shape = self.backend.shape(self.leaves[i])
            if shape is not None and not _broadcasts(bound_shape, shape):
                path = self.source.path(i)
                raise ValueError(
                    f"clip_value: {name} of shape {bound_shape} would broadcast the gradient at {path!r} of shape "
                    f"{shape} to a larger one; give a number, or a bound of the gradient's shape"
                )


def _broadcasts(given: tuple[int | None, ...], shape: tuple[int | None, ...]) -> bool:
    """Whether a shape broadcasts to another; unknown sizes count as equal."""
    matched = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(b in (1, s) or s is None or b is None for b, s in matched)


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely keeps zeros; traced bounds are not read."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)


def interval(flat: Tree, max_abs: Any) -> tuple[Any, Any]:
    """Return the bounds [-c, c] of a limit c; an array limit is clamped at zero."""
    if not isinstance(max_abs, (int, float)):
        max_abs = flat.backend.compute(formulas.at_least_zero, max_abs)
    return -max_abs, max_abs


_PER_TOLD = {formulas.per_root: devices.per_root, formulas.per_count: devices.per_count}
