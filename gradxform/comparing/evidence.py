"""Two recordings side by side: what the rules of the diagnosis look at."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import Comparison
from gradxform.comparing.findings import some
from gradxform.comparing.layouts import apart, few, reals
from gradxform.comparing.mapping import View, module_of
from gradxform.comparing.rounding import Arithmetic, Row, coarsest
from gradxform.recording.reading import Recording

TREES = ("gradients", "updates", "parameters")
"""Trees that are compared; others are data that both runs should have in common."""
_SAMPLE, _LEAVES, _STEPS = 1 << 15, 1 << 8, 12
"""Elements of a leaf that are enough to tell how it moves; leaves that tell a step from others, and steps that do."""


class Side(NamedTuple):
    """One of the two recordings."""

    place: int
    name: str
    other: str
    """What the other one is called."""
    recording: Recording
    alone: list[str]
    """The leaves without a partner that have a gradient at the first step."""


@dataclass(eq=False)
class Evidence(Comparison):
    """A comparison in the making; arrays are read when they are asked for."""

    losses: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """The losses of both, at the steps at which both recorded one."""

    def __post_init__(self) -> None:
        """Finds where the runs part."""
        judged = self.judged[self.tree]
        # The step at which the runs part; None if rounding explains all.
        self.step, self.arithmetic = judged.first, judged.arithmetic
        # The same, or the first step.
        self.at = self.steps[0] if self.step is None else self.step
        # Whether no step came before at which the runs agreed, as far as is known.
        self.begins = self.at == self.steps[0]
        # The distances there.
        self.row: Row = self.rows[self.tree][self.at]
        # The pairs that rounding does not explain there, and the distance that it explains.
        self.bad, self.limit = judged.bad.get(self.at, []), judged.allowed[self.at]
        # How far factors may be apart that are one.
        self.slack = max(constants.ALIKE, self.limit / 2)
        self.values = not (self.a.norms_only or self.b.norms_only)
        # By pairs, the place of a run in which a leaf without a partner has the same gradient, as the sum is one bias.
        self.sums: dict[int, tuple[int, View]] = {}
        self.sides = self._side(0, self.a), self._side(1, self.b)
        # The pairs that are no mere noise there.
        self.significant = [i for i in range(len(self.pairs)) if not self.is_noise(i, self.tree, self.at)]

    def _side(self, place: int, recording: Recording) -> Side:
        shapes = recording.shapes(self.steps[0], "gradients") if "gradients" in self.rows else {}
        alone = [path for path in (self.alignment.alone_a, self.alignment.alone_b)[place] if path in shapes]
        near: dict[str, list[str]] = {}
        for path in alone:
            near.setdefault(module_of(path), []).append(path)
        for i, view in enumerate(pair.views[place] for pair in self.pairs):
            for path in near.get(module_of(view.path), ()):
                if shapes[path] == shapes.get(view.path) and view.layout.part is None:
                    arrays = (reals(recording.read(self.steps[0], "gradients", x)) for x in (path, view.path))
                    if apart(*arrays) <= self.judged["gradients"].allowed[self.steps[0]]:
                        self.sums[i] = place, view._replace(path=path)
        seconds = {view.path for side, view in self.sums.values() if side == place}
        return Side(place, "AB"[place], "BA"[place], recording, [path for path in alone if path not in seconds])

    @property
    def worst_pair(self) -> int:
        """The pair with the largest difference of them."""
        return max(self.bad, key=lambda i: self.row[i].relative)

    def coarsest(self, tree: str) -> Arithmetic:
        """The coarser arithmetic of a tree, by its dtypes."""
        return coarsest(d for side in (self.a, self.b) for d in side.dtypes(self.steps[0], tree).values())

    def array(self, place: int, view: View, tree: str, step: int, most: int = 0) -> Any:
        """A leaf of a run in its layout in float64, or some elements; complex numbers are two along another axis."""
        array = np.asarray(view.layout.of(self.sides[place].recording.read(step, tree, view.path)))
        if most:
            return reals(few(array.reshape(-1), most)).ravel()
        return reals(array).reshape(*array.shape, *[2] * (array.dtype.kind == "c"))

    def both(self, i: int, tree: str | None = None, step: int | None = None) -> tuple[Any, Any]:
        """The two leaves of a pair in float64, in one layout."""
        return self.samples(i, tree or self.tree, self.at if step is None else step, most=0)

    def samples(self, i: int, tree: str, step: int, other: int | None = None, most: int = _SAMPLE) -> tuple[Any, Any]:
        """Some elements of the two leaves of a pair in float64, the same ones of both; B's of another step if asked."""
        d, (a, b) = self.rows[tree][step][i], self.pairs[i].views
        if not self.values:
            return np.array(d.norms[:1]), np.array(d.norms[1:])
        return self.array(0, a, tree, step, most), self.array(1, b, tree, step if other is None else other, most)

    def sampled(self, places: Sequence[int], tree: str, step: int, other: int | None = None) -> tuple[Any, Any]:
        """Some elements of some of these leaves, in one array for each run; one leaf as a whole, in its shape."""
        if len(places) == 1 and other is None and self.has(places[0], tree, step):
            return self.both(places[0], tree, step)
        shapes = self.a.shapes(step, tree), self.b.shapes(step if other is None else other, tree)
        there = [i for i in places if all(v.path in s for v, s in zip(self.pairs[i].views, shapes, strict=True))]
        found = [self.samples(i, tree, step, other) for i in few(there, _LEAVES)]
        one, two = (np.concatenate([[0.0], *side]) for side in zip(*found, strict=True)) if found else np.zeros((2, 1))
        return one, two

    def is_shifted(self, tree: str, step: int, other: int) -> bool:
        """Whether a tree of A at a step is that of B at another, and much nearer to it than to B's of that step."""
        far, usual = (self.sampled(range(len(self.pairs)), tree, step, at)[::-1] for at in (other, step))
        return (distance := apart(*far)) <= self.limit and constants.NEARER * distance < apart(*usual)

    @functools.cached_property
    def later(self) -> list[int]:
        """Some steps from the one on where the runs part, after the one before it."""
        steps = list(self.rows[self.tree])
        return steps[max(0, steps.index(self.at) - 1) :][:_STEPS]

    def has(self, i: int, tree: str, step: int) -> bool:
        """Whether both have a leaf of a tree at a step."""
        return self.values and tree in self.rows and self.rows[tree][step][i].size > 0

    def loss_gap(self, step: int) -> float | None:
        """How far the losses are apart, over the largest, if rounding and parameters do not explain it; None: unknown.

        Parameters that are apart by d change a loss with the gradient g by g d, to first order: |g| |d| at most.
        """
        if step not in self.losses:
            return None
        one, other = self.losses[step]
        if not (math.isfinite(one) and math.isfinite(other)):
            return 0.0 if str(one) == str(other) else math.inf
        scale = max((abs(x) for pair in self.losses.values() for x in pair if math.isfinite(x)), default=0.0)
        moved = 0.0
        if "gradients" in self.rows and "parameters" in self.rows:
            rows = zip(self.rows["gradients"][step], self.rows["parameters"][step], strict=True)
            moved = math.fsum(max(g.norms) * p.difference for g, p in rows)
        gap = abs(one - other) - moved
        return gap / scale if gap > self.judged[self.tree].allowed[step] * scale else 0.0

    def labels(self, places: Sequence[int]) -> tuple[str, ...]:
        """The paths of pairs."""
        return tuple(self.pairs[i].label for i in places)

    def some(self, places: Sequence[int]) -> str:
        """The paths of a few pairs in words."""
        return some(self.labels(places))

    def total(self, step: int, place: int) -> float:
        """The global norm of a run's tree at a step."""
        return math.hypot(*(d.norms[place] for d in self.rows[self.tree][step]))

    def is_parallel(self, i: int) -> bool:
        """Whether a factor explains the difference of a pair, but for rounding and a tenth of it."""
        d = self.row[i]
        units = constants.FACTOR_UNITS * self.arithmetic.unit
        return d.left <= min(max(self.limit, constants.EXACT), max(constants.EXPLAINED * abs(d.factor - 1), units))

    def are_parallel(self, places: Sequence[int]) -> bool:
        """Whether all of these leaves are a number times those of the other run, in enough elements to tell."""
        return sum(self.row[i].size for i in places) >= constants.PROVING and all(map(self.is_parallel, places))
