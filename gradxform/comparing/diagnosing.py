"""The diagnosis: small rules in the order of their causes, each asked until the differences are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding
from gradxform.comparing.rules import clipping, decay, leaf, optimizer, place, start, unlike, whole

Rule = Callable[[Evidence], Iterable[Finding]]

BEFORE: tuple[Rule, ...] = (start.nonfinite, start.data, start.initial, optimizer.update)
"""What comes before a gradient differs; each of these explains all that follows."""
RULES: tuple[Rule, ...] = (
    leaf.no_gradient,
    whole.clip_global_norm,
    clipping.clip_norm,
    clipping.clip_value,
    whole.factor,
    decay.weight_decay,
    leaf.tied,
    leaf.scaled,
    leaf.permuted,
    leaf.missing,
    leaf.two_biases,
    unlike.data_order,
    unlike.precision,
    unlike.constant,
    unlike.unrelated,
)
"""What makes gradients differ at the step where the runs part."""
ALWAYS: tuple[Rule, ...] = (place.where, start.later_nonfinite)


def diagnose(e: Evidence) -> list[Finding]:
    """What was found, first things first; empty where rounding explains all."""
    found: list[Finding] = []
    for rule in BEFORE:
        made = list(rule(e))
        if made:
            found += made
            break
    else:
        left = set(e.bad)
        for rule in RULES:
            made = [finding for finding in rule(e) if finding.explains is None or not finding.explains <= _known(found)]
            found += made
            for finding in made:
                left -= left if finding.explains is None else finding.explains
            if not left and e.step is not None:
                break
    if e.step is not None and not found:
        text = "Rounding does not explain the differences, and no rule knows their cause."
        found.append(Finding("unknown", text, e.step, e.labels(e.bad)))
    return found + [finding for rule in ALWAYS for finding in rule(e)]


def _known(found: Iterable[Finding]) -> frozenset[int]:
    """The pairs that findings have explained already."""
    return frozenset(i for finding in found for i in finding.explains or ())
