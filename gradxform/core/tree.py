"""The view of a tree of gradients that rules see: scaling, clipping and formulas of elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.protocol import Given, Row
from gradxform.core.leaves import NARROW, SINGLE, put
from gradxform.core.norm import Measured, Norm
from gradxform.numerics import Array, formulas
from gradxform.numerics.elementwise import Formula

Shape = tuple[int | None, ...]
_ENDS = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""Values from here on round to infinity."""


class Tree(Measured):
    """The leaves of one tree of gradients, each with a pending factor.

    Scaling multiplies the pending factors. A leaf is read once for its norm, and read and written once at the end.
    Transforms act on the *active* leaves only: None, stopped and masked-out leaves are holes.
    """

    __slots__ = ()

    # --- what a rule does ----------------------------------------------------------------------------------------

    def compute(self, formula: Callable[..., Array], *operands: Any) -> Array:
        """Compute `formula(xp, *operands)` on numbers and norms in float64."""
        return self.backend.compute(
            functools.partial(formula), *(x.value if isinstance(x, Norm) else x for x in operands)
        )

    def scaled_over(
        self, axes: Sequence[tuple[int, ...]], ord: float, factor_of: Callable[[Sequence[int], Norm], Array]
    ) -> Tree:
        """Multiply each slice over the axes of each active leaf by a factor of its norm.

        `factor_of` takes the leaves' positions among the active ones, and the norms of their slices. A leaf whose
        factors are all one keeps its pending factor and is not rounded.
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
            made = backend.multiply_over(view._widened(own), over, factor, [i in view.owned for i in own])
            new = put(new, places, made)
        view = view.given(new, applied=False)
        if not left:
            return view
        every = put(view.each_factor(range(len(leaves))) or [], left, list(left.values()))
        return view._replace(factor=compute(formulas.stack, *every))

    def clipped(self, low: Any, high: Any) -> Tree:
        """Clip each element of the active leaves to two bounds."""
        if not self.chosen:
            return self
        self.check_real("clip_value", "only real floating-point values can be ordered, for others use clip_norm")
        for name, bound in (("low", low), ("high", high)):
            self._check_broadcast(name, bound)
        view = self if _includes_zero(low, high) else self.dense()
        dtypes, given = self.source.dtypes, self.source.given
        narrow = {i: dtypes[i] for i in self.chosen if dtypes[i] in NARROW and view.leaves[i].dtype != given(i).dtype}
        for dtype in dict.fromkeys(map(narrow.get, self.chosen)):  # in which bounds are rounded before
            places = [i for i in self.chosen if narrow.get(i) == dtype] if narrow else self.chosen
            leaves, least, most = [view.leaves[i] for i in places], view._bound(low, dtype), view._bound(high, dtype)
            new = view.backend.clip(leaves, least, most, view.factors(places), view.is_owned(places))
            view = view.with_leaves(places, new, applied=True)
        return view

    def divided(self, divisors: dict[int, Array], function: str) -> Tree:
        """Divide some leaves by numbers or broadcasting arrays, rounded as in a library's function."""
        view = self.materialized()
        new = self.backend.divide(function, [view.leaves[i] for i in divisors], list(divisors.values()))
        return view.with_leaves(list(divisors), new)

    # --- new leaves ----------------------------------------------------------------------------------------------

    def materialized(self) -> Tree:
        """Apply the pending factors of the active leaves and round them to their dtypes."""
        view = self.settled()
        wide = [view.leaves[i] for i in self.chosen]
        new = self._narrowed(self.chosen, wide)
        return view if new is wide else view.given(new, applied=False)

    def shown(self) -> Tree:
        """Return the active leaves as they would be returned now, read-only; overflow is infinite.

        Half precision stays in float32, since a compiler may drop a cast to a narrower dtype and back.
        """
        view = self.lent()
        for dtype, end in _ENDS.items() if self.source.kinds & NARROW else ():
            own = [i for i in self.chosen if self.source.dtypes[i] == dtype]
            places = [i for i in own if self.factor is not None or self.leaves[i].dtype != self.source.given(i).dtype]
            if places:
                leaves, factors = [self.leaves[i] for i in places], self.each_factor(places)
                new = self.backend.elementwise(formulas.ended, [leaves], (), factors, end=end)
                view = view.with_leaves(places, new, applied=True)
        return view.settled()

    def sparse(self, transform: str) -> Tree:
        """Make the active leaves sparse in the result.

        Raises:
            TypeError: the framework has no sparse gradients; names the transform and the path.
        """
        rebuild = list(self.source.rebuild or [None] * len(self.leaves))
        for i in self.chosen:
            rebuild[i] = rebuild[i] or self.backend.sparse(self.leaves[i])
            if rebuild[i] is None:
                raise TypeError(
                    f"{transform}: the gradient at {self.source.path(i)!r} cannot become sparse, a "
                    f"{type(self.leaves[i]).__name__} in {self.backend.title}; leave sparse=True out"
                )
        return self._replace(source=self.source._replace(rebuild=tuple(rebuild)))

    def each_factor(self, places: Sequence[int]) -> list[Any] | None:
        """Return the pending factor of each of some leaves; None if nothing is pending."""
        factor = self.factor
        if factor is None or isinstance(factor, (int, float)) or not len(factor.shape):
            return factor if factor is None else [factor] * len(places)
        if isinstance(factor, np.ndarray):
            return [float(factor[i]) for i in places]
        return [self.backend.compute(formulas.take, factor, index=i) for i in places]

    # --- elementwise formulas ------------------------------------------------------------------------------------

    def mapped(self, formula: Formula, *columns: Row, numbers: Row = (), out: Given = None, **static: Any) -> list[Any]:
        """Apply an elementwise formula to the active leaves, including pending factors, and to columns; round once.

        The leaves are dense. The result goes into `out` if given.
        """
        if not self.chosen:
            return []
        own, factors = [self.leaves[i] for i in self.chosen], self.each_factor(self.chosen)
        return self.backend.elementwise(formula, [own, *columns], numbers, factors, out, **static)

    def written(self, formula: Formula, *columns: Row, numbers: Row = (), **static: Any) -> Tree:
        """Replace the active leaves, which are dense, with the results of a formula."""
        return self.given(self.mapped(formula, *columns, numbers=numbers, out=self.memory(), **static))

    def selected(self, formula: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Apply a formula that selects without rounding to columns, in the memory of the active leaves if owned."""
        return self.backend.each(formula, columns, (), self.memory())

    def wide(self) -> list[Array]:
        """Return the active leaves, including pending factors, in the dtypes of their sums."""
        if self.source.kinds & NARROW:
            return self.mapped(formulas.same)
        settled = self.settled()
        return [settled.leaves[i] for i in settled.chosen]

    def memory(self) -> Given:
        """Return the active leaves if all may be overwritten, else None."""
        return [self.leaves[i] for i in self.chosen] if self.is_owned(self.chosen) else None

    # --- inside --------------------------------------------------------------------------------------------------

    def _widened(self, places: Sequence[int]) -> list[Array]:
        """Convert leaves to the dtypes of their sums."""
        found = [self.leaves[i] for i in places]
        narrow = [n for n, i in enumerate(places) if self.source.dtypes[i] in NARROW]
        if not narrow:
            return found
        return put(found, narrow, self.backend.elementwise(formulas.same, [[found[n] for n in narrow]], ()))

    def _bound(self, bound: Any, dtype: str | None) -> Any:
        """Round a bound to a dtype, if there are both."""
        rounds = bound is not None and dtype is not None
        return self.backend.compute(formulas.rounded, bound, dtypes=(dtype,)) if rounds else bound

    def check_axes(self, axes: tuple[int, ...]) -> None:
        """Reject axes that an active leaf does not have."""
        self.check()

        def has(shape: Shape) -> bool:
            return len({axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}) == len(axes)

        self._check_shapes(has, f"axes {axes} are not {len(axes)} axes of", "choose the gradients with masked(...)")

    def _check_broadcast(self, name: str, bound: Any) -> None:
        """Reject a bound that would broadcast a leaf to a larger shape."""
        if bound is None or isinstance(bound, (int, float)):  # of a number that torch.compile traces, none can be asked
            return
        given = getattr(bound, "shape", ())
        own = () if getattr(given, "rank", 0) is None else tuple(given)
        wrong, advice = f"clip_value: {name} of shape {own} would broadcast", "give a number, or a bound of that shape"
        self._check_shapes(lambda shape: _broadcasts(own, shape), wrong, advice)

    def _check_shapes(self, fits: Callable[[Shape], bool], wrong: str, advice: str) -> None:
        """Reject an active leaf of a known shape that does not fit."""
        for i in self.chosen:
            shape = self.shape(i)
            if shape is not None and not fits(shape):
                raise ValueError(f"{wrong} the gradient at {self.source.path(i)!r} of shape {shape}; {advice}")


def _broadcasts(given: Shape, shape: Shape) -> bool:
    """Whether a shape broadcasts to another; unknown sizes count as equal."""
    matched = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(b in (1, s) or s is None or b is None for b, s in matched)


def _includes_zero(low: Any, high: Any) -> bool:
    """Whether clipping surely keeps zeros; traced bounds are not read."""
    numbers = (low is None or isinstance(low, (int, float))) and (high is None or isinstance(high, (int, float)))
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)
