"""The flat view of a tree of gradients: norms, and what rescales, clips and stops."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.lookup import opened
from gradxform.backend.protocol import Backend
from gradxform.core import checks, extended
from gradxform.core import group as devices
from gradxform.core.group import Group
from gradxform.core.pending import Pending
from gradxform.core.source import DOUBLE, NARROW, REAL, SINGLE, Mask
from gradxform.numerics import Array, formulas
from gradxform.numerics import devices as rows


class Norm(NamedTuple):
    """A norm in float64, and whether it counts as a float32 one when it is compared with a limit.

    `single` is one bool, or one a leaf: the accumulation dtype is float32 unless a float64 leaf is in the scope. Where
    other devices may have such a leaf, it is a number that they have told.
    """

    value: Array
    single: bool | tuple[bool, ...] | Array
    backend: Backend


class Flat(Pending):
    """The leaves of one tree of gradients, each with a factor that is still to be applied.

    Rescaling multiplies the pending factors; a leaf is read once for its norm, and read and written once at the
    end. Transforms act on the *active* leaves alone: None, stopped and masked-out leaves are holes.
    """

    __slots__ = ()

    def norms(self, ord: float = 2) -> Norm:
        """The norm of each active leaf, its pending factor included; a vector."""
        own = self._own_norms(ord)
        if not any(group.by_leaf for group in self.groups):
            return own
        return own._replace(value=self._common([(own.value, ord)])[0])

    def _own_norms(self, ord: float) -> Norm:
        """The same of what this device has of the leaves."""
        self.check_inexact()
        raw = self._raw_norms(ord)
        value = raw if self.factor is None else self.backend.compute(formulas.scaled_norm, raw, self.factor)
        single = tuple(dtype in SINGLE for dtype in self.source.dtypes) if len(self.source.kinds) > 1 else ()
        return Norm(value, single if len(set(single)) == 2 else self._is_single(), self.backend)

    def global_norm(self, ord: float = 2) -> Norm:
        """The norm over all active leaves together; a 0-d number."""
        own = self._own_norms(ord)
        return self._norm_of(own, ord, self.groups) if self.groups else self.own_norm_of(own, ord, self.active)

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """The same, from the norms of the leaves."""
        return self._norm_of(norms, ord, self._apart) if self._apart else self.own_norm_of(norms, ord, self.active)

    def own_norm_of(self, norms: Norm, ord: float, mask: Mask) -> Norm:
        """The norm over some leaves of this device."""
        if not any(mask):
            return Norm(0.0, True, self.backend)
        single = self._is_single()
        plain = single and self.factor is None and ord in (1, 2, math.inf)
        formula = formulas.total_norm if plain else formulas.total_norm_scaled
        active = None if mask is self.source.everything else mask
        return Norm(self.backend.compute(formula, norms.value, active=active, ord=float(ord)), single, self.backend)

    def shared(
        self, asked: Sequence[tuple[devices.Own, float]], groups: Sequence[Group] | None = None
    ) -> devices.Whole:
        """Numbers that this device makes of masks of its active leaves, and the others of theirs: the norms of them.

        They are told together; by default, along axes on which each device has leaves of its own.
        """
        groups, single = self._apart if groups is None else groups, self._is_single()
        return devices.whole(self.backend, groups, asked, self.active, self.source.kept, single, self._like)

    @property
    def _like(self) -> Array | None:
        return self.leaves[0] if self.leaves else None

    @property
    def _apart(self) -> Sequence[Group]:
        """The groups whose devices have leaves of their own."""
        return [group for group in self.groups if not group.by_leaf]

    def _norm_of(self, norms: Norm, ord: float, groups: Sequence[Group]) -> Norm:
        """The norm over the active leaves of all devices."""
        found = self.shared([(lambda mask: self.own_norm_of(norms, ord, mask).value, ord)], groups)
        return Norm(found.values[0], found.single, self.backend)

    def _common(self, vectors: Sequence[tuple[Any, float]]) -> list[Any]:
        """Vectors with one number a leaf, of which each device knows a part, as the norms of these parts."""
        kept, count, compute = self.source.kept, len(self.source.slots), self.backend.compute
        if not count:
            return [value for value, _ in vectors]
        place = {slot: i for i, slot in enumerate(kept)}
        index, there = tuple(place.get(i, 0) for i in range(count)), tuple(i in place for i in range(count))
        if not all(there):  # as another device may have what is None here
            none = compute(formulas.stack, *[0.0] * count)
            spread = [compute(rows.spread, v, index=index, there=there) if place else none for v, _ in vectors]
            vectors = [(value, ord) for value, (_, ord) in zip(spread, vectors, strict=True)]
        for group in reversed([group for group in self.groups if group.by_leaf]):
            found = devices.of_slots(self.backend, group, vectors, self._like)
            vectors = [(value, ord) for value, (_, ord) in zip(found, vectors, strict=True)]
        whole = [value for value, _ in vectors]
        return whole if all(there) else [compute(formulas.take, value, index=tuple(kept)) for value in whole]

    def scaled(self, factor: Array | float) -> Flat:
        """Each active leaf times a factor: a number for all, or a vector with one a leaf."""
        self.check_inexact()
        if isinstance(factor, (int, float)) and factor == 1:
            return self
        if self.active is not self.source.everything:
            factor = self.backend.compute(formulas.where_active, factor, active=self.active)
        if self.factor is not None:
            wide = self.source.kinds & DOUBLE
            factor = self.backend.compute(formulas.product_wide if wide else formulas.product, self.factor, factor)
        return self._replace(factor=factor, due=self.source.mask(map(operator.or_, self.due, self.active)))

    def scaled_over(self, axes: tuple[int, ...], ord: float, factor_of: Callable[[Norm], Array]) -> Flat:
        """Each slice of the active leaves over some axes times a factor that is got from its norm."""
        self.check_inexact()
        checks.axes(self.source, self.chosen, self.leaves, axes)
        return self.scaled_by([axes] * len(self.chosen), ord, lambda _, norm: factor_of(norm))

    def scaled_by(self, axes: Sequence[tuple[int, ...]], ord: float, factor_of: Callable[[int, Norm], Array]) -> Flat:
        """The same with axes for each active leaf; the factor is got from its place among them and its norms.

        A leaf all of whose factors are one keeps its pending factor, and is not rounded.
        """
        self.check_inexact()
        view, new, left = self.densified(), [], {}
        compute = self.backend.compute
        for place, i in enumerate(self.chosen):
            leaf = view._widened(i)
            norm = self.backend.norm_over(view.leaves[i], axes[place], ord)
            pending = None if view.factor is None else compute(formulas.take, view.factor, index=i)
            norm = norm if pending is None else compute(formulas.scaled_norm, norm, pending)
            factor = factor_of(place, Norm(norm, self.source.dtypes[i] in SINGLE, self.backend))
            if pending is not None:
                due = compute(formulas.differs, factor)
                left[i] = compute(formulas.one_if, due, pending)
                factor = compute(formulas.product_if, due, factor, pending)
            for part in extended.factors(self.backend, factor):
                leaf = self.backend.multiply_over(leaf, part, view.owned[i])
            new.append(leaf)
        view = view.given(new, applied=False)
        if not left:
            return view
        places = range(len(self.leaves))
        every = [left[i] if i in left else compute(formulas.take, self.factor, index=i) for i in places]
        return view._replace(factor=compute(formulas.stack, *every))

    def clipped(self, low: Any, high: Any) -> Flat:
        """Each element of the active leaves between two bounds."""
        chosen = self.chosen
        if not chosen:
            return self
        why = "only real floating-point values can be put in order. Use clip_norm, or masked(...) to leave it out"
        checks.dtypes(self.source, chosen, REAL, why, "clip_value")
        for name, bound in (("low", low), ("high", high)):
            checks.broadcast(self.source, chosen, self.leaves, name, bound)
        view = self if _includes_zero(low, high) else self.densified()
        if not view.source.kinds & NARROW:
            return view._clipped(chosen, low, high)
        if len(extended.factors(self.backend, self.factor)) > 1:  # a product of each with the leaf is rounded
            view = view.with_leaves(chosen, [view._widened(i) for i in chosen])
        changed = {i: view._changed(i) for i in chosen}
        for kind in dict.fromkeys(changed.values()):
            bounds = [bound if bound is None or not kind else view._bound(bound, kind) for bound in (low, high)]
            view = view._clipped([i for i in chosen if changed[i] == kind], *bounds)
        return view

    def _clipped(self, places: Sequence[int], low: Any, high: Any) -> Flat:
        """Some leaves between two bounds, their factors applied; in the dtypes that they have now."""
        *first, last = self.factors(places)
        leaves: Sequence[Array] = [self.leaves[i] for i in places]
        for factor in first:
            leaves = self.backend.multiply(leaves, factor, False)
        new = self.backend.clip(leaves, low, high, last, self.is_owned(places))
        return self.with_leaves(places, new, applied=True)

    def slices(self, axes: tuple[int, ...]) -> Flat:
        """The same view with its active leaves dense, each of which has the axes."""
        self.check_inexact()
        checks.axes(self.source, self.chosen, self.leaves, axes)
        return self.densified()

    def divided(self, divisors: dict[int, Array], function: str) -> Flat:
        """Some leaves divided by numbers, or arrays that broadcast, and rounded, as a library's function does."""
        view = self.materialized()
        by = [extended.rounded(self.backend, divisor) for divisor in divisors.values()]
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], by)
        return view.with_leaves(list(divisors), new)

    def compute(self, formula: Callable[..., Array], *operands: Any) -> Array:
        """`formula(xp, *operands)` in float64: arithmetic on numbers and norms, with operators and what `xp` has."""
        return self.backend.compute(formula, *(x.value if isinstance(x, Norm) else x for x in operands))

    def rms(self) -> Norm:
        """The root mean square of each active leaf; a vector."""
        return self._per_element(formulas.per_root)

    def average_norms(self) -> Norm:
        """The norm of each active leaf over its number of elements; a vector."""
        return self._per_element(formulas.per_count)

    def stop(self) -> Flat:
        """The active leaves stopped: zeros in the result, holes for what follows, skipped by an adapter that can."""
        stopped = self.source.mask(map(operator.or_, self.stopped, self.active))
        return self._replace(stopped=stopped, active=self.source.nothing)

    def _per_element(self, formula: Callable[..., Array]) -> Norm:
        """The norms in relation to the numbers of elements, which may not be known before it runs."""
        found = [self.backend.count(leaf, None) for leaf in self.densified().leaves]
        norms, compute = self._own_norms(2), self.backend.compute
        if any(group.by_leaf for group in self.groups):
            value, count = self._common(
                [(norms.value, 2), (compute(formulas.stack, *found) if found else norms.value, 1)]
            )
            return norms._replace(value=compute(_PER_TOLD[formula], value, count))
        if not found:
            return norms
        counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)
        return norms._replace(value=compute(formula, norms.value, counts=counts))

    def _is_single(self) -> bool:
        """Whether all active leaves are of dtypes whose norms count in float32."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in self.chosen)

    def _changed(self, i: int) -> str:
        """The dtype that a leaf came in, where its values are of a wider one now; else nothing."""
        own = self.source.dtypes[i]
        return own if own in NARROW and self.leaves[i].dtype != self.source.given(i).dtype else ""

    def _widened(self, i: int) -> Array:
        """A leaf in the dtype that its sums are kept in."""
        leaf = self.leaves[i]
        return self.backend.elementwise(formulas.same, [[leaf]], ())[0] if self.source.dtypes[i] in NARROW else leaf

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

    def _bound(self, bound: Any, dtype: str) -> Any:
        """A bound as a dtype has it."""
        return extended.rounded(self.backend, self.backend.compute(formulas.rounded, bound, dtypes=(dtype,)))


def clip_coefficient(norm: Norm, max_norm: Any) -> Array:
    """The factor min(1, max_norm / norm), right at zero, at the limit, at infinity and for what is not finite."""
    if isinstance(norm.single, tuple):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, single=norm.single)
    if not isinstance(norm.single, bool):
        return norm.backend.compute(formulas.clip_coefficient_told, norm.value, max_norm, norm.single)
    formula = formulas.clip_coefficient_single if norm.single else formulas.clip_coefficient_double
    return norm.backend.compute(formula, norm.value, max_norm)


def interval(flat: Flat, max_abs: Any) -> tuple[Any, Any]:
    """The bounds [-c, c] of a limit c; a limit that is an array is clamped at zero."""
    if not isinstance(max_abs, (int, float)):
        max_abs = extended.rounded(flat.backend, flat.backend.compute(formulas.at_least_zero, max_abs))
    return -max_abs, max_abs


def flat_view(tree: Any, *, inplace: bool = False) -> Flat | None:
    """The flat view of a tree of one framework's arrays; None if it holds no array. A view is its own.

    Raises:
        TypeError: arrays of two frameworks, or a leaf that is no array; names the paths.
    """
    if isinstance(tree, Flat):
        return tree
    backend, (leaves, structure) = opened(tree)
    if backend is None:
        return None
    return Flat.of(backend, leaves, structure, lambda: backend.paths(tree), inplace=inplace)


_PER_TOLD = {formulas.per_root: rows.per_root, formulas.per_count: rows.per_count}


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely leaves zero where it is; a traced bound is not looked into."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)
