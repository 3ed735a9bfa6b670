"""The rule for losses that differ where gradients agree."""

from __future__ import annotations

from collections.abc import Iterator

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, unequal


def losses(e: Evidence) -> Iterator[Finding]:
    """Losses that rounding does not explain, at a step at which it explains the gradients."""
    for step in e.steps:
        if (e.step is not None and step >= e.step) or e.tolerated:
            return
        if e.loss_gap(step):
            one, other = e.losses[step]
            words = unequal(one, other)
            why = (
                "either the loss that is reported is not the one that is trained (a sum and a mean, before and after a "
                "step, a running mean), or a part of it has no gradient (a constant, a penalty that is detached)"
            )
            text = f"The losses differ at step {step}, {words[0]} in A and {words[1]} in B"
            yield Finding("loss", f"{text}, and the {e.tree} agree: {why}.", step, (), {"a": one, "b": other})
            return
