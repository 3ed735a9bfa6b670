"""Rules for what is added to gradients: weight decay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number


def weight_decay(e: Evidence) -> Iterator[Finding]:
    """Gradients that differ by one number times the parameters."""
    if e.step is None or not all(e.has(i, "parameters", e.step) for i in e.bad):
        return
    found = []
    for i in e.bad:
        a, b = e.arrays(i)
        p = e.arrays(i, "parameters", e.step)[0]
        if not p.any():
            return
        added = b - a
        rate = float(np.vdot(p, added) / np.vdot(p, p))
        left = float(np.linalg.norm(added - rate * p) / np.linalg.norm(added))
        noise = e.limit * float(np.linalg.norm(a)) / float(np.linalg.norm(added))
        if left > max(0.02, min(noise, 0.3)):
            return
        found.append(rate)
    rate = float(np.median(found))
    if max(found) - min(found) > 0.05 * abs(rate) or not rate:
        return
    run = "B" if rate > 0 else "A"
    text = f"{run} adds weight decay to the gradients, {number(abs(rate))} times the parameters; the other does not."
    yield Finding("weight_decay", text, e.step, e.labels(e.bad), {"rate": rate}, frozenset(e.bad))
