"""The flat view of a tree of gradients: leaves, paths, pending factors, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gradxform import _formulas as formulas
from gradxform import _pairs as pairs
from gradxform._backend import Array, Backend, is_number, lookup, owner

_SINGLE = frozenset({"float16", "bfloat16", "float32", "complex64"})
_DOUBLE = frozenset({"float64", "complex128"})
_VOID = "float0"


class Norm(NamedTuple):
    """A norm in float64, and whether it counts as a float32 one when it is compared with a limit.

    `single` is one bool, or one a leaf: the accumulation dtype is float32 unless a float64 leaf is in the scope.
    """

    value: Array
    single: bool | tuple[bool, ...]
    backend: Backend


@dataclass(frozen=True)
class Source:
    """The tree that a flat view was made from, and how to make it again."""

    backend: Backend
    structure: Any
    slots: tuple[Any, ...]
    """The original leaves, None and float0 among them."""
    kept: tuple[int, ...]
    """The slots of the view's leaves."""
    rebuild: tuple[Callable[[Array], Array] | None, ...]
    """For each leaf: how its values become a sparse array again; None for a dense leaf."""
    find_paths: Callable[[], list[str]]

    @property
    def paths(self) -> list[str]:
        """One path a leaf of the view."""
        paths = self.find_paths()
        return [paths[slot] for slot in self.kept]

    def path(self, leaf: int) -> str:
        """The path of one leaf, for an error message."""
        return self.paths[leaf] or "(the only leaf)"


