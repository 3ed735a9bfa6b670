"""The flat view of a tree of gradients: leaves, paths, pending factors, norms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform import _formulas as formulas
from gradxform import _pairs as pairs
from gradxform._backend import Array, Backend, opened
from gradxform._source import DOUBLE, NARROW, REAL, SINGLE, Mask, Source, read


class Norm(NamedTuple):
    """A norm in float64, and whether it counts as a float32 one when it is compared with a limit.

    `single` is one bool, or one a leaf: the accumulation dtype is float32 unless a float64 leaf is in the scope.
    """

    value: Array
    single: bool | tuple[bool, ...]
    backend: Backend


class Flat(NamedTuple):
    """The leaves of one tree of gradients, each with a factor that is still to be applied.

    Rescaling multiplies the pending factors; a leaf is read once for its norm, and read and written once at the
    end. Transforms act on the *active* leaves alone: None, stopped and masked-out leaves are holes.
    """

    source: Source
    leaves: tuple[Array, ...]
    factor: Array | float | None
    scope: Mask
    """The leaves that the transform at work was chosen for, stopped ones among them."""
    active: Mask
    stopped: Mask
    owned: Mask
    """Leaves that may be written in place: all for an in-place run, else those a transform made."""
    measured: dict[tuple[float, int], Array]
    """Norms of the leaves without their pending factors, as 0-d numbers by order and leaf or as a whole vector."""

    # --- what transforms use -------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The framework that owns the leaves."""
        return self.source.backend

    @property
    def chosen(self) -> Sequence[int]:
        """The active leaves' positions."""
        return self._places(self.active)

    def norms(self, ord: float = 2) -> Norm:
        """The norm of each active leaf, its pending factor included; a vector."""
        self.check_inexact()
        raw = self._raw_norms(ord)
        value = raw if self.factor is None else self.backend.compute(formulas.scaled_norm, raw, self.factor)
        single = tuple(dtype in SINGLE for dtype in self.source.dtypes) if len(self.source.kinds) > 1 else ()
        return Norm(value, single if len(set(single)) == 2 else self._is_single(), self.backend)

    def global_norm(self, ord: float = 2) -> Norm:
        """The norm over all active leaves together; a 0-d number."""
        return self.norm_of(self.norms(ord), ord)

    def norm_of(self, norms: Norm, ord: float = 2) -> Norm:
        """The same, from the norms of the leaves."""
        if self.active is self.source.nothing:
            return Norm(0.0, True, self.backend)
        single = self._is_single()
        plain = single and self.factor is None and ord in (1, 2, math.inf)
        formula = formulas.total_norm if plain else formulas.total_norm_scaled
        active = None if self.active is self.source.everything else self.active
        return Norm(self.backend.compute(formula, norms.value, active=active, ord=float(ord)), single, self.backend)

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
        return self._replace(factor=factor)

    def scaled_over(self, axes: tuple[int, ...], ord: float, factor_of: Callable[[Norm], Array]) -> Flat:
        """Each slice of the active leaves over some axes times a factor that is got from its norm."""
        self.check_inexact()
        self._check_axes(axes)
        return self.scaled_by([axes] * len(self.chosen), ord, lambda _, norm: factor_of(norm))

    def scaled_by(self, axes: Sequence[tuple[int, ...]], ord: float, factor_of: Callable[[int, Norm], Array]) -> Flat:
        """The same with axes for each active leaf; the factor is got from its place among them and its norms.

        A leaf all of whose factors are one keeps its pending factor, and is not rounded.
        """
        self.check_inexact()
        view, new, left = self._densified(), [], {}
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
            for part in pairs.factors(self.backend, factor):
                leaf = self.backend.multiply_over(leaf, part, view.owned[i])
            new.append(leaf)
        view = view._with(self.chosen, new)
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
        self._check_ordered()
        for name, bound in (("low", low), ("high", high)):
            _check_broadcast(self, name, bound)
        view = self if _includes_zero(low, high) else self._densified()
        if not view.source.kinds & NARROW:
            return view._clipped(chosen, low, high)
        changed = {i: view._changed(i) for i in chosen}
        for kind in dict.fromkeys(changed.values()):
            bounds = [bound if bound is None or not kind else view._bound(bound, kind) for bound in (low, high)]
            view = view._clipped([i for i in chosen if changed[i] == kind], *bounds)
        return view

    def _clipped(self, places: Sequence[int], low: Any, high: Any) -> Flat:
        """Some leaves between two bounds, their factors applied; in the dtypes that they have now."""
        *first, last = pairs.factors(self.backend, self._at(self.factor, places))
        leaves: Sequence[Array] = [self._widened(i) if first else self.leaves[i] for i in places]
        for factor in first:
            leaves = self.backend.multiply(leaves, factor, False)
        new = self.backend.clip(leaves, low, high, last, self._is_owned(places))
        return self._with(places, new, applied=True)

    def slices(self, axes: tuple[int, ...]) -> Flat:
        """The same view with its active leaves dense, each of which has the axes."""
        self.check_inexact()
        self._check_axes(axes)
        return self._densified()

    def divided(self, divisors: dict[int, Array], function: str) -> Flat:
        """Some leaves divided by numbers, or arrays that broadcast, and rounded, as a library's function does."""
        view = self.materialized()
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], list(divisors.values()))
        return view._with(list(divisors), new)

    def materialized(self) -> Flat:
        """The same view with its active leaves as they would come out now, rounded to their dtypes."""
        view = self.settled()
        if not self.source.kinds & NARROW:
            return view
        return view._with(self.chosen, [self._rounded(i, view.leaves[i]) for i in self.chosen])

    def shown(self) -> Flat:
        """The active leaves as they would come out now, to be looked at alone: infinite where their dtypes end.

        Half precision is in float32, since a compiler may leave out what is rounded to a narrower dtype and back.
        """
        narrow = [i for i in self.chosen if self.source.dtypes[i] in NARROW and not self._is_given(i)]
        ends = [self._ended(i, _END[self.source.dtypes[i]]) for i in narrow]
        return self._replace(owned=self.source.nothing)._with(narrow, ends, applied=True).settled()

    def dense(self) -> Flat:
        """The same view with its active leaves dense."""
        self.check_inexact()
        return self._densified()

    def given(self, new: Sequence[Array], applied: bool = True) -> Flat:
        """A dense view with new arrays, made for it and held by no state, for its active leaves.

        `applied` says that their pending factors went into them.
        """
        return self._with(self.chosen, new, applied=applied)

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

    def focus(self, mask: Sequence[bool]) -> Flat:
        """The same view with fewer leaves in scope."""
        if mask is self.scope:
            return self
        return self._scoped(self.source.mask(map(operator.and_, mask, self.scope)))

    def widen(self, outer: Flat) -> Flat:
        """The same view with the scope of the one it was focused from; stopped leaves stay holes."""
        return self._scoped(outer.scope)

    def _scoped(self, scope: Mask) -> Flat:
        if scope is self.scope and self.stopped is self.source.nothing:
            return self
        active = scope
        if self.stopped is not self.source.nothing:
            active = self.source.mask(map(operator.gt, scope, self.stopped))
        return self if scope == self.scope and active == self.active else self._replace(scope=scope, active=active)

    def settled(self) -> Flat:
        """The same view with the pending factors of its active leaves applied."""
        return self if self.factor is None else self._with(self.chosen, self._multiplied(self.chosen), applied=True)

    # --- the way out ---------------------------------------------------------------------------------------------

    def results(self) -> list[Any]:
        """The leaves of the original tree after the transforms, None and float0 where they were."""
        source, leaves = self.source, list(self.leaves)
        if self.factor is not None:
            live = self._live()
            for i, leaf in zip(live, self._multiplied(live), strict=True):
                leaves[i] = leaf
        if source.kinds & NARROW:
            leaves = [self._rounded(i, leaf) for i, leaf in enumerate(leaves)]
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
        """The tree after the transforms."""
        return self.backend.unflatten(self.source.structure, self.results())

    def scoped_tree(self) -> Any:
        """The tree of the leaves in scope, with zeros for stopped ones, and None for leaves out of scope."""
        return self.backend.unflatten(self.source.structure, self._scoped_slots())

    def scoped_view(self) -> Flat | None:
        """The view of that tree, whose leaves keep their paths; None if all are out of scope."""
        source = self.source
        return from_leaves(source.backend, self._scoped_slots(), source.structure, source.find_paths)

    def _scoped_slots(self) -> list[Any]:
        out: list[Any] = [None] * len(self.source.slots)
        results = self.settled()._replace(factor=None).results()
        for i in self._places(self.scope):
            out[self.source.kept[i]] = results[self.source.kept[i]]
        return out

    def replaced(self, new: dict[int, Array]) -> Flat:
        """The view with some leaves replaced by arrays of a transformation that is not ours."""
        view = self._densified()
        # The arrays may be the user's own, or share their memory.
        owned = self.source.mask(own and i not in new for i, own in enumerate(view.owned))
        return view._with(list(new), list(new.values()), applied=True)._replace(owned=owned)

    def skipped(self) -> set[int]:
        """The slots of the stopped leaves, for adapters that can skip a variable."""
        return {self.source.kept[i] for i in self._places(self.stopped)}

    # --- checks --------------------------------------------------------------------------------------------------

    def check_inexact(self) -> None:
        if self.source.kinds <= SINGLE | DOUBLE:
            return
        for i in self.chosen:
            dtype = self.source.dtypes[i]
            if dtype not in SINGLE | DOUBLE:
                raise TypeError(
                    f"the gradient at {self.source.path(i)!r} has dtype {dtype}; a gradient has a floating-point or "
                    "complex dtype. Cast it, or leave it out with masked(...) or None"
                )

    def _check_ordered(self) -> None:
        if self.source.kinds <= REAL:
            return
        for i in self.chosen:
            dtype = self.source.dtypes[i]
            if dtype not in REAL:
                raise TypeError(
                    f"clip_value: the gradient at {self.source.path(i)!r} has dtype {dtype}; "
                    "only real floating-point values can be put in order. Use clip_norm, or masked(...) to leave it out"
                )

    def _check_axes(self, axes: tuple[int, ...]) -> None:
        """Refuse axes that an active leaf does not have."""
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

    # --- inside --------------------------------------------------------------------------------------------------

    def _places(self, mask: Mask) -> Sequence[int]:
        """The positions where a mask is true."""
        if mask is self.source.everything:
            return range(len(self.leaves))
        return () if mask is self.source.nothing else [i for i, there in enumerate(mask) if there]

    def _is_single(self) -> bool:
        """Whether all active leaves are of dtypes whose norms count in float32."""
        return self.source.kinds <= SINGLE or all(self.source.dtypes[i] in SINGLE for i in self.chosen)

    def _is_owned(self, places: Sequence[int]) -> bool:
        """Whether some leaves may be written in place."""
        return self.owned is self.source.everything or all(self.owned[i] for i in places)

    def _at(self, factor: Any, places: Sequence[int]) -> Any:
        """The pending factors of some leaves."""
        if factor is None or len(places) == len(self.leaves):
            return factor
        return self.backend.compute(formulas.take, factor, index=tuple(places))

    def _per_element(self, formula: Callable[..., Array]) -> Norm:
        """The norms in relation to the numbers of elements, which may not be known before it runs."""
        found = (self.backend.count(leaf, None) for leaf in self._densified().leaves)
        counts = tuple(1.0 if isinstance(count, float) and count == 0 else count for count in found)
        norms = self.norms()
        return norms._replace(value=self.backend.compute(formula, norms.value, counts=counts))

    def _live(self) -> Sequence[int]:
        """The positions of the leaves that are not stopped."""
        every = range(len(self.leaves))
        return every if self.stopped is self.source.nothing else [i for i in every if not self.stopped[i]]

    def _multiplied(self, places: Sequence[int]) -> Sequence[Array]:
        """Some leaves times their pending factors."""
        if not places:
            return ()
        leaves: Sequence[Array] = [self.leaves[i] for i in places]
        for factor in pairs.factors(self.backend, self._at(self.factor, places)):
            leaves = self.backend.multiply(leaves, factor, self._is_owned(places))
        return leaves

    def _is_given(self, i: int) -> bool:
        """Whether a leaf would come out as it is."""
        return self.factor is None and self.leaves[i].dtype == self.source.slots[self.source.kept[i]].dtype

    def _changed(self, i: int) -> str:
        """The dtype that a leaf came in, where its values are of a wider one now; else nothing."""
        narrow = (
            self.source.dtypes[i] in NARROW and self.leaves[i].dtype != self.source.slots[self.source.kept[i]].dtype
        )
        return self.source.dtypes[i] if narrow else ""

    def _bound(self, bound: Any, dtype: str) -> Any:
        """A bound as a dtype has it."""
        return self.backend.compute(formulas.rounded, bound, dtypes=(dtype,))

    def _ended(self, i: int, end: float) -> Array:
        """A leaf times its factor in float32, infinite from a number on."""
        factors = None if self.factor is None else [self.backend.compute(formulas.take, self.factor, index=i)]
        return self.backend.elementwise(_ended, [[self.leaves[i]]], (), factors, end=end)[0]

    def _widened(self, i: int) -> Array:
        """A leaf in the dtype that its sums are kept in."""
        leaf = self.leaves[i]
        return self.backend.elementwise(_same, [[leaf]], ())[0] if self.source.dtypes[i] in NARROW else leaf

    def _rounded(self, i: int, leaf: Array) -> Array:
        """A leaf's new values in the dtype that it came in."""
        given = self.source.slots[self.source.kept[i]]
        return leaf if leaf.dtype == given.dtype else self.backend.cast(leaf, given)

    def _with(self, places: Sequence[int], new: Sequence[Array], applied: bool = False) -> Flat:
        """The view with some leaves replaced; `applied` says that their pending factors went into them."""
        if not places:
            return self
        if len(places) == len(self.leaves):
            made = map(operator.is_not, new, self.leaves)
            owned = self.owned if self.owned is self.source.everything else map(operator.or_, self.owned, made)
            factor = None if applied else self.factor
            return self._replace(leaves=tuple(new), owned=self.source.mask(owned), factor=factor, measured={})
        leaves, mine, keep = list(self.leaves), list(self.owned), [True] * len(self.leaves)
        for i, leaf in zip(places, new, strict=True):
            mine[i], leaves[i], keep[i] = mine[i] or leaf is not leaves[i], leaf, False
        factor = self.factor
        if applied and factor is not None:
            factor = self.backend.compute(formulas.where_active, factor, active=tuple(keep))
        measured = {key: norm for key, norm in self.measured.items() if key[1] >= 0 and keep[key[1]]}
        return self._replace(leaves=tuple(leaves), owned=self.source.mask(mine), factor=factor, measured=measured)

    def _raw_norms(self, ord: float) -> Array:
        """The vector of the leaves' own norms, each measured once; zero for a leaf that no one has asked for."""
        whole = self.measured.get((ord, -1))
        if whole is not None:
            return whole
        missing = [i for i in self.chosen if (ord, i) not in self.measured] if self.measured else self.chosen
        new = self.backend.norms([self.leaves[i] for i in missing], ord) if missing else None
        if len(missing) == len(self.leaves):
            self.measured[ord, -1] = new
            return new
        for position, i in enumerate(missing):
            self.measured[ord, i] = self.backend.compute(formulas.take, new, index=position)
        known = [self.measured.get((ord, i)) for i in range(len(self.leaves))]
        return self.backend.compute(formulas.stack, *(0.0 if norm is None else norm for norm in known))

    def _densified(self) -> Flat:
        """The view with its active sparse leaves made dense."""
        if self.source.rebuild is None:
            return self
        rebuild, leaves = list(self.source.rebuild), list(self.leaves)
        for i in self.chosen:
            back = rebuild[i]
            if back is not None:
                leaves[i], rebuild[i] = self.backend.densify(back(leaves[i])), None
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)), leaves=tuple(leaves))


