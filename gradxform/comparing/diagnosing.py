"""The diagnosis: small rules in the order of their causes, each asked until the differences are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, proven
from gradxform.comparing.rules import gradients, optimizer, preconditions, unexplained


class Rule(NamedTuple):
    """A rule, and the evidence without which it finds nothing."""

    find: Callable[[Evidence], Iterable[Finding]]
    needs: str = ""
    """Some of: "parted", two runs that part; "values", more than norms; "rounding", no tolerance that was given."""

    def asked(self, e: Evidence) -> list[Finding]:
        """What it finds."""
        there = {"parted": e.step is not None, "values": e.values, "rounding": e.tolerance is None}
        return list(self.find(e)) if all(there[need] for need in self.needs.split()) else []


BEFORE = (
    Rule(preconditions.shifted, "values"),
    Rule(preconditions.nonfinite),
    Rule(preconditions.data, "parted values"),
    Rule(preconditions.initial),
    Rule(optimizer.update, "values rounding"),
)
"""What comes before a gradient differs; each of these explains all that follows."""
PROVEN = (
    Rule(gradients.no_gradient),
    Rule(gradients.clip_norm, "parted"),
    Rule(gradients.clip_value, "parted values"),
    Rule(gradients.factor, "parted"),
    Rule(gradients.weight_decay, "parted values"),
    Rule(gradients.scaled, "parted values"),
    Rule(gradients.permuted, "parted values"),
    Rule(gradients.alone),
)
"""Causes that predict the gradients of one run from those of the other, to within rounding."""
LIKELY = (
    Rule(unexplained.unrecorded, "parted rounding"),
    Rule(unexplained.grown, "parted rounding"),
    Rule(unexplained.precision, "parted"),
    Rule(unexplained.vague),
)
"""What is said of differences that no cause predicts: the first that fits, with its alternatives."""


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found = _first(BEFORE, e) or list(_proven(e))
    if not any(finding.explains is None or finding.explains for finding in found):
        found = [*_first(LIKELY, e), *found]
    if not any(finding.is_fault for finding in found):
        found += Rule(unexplained.losses, "rounding").asked(e)
    if e.step is not None and any(finding.is_fault for finding in found):
        found += unexplained.where(e)
    return [*found, *preconditions.nonfinite(e, later=True), *Rule(unexplained.dtypes, "rounding").asked(e)]


def _first(rules: Iterable[Rule], e: Evidence) -> list[Finding]:
    """What the first rule that finds something finds."""
    return next((made for rule in rules if (made := rule.asked(e))), [])


def _proven(e: Evidence) -> Iterator[Finding]:
    """Causes until all differences are explained; what they leave is told, and no second cause guessed."""
    left, known = set(e.bad), set[int]()
    for rule in PROVEN:
        for finding in rule.asked(e):
            if finding.explains and finding.explains <= known:
                continue
            yield finding
            left -= left if finding.explains is None else finding.explains
            known |= finding.explains or set()
        if not left and e.step is not None:
            return
    if left and known:
        text = f"{len(left)} more leaves differ at step {e.step}, which this does not explain: {e.some(sorted(left))}."
        yield proven("rest", text, e.at, e.labels(sorted(left)), is_fault=False)
