"""The diagnosis: small rules in the order of their causes, each asked until the differences are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gradxform.comparing.comparison import Evidence
from gradxform.comparing.findings import Finding, proven
from gradxform.comparing.rules import gradients, optimizer, preconditions, unexplained

Rule = Callable[[Evidence], Iterable[Finding]]
BEFORE: tuple[Rule, ...] = (
    preconditions.shifted,
    preconditions.nonfinite,
    preconditions.data,
    preconditions.initial,
    optimizer.update,
)
"""What comes before a gradient differs; each of these explains all that follows."""
PROVEN: tuple[Rule, ...] = (
    gradients.no_gradient,
    gradients.clip_norm,
    gradients.clip_value,
    gradients.factor,
    gradients.weight_decay,
    gradients.scaled,
    gradients.permuted,
    gradients.alone,
)
"""Causes that predict the gradients of one run from those of the other, to within rounding."""
LIKELY: tuple[Rule, ...] = unexplained.unrecorded, unexplained.grown, unexplained.precision, unexplained.vague
"""What is said of differences that no cause predicts: the first that fits, with its alternatives."""
OF_ROUNDING: set[Rule] = {
    optimizer.update,
    unexplained.unrecorded,
    unexplained.grown,
    unexplained.losses,
    unexplained.dtypes,
}
"""Rules that tell rounding from what is not; where a tolerance was given, it does."""


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found = _first(e, *BEFORE) or list(_proven(e))
    if not any(finding.explains is None or finding.explains for finding in found):
        found = [*_first(e, *LIKELY), *found]
    if not any(finding.is_fault for finding in found):
        found += _first(e, unexplained.losses)
    if e.step is not None and any(finding.is_fault for finding in found):
        found += unexplained.where(e)
    return [*found, *preconditions.nonfinite(e, later=True), *_first(e, unexplained.dtypes)]


def _first(e: Evidence, *rules: Rule) -> list[Finding]:
    """What the first rule that finds something finds."""
    asked = (rule for rule in rules if e.tolerance is None or rule not in OF_ROUNDING)
    return next((made for rule in asked if (made := list(rule(e)))), [])


def _proven(e: Evidence) -> Iterator[Finding]:
    """Causes until all differences are explained; what they leave is told, and no second cause guessed."""
    left, known = set(e.bad), set[int]()
    for finding in (finding for rule in PROVEN if left or e.step is None for finding in rule(e)):
        if not finding.explains or not finding.explains <= known:
            yield finding
            left -= left if finding.explains is None else finding.explains
            known |= finding.explains or set()
    if left and known:
        text = f"{len(left)} more leaves differ at step {e.step}, which this does not explain: {e.some(sorted(left))}."
        yield proven("rest", text, e.at, e.labels(sorted(left)), is_fault=False)
