"""The flat view of a tree of gradients: norms, scaling, clipping and stopping."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradxform.backend.lookup import opened
from gradxform.core import checks
from gradxform.core.measured import Measured
from gradxform.core.measured import Norm as Norm
from gradxform.core.source import NARROW, REAL, SINGLE
from gradxform.numerics import Array, formulas


class Flat(Measured):
    """The leaves of one tree of gradients, each with a pending factor.

    Scaling multiplies the pending factors. A leaf is read once for its norm, and read and written once at the end.
    Transforms act on the *active* leaves only: None, stopped and masked-out leaves are holes.
    """

    __slots__ = ()

    def scaled(self, factor: Array | float) -> Flat:
        """Multiply the active leaves by a number, or by a vector with one factor per leaf."""
        self.check_inexact()
        if isinstance(factor, (int, float)) and factor == 1:
            return self
        if self.active is not self.source.everything:
            factor = self.backend.compute(formulas.where_active, factor, active=self.active)
        if isinstance(self.factor, float) and isinstance(factor, (int, float)):
            factor = self.factor * factor  # stays known
        elif self.factor is not None:
            factor = self.backend.compute(formulas.product, self.factor, factor)
        return self._replace(factor=factor, due=self.source.mask(map(operator.or_, self.due, self.active)))

    def scaled_over(self, axes: tuple[int, ...], ord: float, factor_of: Callable[[Norm], Array]) -> Flat:
        """Multiply each slice of the active leaves over some axes by a factor computed from its norm."""
        self.check_inexact()
        checks.axes(self.source, self.chosen, self.leaves, axes)
        return self.scaled_by([axes] * len(self.chosen), ord, lambda _, norm: factor_of(norm))

    def scaled_by(
        self, axes: Sequence[tuple[int, ...]], ord: float, factor_of: Callable[[Sequence[int], Norm], Array]
    ) -> Flat:
        """Multiply slices with separate axes per active leaf; `factor_of` takes the leaves' positions and their norms.

        A leaf whose factors are all one keeps its pending factor and is not rounded.
        """
        self.check_inexact()
        view, new, left = self.densified(), [], {}
        compute = self.backend.compute
        together = view.backend.together([view.leaves[i] for i in self.chosen]) if view.factor is None else ()
        if together:
            return view._scaled_together(together, axes, ord, factor_of)
        for place, i in enumerate(self.chosen):
            (leaf,) = view._widened([i])
            norm = self.backend.norm_over(view.leaves[i], axes[place], ord)
            pending = None if view.factor is None else compute(formulas.take, view.factor, index=i)
            norm = norm if pending is None else compute(formulas.scaled_norm, norm, pending)
            factor = factor_of((place,), Norm(norm, self.source.dtypes[i] in SINGLE, self.backend))
            if pending is not None:
                factor, left[i] = compute(formulas.joined, factor, pending)
            new.append(self.backend.multiply_over(leaf, factor, view.owned[i]))
        view = view.given(new, applied=False)
        if not left:
            return view
        places = range(len(self.leaves))
        every = [left[i] if i in left else compute(formulas.take, self.factor, index=i) for i in places]
        return view._replace(factor=compute(formulas.stack, *every))

    def _scaled_together(
        self,
        groups: Sequence[Sequence[int]],
        axes: Sequence[tuple[int, ...]],
        ord: float,
        factor_of: Callable[[Sequence[int], Norm], Array],
    ) -> Flat:
        """The same for leaves without a pending factor, those of a group at a time."""
        backend, new = self.backend, [self.leaves[i] for i in self.chosen]
        for places in groups:
            own = [self.chosen[place] for place in places]
            norms = backend.norms_over([self.leaves[i] for i in own], [axes[place] for place in places], ord)
            single = self.source.dtypes[own[0]] in SINGLE
            factor = factor_of(places, Norm(backend.joined(norms), single, backend))
            owned = [self.owned[i] for i in own]
            made = backend.multiply_slices(self._widened(own), backend.parted(factor, norms), owned)
            for place, leaf in zip(places, made, strict=True):
                new[place] = leaf
        return self.given(new, applied=False)

    def clipped(self, low: Any, high: Any) -> Flat:
        """Clip each element of the active leaves to two bounds."""
        chosen = self.chosen
        if not chosen:
            return self
        why = "only real floating-point values can be ordered; use clip_norm, or masked(...) to exclude it"
        checks.dtypes(self.source, chosen, REAL, why, "clip_value")
        for name, bound in (("low", low), ("high", high)):
            checks.broadcast(self.source, chosen, self.leaves, name, bound)
        view = self if _includes_zero(low, high) else self.densified()
        if not view.source.kinds & NARROW:
            return view._clipped(chosen, low, high)
        changed = {i: view._changed(i) for i in chosen}
        for kind in dict.fromkeys(changed.values()):
            bounds = [bound if bound is None or not kind else view._bound(bound, kind) for bound in (low, high)]
            view = view._clipped([i for i in chosen if changed[i] == kind], *bounds)
        return view

    def _clipped(self, places: Sequence[int], low: Any, high: Any) -> Flat:
        """Apply the factors of some leaves and clip them, in their current dtypes."""
        leaves = [self.leaves[i] for i in places]
        new = self.backend.clip(leaves, low, high, self.factors(places), self.is_owned(places))
        return self.with_leaves(places, new, applied=True)

    def slices(self, axes: tuple[int, ...]) -> Flat:
        """Make the active leaves dense, and check that each has the axes."""
        self.check_inexact()
        checks.axes(self.source, self.chosen, self.leaves, axes)
        return self.densified()

    def divided(self, divisors: dict[int, Array], function: str) -> Flat:
        """Divide some leaves by numbers or broadcasting arrays, rounded as in a library's function."""
        view = self.materialized()
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], list(divisors.values()))
        return view.with_leaves(list(divisors), new)

    def compute(self, formula: Callable[..., Array], *operands: Any) -> Array:
        """Compute `formula(xp, *operands)` on numbers and norms in float64."""
        return self.backend.compute(formula, *(x.value if isinstance(x, Norm) else x for x in operands))

    def stop(self) -> Flat:
        """Stop the active leaves: zeros in the result, holes for later transforms; adapters may skip them."""
        stopped = self.source.mask(map(operator.or_, self.stopped, self.active))
        return self._replace(stopped=stopped, active=self.source.nothing)

    def _changed(self, i: int) -> str:
        """The original dtype of a leaf whose values are wider now; else an empty string."""
        own = self.source.dtypes[i]
        return own if own in NARROW and self.leaves[i].dtype != self.source.given(i).dtype else ""

    def _widened(self, places: Sequence[int]) -> list[Array]:
        """Convert leaves to the dtypes of their sums."""
        found = [self.leaves[i] for i in places]
        if not self.source.kinds & NARROW:
            return found
        narrow = [self.source.dtypes[i] in NARROW for i in places]
        short = [leaf for leaf, is_short in zip(found, narrow, strict=True) if is_short]
        wide = iter(self.backend.elementwise(formulas.same, [short], ()) if short else ())
        return [next(wide) if is_short else leaf for leaf, is_short in zip(found, narrow, strict=True)]

    def _bound(self, bound: Any, dtype: str) -> Any:
        """Round a bound to a dtype."""
        return self.backend.compute(formulas.rounded, bound, dtypes=(dtype,))


