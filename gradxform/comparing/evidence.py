"""What the rules of the diagnosis look at: two recordings, aligned and measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.aligning import Alignment
from gradxform.comparing.mapping import Pair
from gradxform.comparing.measuring import Distance
from gradxform.comparing.rounding import Judged, Row, is_noise, magnitude
from gradxform.recording.reading import Recording

TREES = ("gradients", "updates", "parameters")
"""Trees that are compared; others are data that both runs should have in common."""


class Evidence:
    """Two recordings side by side; arrays are read when they are asked for."""

    def __init__(
        self,
        a: Recording,
        b: Recording,
        steps: Sequence[int],
        alignment: Alignment,
        rows: Mapping[str, Mapping[int, Row]],
        judged: Mapping[str, Judged],
        tolerated: bool = False,
    ) -> None:
        """Finds the tree and the step at which the runs part."""
        self.a, self.b, self.steps, self.alignment, self.rows, self.judged = a, b, list(steps), alignment, rows, judged
        parted = [(judged[tree].first, i, tree) for i, tree in enumerate(("gradients", "updates")) if tree in judged]
        found = min(((step, i, tree) for step, i, tree in parted if step is not None), default=None)
        self.tree = found[2] if found else next((tree for tree in TREES if tree in judged), "gradients")
        self.step: int | None = found[0] if found else None
        """The first step that rounding does not explain; None if it explains all."""
        self.tolerated = tolerated
        """Whether the user has said how large a difference may be."""
        self.values = not (a.norms_only or b.norms_only)

    @property
    def pairs(self) -> list[Pair]:
        """The aligned leaves."""
        return self.alignment.pairs

    @property
    def row(self) -> Row:
        """The distances at the step where the runs part, or at the first."""
        return self.rows[self.tree][self.steps[0] if self.step is None else self.step]

    @property
    def bad(self) -> list[int]:
        """The pairs that rounding does not explain there."""
        return [] if self.step is None else self.judged[self.tree].bad[self.step]

    @property
    def limit(self) -> float:
        """The distance that rounding explains there."""
        return self.judged[self.tree].allowed[self.steps[0] if self.step is None else self.step]

    def distance(self, i: int) -> Distance:
        """The distance of a pair that both have there."""
        found = self.row[i]
        assert found is not None
        return found

    @functools.cached_property
    def significant(self) -> list[int]:
        """The pairs that are no mere noise at the step where the runs part."""
        mean, arithmetic = magnitude(self.row), self.judged[self.tree].arithmetic
        return [i for i, d in enumerate(self.row) if d is not None and not is_noise(d, mean, arithmetic)]

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def arrays(self, i: int, tree: str | None = None, step: int | None = None) -> tuple[Any, Any]:
        """The two leaves of a pair in float64, in one layout."""
        tree, step = (
            tree or self.tree,
            step if step is not None else (self.step if self.step is not None else self.steps[0]),
        )
        return tuple(  # type: ignore[return-value]
            np.asarray(view.layout.of(side.read(step, tree, view.path)), np.float64)
            for side, view in ((self.a, self.pairs[i].a), (self.b, self.pairs[i].b))
        )

    def has(self, i: int, tree: str, step: int) -> bool:
        """Whether both have a leaf of a tree at a step."""
        row = self.rows.get(tree, {}).get(step)
        return self.values and row is not None and row[i] is not None

    def labels(self, places: Sequence[int]) -> tuple[str, ...]:
        """The paths of pairs."""
        return tuple(self.pairs[i].label for i in places)

    def total(self, step: int, side: str) -> float:
        """The global norm of a run's tree at a step."""
        norms = [getattr(d, f"norm_{side}") for d in self.rows[self.tree][step] if d is not None]
        return math.sqrt(math.fsum(norm * norm for norm in norms))

    def is_parallel(self, i: int) -> bool:
        """Whether a factor explains the difference of a pair, but for rounding and a tenth of it."""
        factor, left = self.factor(i)
        explained = max(0.1 * abs(factor - 1), 16 * self.judged[self.tree].arithmetic.unit)
        return left <= min(max(self.limit, 1e-4), explained)

    def factor(self, i: int) -> tuple[float, float]:
        """The factor that makes the leaf of A most like that of B, and what is left of B then, relative to it."""
        d = self.distance(i)
        if not d.norm_a or not d.norm_b:
            return (0.0, 1.0) if d.norm_a != d.norm_b else (1.0, 0.0)
        factor = d.dot / d.norm_a**2
        left = max(0.0, 1.0 - d.cosine**2)
        if left < 1e-6 and self.values:  # the cosine is rounded
            a, b = self.arrays(i)
            return factor, float(np.linalg.norm(b - factor * a) / d.norm_b)
        return factor, math.sqrt(left)