def _same(xp: Any, x: Array) -> Array:
    return x


_END = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""What is not below it rounds to infinity."""


def _ended(xp: Any, x: Array, *, end: float) -> Array:
    return xp.where(xp.abs(x) < end, x, x * math.inf)


def limit(norm: Norm, max_norm: Any) -> Array:
    """The factor min(1, max_norm / norm), right at zero, at the limit, at infinity and for what is not finite."""
    if isinstance(norm.single, tuple):
        return norm.backend.compute(formulas.limit_mixed, norm.value, max_norm, single=norm.single)
    formula = formulas.limit_single if norm.single else formulas.limit_double
    return norm.backend.compute(formula, norm.value, max_norm)


def interval(flat: Flat, max_abs: Any) -> tuple[Any, Any]:
    """The bounds [-c, c] of a limit c; a limit that is an array is clamped at zero."""
    if not isinstance(max_abs, (int, float)):
        max_abs = flat.backend.compute(formulas.at_least_zero, max_abs)
    return -max_abs, max_abs


def view(tree: Any, *, inplace: bool = False) -> Flat | None:
    """The flat view of a tree of one framework's arrays; None if it holds no array. A view is its own.

    Raises:
        TypeError: arrays of two frameworks, or a leaf that is no array; names the paths.
    """
    if isinstance(tree, Flat):
        return tree
    backend, (leaves, structure) = opened(tree)
    if backend is None:
        return None
    return from_leaves(backend, leaves, structure, lambda: backend.paths(tree), inplace=inplace)


def from_leaves(
    backend: Backend, slots: Sequence[Any], structure: Any, paths: Callable[[], list[str]], *, inplace: bool = False
) -> Flat | None:
    """The flat view of leaves that an adapter has found itself; None if all of them are holes."""
    found = read(backend, slots, structure, paths)
    if found is None:
        return None
    source, leaves = found
    owned = source.nothing
    if inplace:
        same = source.slots is slots
        owned = source.everything if same else source.mask([source.slots[slot] is slots[slot] for slot in source.kept])
    return Flat(source, leaves, None, source.everything, source.everything, source.nothing, owned, {})


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely leaves zero where it is; a traced bound is not looked into."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)


def _check_broadcast(flat: Flat, name: str, bound: Any) -> None:
    if bound is None or isinstance(bound, (int, float)):
        return
    given = getattr(bound, "shape", ())
    bound_shape = () if getattr(given, "rank", 0) is None else tuple(given)
    if not bound_shape:
        return
    for i in flat.chosen:
        shape = flat.backend.shape(flat.leaves[i])
        if shape is not None and not _broadcasts(bound_shape, shape):
            raise ValueError(
                f"clip_value: {name} of shape {bound_shape} would broadcast the gradient at {flat.source.path(i)!r} "
                f"of shape {shape} to a larger one; give a number, or a bound of the gradient's shape"
            )


def _broadcasts(given: tuple[int | None, ...], shape: tuple[int | None, ...]) -> bool:
    """Whether an array broadcasts to a shape, as far as both are known."""
    matched = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(b in (1, s) or s is None or b is None for b, s in matched)
