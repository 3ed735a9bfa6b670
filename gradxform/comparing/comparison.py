"""What a comparison of two recordings consists of, and what the rules of the diagnosis look at."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.align.alignment import Alignment
from gradxform.comparing.findings import Finding, some
from gradxform.comparing.layouts import apart, few, reals
from gradxform.comparing.mapping import Pair
from gradxform.comparing.measuring import Arithmetic, Distance, Judged, Row, coarsest
from gradxform.recording.reading import Recording

TREES = ("gradients", "updates", "parameters")
"""Trees that are compared; others are data that both runs should have in common."""
SAMPLE = 1 << 15
"""Elements of a leaf that are enough to tell how it moves."""
_LEAVES, _STEPS = 1 << 8, 12
"""Leaves that tell a step from others, and steps that do."""


@dataclass(eq=False)
class Comparison:
    """What `compare` returns.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import gradxform as gx
        >>> a, b = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> gx.record(a)(0, gradients={"w": np.float32([1.0, 2.0]), "b": np.float32([3.0])})
        >>> gx.record(b)(0, gradients={"w": np.float32([8.0, 16.0]), "b": np.float32([24.0])})
        >>> found = gx.compare(a, b)
        >>> found.within, found.findings[0].kind.value, round(found.findings[0].numbers["factor"], 6)
        (False, 'factor', 8.0)

    Source:
        Higham, Accuracy and stability of numerical algorithms, 2002.
    """

    a: Recording
    b: Recording
    steps: list[int]
    """The steps that both have."""
    alignment: Alignment
    rows: Mapping[str, Mapping[int, Row]]
    """The distance of each pair, by tree and step."""
    judged: Mapping[str, Judged]
    """What rounding explains, by tree."""
    findings: list[Finding]
    """The diagnosis, first things first."""
    tolerance: float | None = None
    """The largest relative distance that was allowed; None for what rounding explains."""

    @property
    def within(self) -> bool:
        """Whether rounding, or the tolerance, explains all differences."""
        return not any(finding.is_fault for finding in self.findings)

    @property
    def pairs(self) -> list[Pair]:
        """The leaves that belong together, in the order of the network."""
        return self.alignment.pairs

    @functools.cached_property
    def tree(self) -> str:
        """The tree in which the runs part first; the first of gradients, updates and parameters if they do not."""
        parted = {tree: judged.first for tree, judged in self.judged.items()}
        first = min((step for step in parted.values() if step is not None), default=None)
        return next(tree for tree, step in parted.items() if step == first)

    def is_noise(self, i: int, tree: str, step: int) -> bool:
        """Whether a leaf is missing at a step, or its values are rounding."""
        return math.isnan(self.judged[tree].scaled[step][i])

    def worst(self, tree: str | None = None) -> list[Distance | None]:
        """For each pair, its distance at the step where it is largest in relative terms."""
        columns = zip(*self.rows[tree or self.tree].values(), strict=True)
        return [max(column, key=lambda d: (d.relative, d.size)) for column in columns]

    def __str__(self) -> str:
        """The diagnosis in words."""
        agreement = f"{self.agreement[0].upper()}{self.agreement[1:]}"
        return "\n".join([*([agreement] if self.within else []), *map(str, self.findings)])

    @property
    def agreement(self) -> str:
        """How far the runs agree, in the words of a sentence."""
        judged, tree = self.judged[self.tree], self.tree
        until = f"before step {judged.first} all" if judged.first is not None else "all"
        before = [level for step, level in judged.levels.items() if judged.first is None or step < judged.first]
        level, norms = f"at most {max(before, default=0.0):.1e}", self.a.norms_only or self.b.norms_only
        if self.tolerance is not None:
            return f"{until} differences are within the tolerance of {self.tolerance:g}: {level}."
        if not before:
            count = len(judged.bad[self.steps[0]])
            return f"all differences at step {self.steps[0]} are rounding, but for {count} of {len(self.pairs)} leaves."
        end = "; no gradients were compared" * (tree == "parameters") + "; only norms were compared" * norms
        if not any(before) and not norms and until == "all":
            return f"the {tree} are equal in every element{end}."
        return f"{until} differences are rounding: {level}, which {judged.arithmetic.name} explains{end}."


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
        # The largest distance there, over the norm of a leaf or its neighbours.
        self.level = judged.levels[self.at]
        # How far factors may be apart that are one.
        self.slack = max(constants.ALIKE, self.limit / 2)
        self.norms_only = self.a.norms_only or self.b.norms_only
        # The biases of one run that are the sum of two in the other, PyTorch's recurrent layers have.
        self.sums = set[int]()
        self.sides = self._side(0, self.a), self._side(1, self.b)
        # The pairs that are no mere noise there.
        self.significant = [i for i in range(len(self.pairs)) if not self.is_noise(i, self.tree, self.at)]

    def _side(self, place: int, recording: Recording) -> Side:
        there = recording.shapes(self.steps[0], "gradients") if "gradients" in self.rows else {}
        alone = {path: path for path in (self.alignment.alone_a, self.alignment.alone_b)[place] if path in there}
        twins = {path.replace("bias_ih", "bias_hh"): path for path in alone if "bias_ih" in path}
        for i, path in enumerate(pair.views[place].path for pair in self.pairs):
            if path in twins:
                self.sums.add(i)
                alone.pop(twins[path], None)
        return Side(place, "AB"[place], "BA"[place], recording, [*alone])

    @property
    def worst_pair(self) -> int:
        """The pair with the largest difference of them."""
        return max(self.bad, key=lambda i: self.row[i].relative)

    def coarsest(self, tree: str) -> Arithmetic:
        """The coarser arithmetic of a tree, by its dtypes."""
        return coarsest(d for side in (self.a, self.b) for d in side.dtypes(self.steps[0], tree).values())

    def both(self, i: int, tree: str, step: int, other: int | None = None, most: int = 0) -> tuple[Any, Any]:
        """The two leaves of a pair in float64, in one layout, or some elements; B's of another step if asked.

        Complex numbers are two along another axis.
        """
        found = []
        for side, view, at in zip(
            self.sides, self.pairs[i].views, (step, step if other is None else other), strict=True
        ):
            array = np.asarray(view.of(side.recording, at, tree, self.norms_only))
            shape = (-1,) if most else (*array.shape, *[2] * (array.dtype.kind == "c"))
            found.append(reals(few(array.reshape(-1), most) if most else array).reshape(shape))
        return found[0], found[1]

    def sampled(self, places: Sequence[int], tree: str, step: int, other: int | None = None) -> tuple[Any, Any]:
        """Some elements of some of these leaves, in one array for each run; one leaf as a whole, in its shape."""
        if len(places) == 1 and other is None and self.has(places[0], tree, step):
            return self.both(places[0], tree, step)
        shapes = self.a.shapes(step, tree), self.b.shapes(step if other is None else other, tree)
        there = [i for i in places if all(v.path in s for v, s in zip(self.pairs[i].views, shapes, strict=True))]
        found = [self.both(i, tree, step, other, SAMPLE) for i in few(there, _LEAVES)]
        one, two = (np.concatenate([[0.0], *side]) for side in zip(*found, strict=True)) if found else np.zeros((2, 1))
        return one, two

    def is_shifted(self, tree: str, step: int, other: int) -> bool:
        """Whether a tree of A at a step is that of B at another, and much nearer than at that and the first step."""
        every, first = range(len(self.pairs)), self.steps[0]  # where a run that hardly moves is as the other
        far, *usual = (self.sampled(every, tree, *at)[::-1] for at in ((step, other), (step, step), (first, first)))
        distance = apart(*far)
        return distance <= self.limit and all(constants.NEARER * distance < apart(*both) for both in usual)

    @functools.cached_property
    def later(self) -> list[int]:
        """Some steps from the one on where the runs part, after the one before it."""
        steps = list(self.rows[self.tree])
        return steps[max(0, steps.index(self.at) - 1) :][:_STEPS]

    def has(self, i: int, tree: str, step: int) -> bool:
        """Whether both have a leaf of a tree at a step."""
        return tree in self.rows and self.rows[tree][step][i].size > 0

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