def clip_coefficient(norm: Norm, max_norm: Any) -> Array:
    """Return min(1, max_norm / norm), correct at zero, at the limit, at infinity and for nonfinite norms."""
    if isinstance(norm.single, tuple):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, single=norm.single)
    if not isinstance(norm.single, bool):
        return norm.backend.compute(formulas.clip_coefficient_told, norm.value, max_norm, norm.single)
    formula = formulas.clip_coefficient_single if norm.single else formulas.clip_coefficient_double
    return norm.backend.compute(formula, norm.value, max_norm)


def interval(flat: Flat, max_abs: Any) -> tuple[Any, Any]:
    """Return the bounds [-c, c] of a limit c; an array limit is clamped at zero."""
    if not isinstance(max_abs, (int, float)):
        max_abs = flat.backend.compute(formulas.at_least_zero, max_abs)
    return -max_abs, max_abs


def flat_view(tree: Any, *, inplace: bool = False) -> Flat | None:
    """Return the flat view of a tree of arrays, or None if it has no array. A view is returned unchanged.

    Raises:
        TypeError: arrays of two frameworks, or a leaf that is not an array; names the paths.
    """
    if isinstance(tree, Flat):
        return tree
    backend, (leaves, structure) = opened(tree)
    if backend is None:
        return None
    return Flat.of(backend, leaves, structure, lambda: backend.paths(tree), inplace=inplace)


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely keeps zeros; traced bounds are not read."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)