@dataclass(frozen=True)
class Flat:
    """The leaves of one tree of gradients, each with a factor that is still to be applied.

    Rescaling multiplies the pending factors; a leaf is read once for its norm, and read and written once at the
    end. Transforms act on the *active* leaves alone: None, stopped and masked-out leaves are holes.
    """

    source: Source
    leaves: tuple[Array, ...]
    factor: Array | float | None
    scope: tuple[bool, ...]
    """The leaves that the transform at work was chosen for, stopped ones among them."""
    active: tuple[bool, ...]
    stopped: tuple[bool, ...]
    owned: tuple[bool, ...]
    """Leaves that may be written in place: all for an in-place run, else those a transform made."""
    measured: dict[tuple[float, int], Array]
    """Norms of the leaves without their pending factors, as 0-d numbers by order and leaf or as a whole vector."""

    # --- what transforms use -------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The framework that owns the leaves."""
        return self.source.backend

    @property
    def chosen(self) -> list[int]:
        """The active leaves' positions."""
        return [i for i, active in enumerate(self.active) if active]

    def norms(self, ord: float = 2) -> Norm:
        """The norm of each active leaf, its pending factor included; a vector."""
        self._check_inexact()
        single = tuple(self.backend.dtype(leaf) in _SINGLE for leaf in self.leaves)
        raw = self._raw_norms(ord)
        value = raw if self.factor is None else self.backend.compute(formulas.scaled_norm, raw, self.factor)
        return Norm(value, single[0] if len(set(single)) == 1 else single, self.backend)

    def global_norm(self, ord: float = 2) -> Norm:
        """The norm over all active leaves together; a 0-d number."""
        norms = self.norms(ord)
        active = [self.backend.dtype(self.leaves[i]) in _SINGLE for i in self.chosen]
        if not active:
            return Norm(0.0, True, self.backend)
        chosen = None if all(self.active) else self.active
        plain = all(active) and self.factor is None and ord in (1, 2, math.inf)
        formula = formulas.total_norm if plain else formulas.total_norm_scaled
        return Norm(
            self.backend.compute(formula, norms.value, active=chosen, ord=float(ord)), all(active), self.backend
        )

    def scaled(self, factor: Array | float) -> Flat:
        """Each active leaf times a factor: a number for all, or a vector with one a leaf."""
        self._check_inexact()
        if isinstance(factor, (int, float)) and factor == 1:
            return self
        if not all(self.active):
            factor = self.backend.compute(formulas.where_active, factor, active=self.active)
        if self.factor is not None:
            factor = self.backend.compute(formulas.product, self.factor, factor)
        return replace(self, factor=factor)

    def scaled_over(self, axes: tuple[int, ...], ord: float, factor_of: Callable[[Norm], Array]) -> Flat:
        """Each slice of the active leaves over some axes times a factor that is got from its norm."""
        view, new = self.slices(axes), {}
        compute = self.backend.compute
        for i in self.chosen:
            pending = None if view.factor is None else compute(formulas.take, view.factor, index=i)
            norm = self.backend.norm_over(view.leaves[i], axes, ord)
            norm = norm if pending is None else compute(formulas.scaled_norm, norm, pending)
            factor = factor_of(Norm(norm, self.backend.dtype(view.leaves[i]) in _SINGLE, self.backend))
            factor = factor if pending is None else compute(formulas.product, factor, pending)
            new[i] = self.backend.multiply_over(view.leaves[i], pairs.rounded(factor), view.owned[i])
        return view._with(new, applied=True)

    def clipped(self, low: Any, high: Any) -> Flat:
        """Each element of the active leaves between two bounds."""
        if not self.chosen:
            return self
        for i in self.chosen:
            dtype = self.backend.dtype(self.leaves[i])
            if dtype not in _SINGLE | _DOUBLE or "complex" in dtype:
                raise TypeError(
                    f"clip_value: the gradient at {self.source.path(i)!r} has dtype {dtype}; "
                    "only real floating-point values can be put in order. Use clip_norm, or masked(...) to leave it out"
                )
            for name, bound in (("low", low), ("high", high)):
                _check_broadcast(self, i, name, bound)
        view = self if _includes_zero(low, high) else self._densified()
        chosen = self.chosen
        factors = view.factor
        if factors is not None and len(chosen) < len(self.leaves):
            factors = view.backend.compute(formulas.take, factors, index=tuple(chosen))
        leaves = [view.leaves[i] for i in chosen]
        inplace = all(view.owned[i] for i in chosen)
        new = view.backend.clip(leaves, low, high, pairs.rounded(factors), inplace)
        return view._with(dict(zip(chosen, new, strict=True)), applied=True)

    def slices(self, axes: tuple[int, ...]) -> Flat:
        """The same view with its active leaves dense, each of which has the axes."""
        self._check_inexact()
        self._check_axes(axes)
        return self._densified()

    def divided(self, divisors: dict[int, Array], function: str) -> Flat:
        """Some leaves divided by numbers, or arrays that broadcast, and rounded, as a library's function does."""
        view = self.materialized()
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], list(divisors.values()))
        return view._with(dict(zip(divisors, new, strict=True)))

    def materialized(self) -> Flat:
        """The same view with its active leaves as they would come out now, rounded to their dtypes."""
        view, new = self.settled(), {}
        for i in self.chosen:
            given = self.source.slots[self.source.kept[i]]
            if self.backend.dtype(view.leaves[i]) != self.backend.dtype(given):
                new[i] = self.backend.cast(view.leaves[i], given)
        return view._with(new)

    def stop(self) -> Flat:
        """The active leaves stopped: zeros in the result, holes for what follows, skipped by an adapter that can."""
        stopped = tuple(was or active for was, active in zip(self.stopped, self.active, strict=True))
        return replace(self, stopped=stopped, active=(False,) * len(self.active))

    def focus(self, mask: Sequence[bool]) -> Flat:
        """The same view with fewer leaves in scope."""
        return self._scoped(tuple(bool(a) and b for a, b in zip(mask, self.scope, strict=True)))

    def widen(self, outer: Flat) -> Flat:
        """The same view with the scope of the one it was focused from; stopped leaves stay holes."""
        return self._scoped(outer.scope)

    def _scoped(self, scope: tuple[bool, ...]) -> Flat:
        active = tuple(inside and not stopped for inside, stopped in zip(scope, self.stopped, strict=True))
        return self if scope == self.scope and active == self.active else replace(self, scope=scope, active=active)

    def settled(self) -> Flat:
        """The same view with every pending factor applied."""
        if self.factor is None:
            return self
        live = [i for i, stopped in enumerate(self.stopped) if not stopped]
        if not live:
            return replace(self, factor=None)
        factors = self.factor
        if len(live) < len(self.leaves):
            factors = self.backend.compute(formulas.take, factors, index=tuple(live))
        leaves = [self.leaves[i] for i in live]
        inplace = all(self.owned[i] for i in live)
        new = self.backend.multiply(leaves, pairs.rounded(factors), inplace)
        return replace(self._with(dict(zip(live, new, strict=True))), factor=None)

    # --- the way out ---------------------------------------------------------------------------------------------

    def results(self) -> list[Any]:
        """The leaves of the original tree after the transforms, None and float0 where they were."""
        view = self.settled()
        backend, out = self.backend, list(self.source.slots)
        halted = [i for i, stopped in enumerate(self.stopped) if stopped]
        fresh = dict(zip(halted, backend.zeros([view.leaves[i] for i in halted]), strict=True)) if halted else {}
        for i, slot in enumerate(self.source.kept):
            leaf, rebuild = fresh.get(i, view.leaves[i]), view.source.rebuild[i]
            if backend.dtype(leaf) != backend.dtype(out[slot]):
                leaf = backend.cast(leaf, out[slot])
            out[slot] = leaf if rebuild is None else rebuild(leaf)
        return out

    def tree(self) -> Any:
        """The tree after the transforms."""
        return self.backend.unflatten(self.source.structure, self.results())

    def scoped_tree(self) -> Any:
        """The tree of the leaves in scope, with zeros for stopped ones, and None for leaves out of scope."""
        out: list[Any] = [None] * len(self.source.slots)
        results = self.results()
        for i, inside in enumerate(self.scope):
            if inside:
                out[self.source.kept[i]] = results[self.source.kept[i]]
        return self.backend.unflatten(self.source.structure, out)

    def replaced(self, new: dict[int, Array]) -> Flat:
        """The view with some leaves replaced by arrays of a transformation that is not ours."""
        view = self.settled()._densified()
        return replace(view._with(new), owned=view.owned)  # they may be the user's own, or share their memory

    def skipped(self) -> set[int]:
        """The slots of the stopped leaves, for adapters that can skip a variable."""
        return {slot for slot, stopped in zip(self.source.kept, self.stopped, strict=True) if stopped}

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

    def _with(self, new: dict[int, Array], applied: bool = False) -> Flat:
        """The view with some leaves replaced; `applied` says that their pending factors went into them."""
        if not new:
            return self
        keep = tuple(i not in new for i in range(len(self.leaves)))
        factor = self.factor
        if applied and factor is not None:
            factor = None if not any(keep) else self.backend.compute(formulas.where_active, factor, active=keep)
        return replace(
            self,
            leaves=tuple(new.get(i, leaf) for i, leaf in enumerate(self.leaves)),
            owned=tuple(owned or (i in new and new[i] is not self.leaves[i]) for i, owned in enumerate(self.owned)),
            factor=factor,
            measured={key: norm for key, norm in self.measured.items() if key[1] >= 0 and keep[key[1]]},
        )

    def _raw_norms(self, ord: float) -> Array:
        """The vector of the leaves' own norms, each measured once; zero for a leaf that no one has asked for."""
        whole = self.measured.get((ord, -1))
        if whole is not None:
            return whole
        missing = [i for i in self.chosen if (ord, i) not in self.measured]
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
        sparse = [i for i in self.chosen if self.source.rebuild[i] is not None]
        if not sparse:
            return self
        new = {}
        for i in sparse:
            rebuild = self.source.rebuild[i]
            assert rebuild is not None
            new[i] = self.backend.densify(rebuild(self.leaves[i]))
        rebuilds = tuple(None if i in new else rebuild for i, rebuild in enumerate(self.source.rebuild))
        return replace(
            self,
            source=replace(self.source, rebuild=rebuilds),
            leaves=tuple(new.get(i, leaf) for i, leaf in enumerate(self.leaves)),
        )

    def _check_inexact(self) -> None:
        for i in self.chosen:
            dtype = self.backend.dtype(self.leaves[i])
            if dtype not in _SINGLE and dtype not in _DOUBLE:
                raise TypeError(
                    f"the gradient at {self.source.path(i)!r} has dtype {dtype}; a gradient has a floating-point or "
                    "complex dtype. Cast it, or leave it out with masked(...) or None"
                )


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
    """The flat view of a tree of one framework's arrays; None if it holds no array.

    Raises:
        TypeError: arrays of two frameworks, or a leaf that is no array; names the paths.
    """
    backend = lookup(tree)
    if backend is None:
        return None
    leaves, structure = backend.flatten(tree)
    return from_leaves(backend, leaves, structure, lambda: backend.paths(tree), inplace=inplace)


