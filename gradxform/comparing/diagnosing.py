"""The diagnosis: small rules in the order of their causes, each asked until the differences are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, proven
from gradxform.comparing.rules import gradients, optimizer, preconditions, unexplained

Rules = Mapping[Callable[[Evidence], Iterable[Finding]], str]
"""Rules, and the evidence without which each finds nothing.

Some of: "parted", two runs that part; "values", more than norms; "rounding", no tolerance that was given.
"""


BEFORE: Rules = {
    preconditions.shifted: "values",
    preconditions.nonfinite: "",
    preconditions.data: "parted values",
    preconditions.initial: "",
    optimizer.update: "values rounding",
}
"""What comes before a gradient differs; each of these explains all that follows."""
PROVEN: Rules = {
    gradients.no_gradient: "",
    gradients.clip_norm: "parted",
    gradients.clip_value: "parted values",
    gradients.factor: "parted",
    gradients.weight_decay: "parted values",
    gradients.scaled: "parted values",
    gradients.permuted: "parted values",
    gradients.alone: "",
}
"""Causes that predict the gradients of one run from those of the other, to within rounding."""
LIKELY: Rules = {
    unexplained.unrecorded: "parted rounding",
    unexplained.grown: "parted rounding",
    unexplained.precision: "parted",
    unexplained.vague: "",
}
"""What is said of differences that no cause predicts: the first that fits, with its alternatives."""


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found = _first(BEFORE, e) or list(_proven(e))
    if not any(finding.explains is None or finding.explains for finding in found):
        found = [*_first(LIKELY, e), *found]
    if not any(finding.is_fault for finding in found):
        found += _asked(e, unexplained.losses, "rounding")
    if e.step is not None and any(finding.is_fault for finding in found):
        found += unexplained.where(e)
    return [*found, *preconditions.nonfinite(e, later=True), *_asked(e, unexplained.dtypes, "rounding")]


def _asked(e: Evidence, find: Callable[[Evidence], Iterable[Finding]], needs: str) -> list[Finding]:
    """What a rule finds, where the evidence is there that it needs."""
    there = {"parted": e.step is not None, "values": e.values, "rounding": e.tolerance is None}
    return list(find(e)) if all(there[need] for need in needs.split()) else []


def _first(rules: Rules, e: Evidence) -> list[Finding]:
    """What the first rule that finds something finds."""
    return next((made for rule in rules.items() if (made := _asked(e, *rule))), [])


def _proven(e: Evidence) -> Iterator[Finding]:
    """Causes until all differences are explained; what they leave is told, and no second cause guessed."""
    left, known = set(e.bad), set[int]()
    for rule in PROVEN.items():
        for finding in _asked(e, *rule):
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
