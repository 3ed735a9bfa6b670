"""The rule for gradients of B that are a number times those of A, plus another times the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.whole import factor_words

_FEWEST = 8
"""Elements from which a leaf can tell two numbers, and the times by which a better prediction is nearer."""


class _Leaf(NamedTuple):
    a: Any
    b: Any
    parameter: Any

    def off(self, times: float, rate: float) -> float:
        """The relative error of the prediction b = times a + rate parameter."""
        return float(np.linalg.norm(self.b - times * self.a - rate * self.parameter) / np.linalg.norm(self.b))

    def best(self) -> tuple[float, float]:
        """Times and rate with the smallest error."""
        times, rate = np.linalg.lstsq(np.stack([self.a, self.parameter], 1), self.b, rcond=None)[0]
        return float(times), float(rate)

    def factor(self) -> float:
        """Times with the smallest error, without decay."""
        return float(np.vdot(self.a, self.b) / max(np.vdot(self.a, self.a), 1e-300))


def weight_decay(e: Evidence) -> Iterator[Finding]:
    """Gradients of B that are k times those of A plus r times the parameters, in all leaves or in some."""
    if not e.values or e.step is None or not all(e.has(i, "parameters", e.step) for i in e.bad):
        return
    leaves = {i: _Leaf(*(x.ravel() for x in (*e.arrays(i), e.arrays(i, "parameters", e.step)[0]))) for i in e.bad}
    leaves = {i: leaf for i, leaf in leaves.items() if leaf.b.any() and np.isfinite(leaf.b).all()}
    voters = {i: leaf for i, leaf in leaves.items() if leaf.a.size >= _FEWEST and leaf.a.any()}
    if not voters or len(leaves) < len(e.bad):
        return
    fits = {i: leaf.best() for i, leaf in voters.items()}
    decayed = [i for i, leaf in voters.items() if leaf.off(leaf.factor(), 0.0) > _FEWEST * leaf.off(*fits[i])]
    if not decayed:
        return
    times = _middle([fits[i][0] for i in voters], [voters[i].off(*fits[i]) for i in voters])
    times = 1.0 if abs(times - 1) <= e.limit else times
    rate = float(np.median([fits[i][1] for i in decayed]))
    errors = {i: (leaf.off(times, rate), leaf.off(times, 0.0)) for i, leaf in leaves.items()}
    if not rate or max(map(min, errors.values())) > e.limit:
        return
    places = [i for i, (with_, without) in errors.items() if with_ < without]
    if times != 1:
        large, large_times = ("B", abs(times)) if abs(times) > 1 else ("A", 1 / abs(times))
        yield Finding("factor", factor_words(e, times, large, large_times), e.step, (), {"factor": times})
    run, other = ("B", "A") if rate > 0 else ("A", "B")
    text = (
        f"{run} adds weight decay to the gradients, {number(abs(rate))} times the parameters in {len(places)} of "
        f"{len(e.pairs)} leaves, which {other} does not add, or adds so much less."
    )
    yield Finding("weight_decay", text, e.step, e.labels(places), {"rate": rate}, frozenset(e.bad))


def _middle(values: Sequence[float], errors: Sequence[float]) -> float:
    """The value that is known best."""
    return min(zip(errors, values, strict=True))[1]