def from_leaves(
    backend: Backend, slots: Sequence[Any], structure: Any, paths: Callable[[], list[str]], *, inplace: bool = False
) -> Flat | None:
    """The flat view of leaves that an adapter has found itself; None if all of them are holes."""
    adopted = [slot if slot is None else _adopt(backend, slots, i, paths) for i, slot in enumerate(slots)]
    kept = tuple(i for i, leaf in enumerate(adopted) if leaf is not None and backend.dtype(leaf) != _VOID)
    if not kept:
        return None
    dense = [backend.dense(adopted[i]) for i in kept]
    count = len(kept)
    source = Source(backend, structure, tuple(adopted), kept, tuple(rebuild for _, rebuild in dense), paths)
    owned = tuple(inplace and adopted[slot] is slots[slot] for slot in kept)
    everything = (True,) * count
    return Flat(source, tuple(leaf for leaf, _ in dense), None, everything, everything, (False,) * count, owned, {})


def _adopt(backend: Backend, slots: Sequence[Any], i: int, paths: Callable[[], list[str]]) -> Array:
    leaf = slots[i]
    found = owner(leaf)
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(
            f"the leaf at {paths()[i]!r} is a masked array; its mask would be lost: fill or compress it first"
        )
    if found is backend:
        return leaf
    if (found is not None and found.name == "numpy") or is_number(leaf):
        return backend.adopt(leaf)
    path = paths()[i]
    if found is None:
        raise TypeError(f"the leaf at {path!r} is a {type(leaf).__name__}, not an array: {leaf!r:.80}")
    other = next((j for j, slot in enumerate(slots) if owner(slot) is backend), None)
    if other is None:
        kind = type(leaf).__name__
        raise TypeError(f"the leaf at {path!r} is {found.name}'s ({kind}), and an array of {backend.name} is wanted")
    raise TypeError(
        f"arrays of two frameworks in one tree: {path!r} is {found.name}'s ({type(leaf).__name__}), "
        f"{paths()[other]!r} is {backend.name}'s; convert one of them"
    )


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely leaves zero where it is; a traced bound is not looked into."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)


def _check_broadcast(flat: Flat, i: int, name: str, bound: Any) -> None:
    given = getattr(bound, "shape", ())
    bound_shape, shape = () if getattr(given, "rank", 0) is None else tuple(given), flat.backend.shape(flat.leaves[i])
    if not bound_shape or shape is None:
        return
    matched = zip(reversed(bound_shape), reversed(shape), strict=False)
    if len(bound_shape) > len(shape) or any(b not in (1, s) and s is not None and b is not None for b, s in matched):
        raise ValueError(
            f"clip_value: {name} of shape {bound_shape} would broadcast the gradient at {flat.source.path(i)!r} "
            f"of shape {shape} to a larger one; give a number, or a bound of the gradient's shape"
        )
