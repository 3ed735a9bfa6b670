"""The diagnosis: small rules in the order of their causes, each asked until the differences are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, proven
from gradxform.comparing.rules import gradients, optimizer, preconditions, unexplained

Rule = Callable[[Evidence], Iterable[Finding]]

BEFORE: tuple[Rule, ...] = (
    preconditions.offset,
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
    gradients.tied,
    gradients.scaled,
    gradients.permuted,
    gradients.missing,
)
"""Causes that predict the gradients of one run from those of the other, to within rounding."""
LIKELY: tuple[Rule, ...] = (
    unexplained.unrecorded,
    unexplained.data_order,
    unexplained.grown,
    unexplained.precision,
    unexplained.vague,
)
"""What is said of differences that no cause predicts: the first that fits, with its alternatives."""


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found = _first(BEFORE, e) or _proven(e)
    if not any(finding.explains is None or finding.explains for finding in found):
        found = [*_first(LIKELY, e), *found]
    if not any(finding.is_fault for finding in found):
        found += unexplained.losses(e)
    faults = [finding for finding in found if finding.is_fault]
    remarks = [*(unexplained.where(e, faults) if faults else ()), *preconditions.later_nonfinite(e)]
    return [*found, *remarks, *unexplained.dtypes(e)]


def _first(rules: Iterable[Rule], e: Evidence) -> list[Finding]:
    """What the first rule that finds something finds."""
    return next((made for rule in rules if (made := list(rule(e)))), [])


def _proven(e: Evidence) -> list[Finding]:
    """Causes until all differences are explained; what they leave is told, and no second cause guessed."""
    found: list[Finding] = []
    left, known = set(e.bad), frozenset[int]()
    for rule in PROVEN:
        for finding in list(rule(e)):
            if finding.explains and finding.explains <= known:
                continue
            found.append(finding)
            e.named |= set(finding.leaves)
            left -= left if finding.explains is None else finding.explains
            known |= finding.explains or frozenset()
        if not left and e.step is not None:
            break
    if found and left and e.step is not None and known:
        text = f"{len(left)} more leaves differ at step {e.step}, which this does not explain: {e.some(sorted(left))}."
        found.append(proven("rest", text, e.step, e.labels(sorted(left)), is_fault=False))
    return found
