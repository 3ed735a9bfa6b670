"""The rule that says where two runs part, whatever the reason: step, leaf, and direction in the network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding

_SAME = 16
"""Units up to which two losses are the same."""


def where(e: Evidence) -> Iterator[Finding]:
    """The first step and leaf, and whether the difference comes from the loss or from within the network."""
    if e.step is None:
        return
    worst = max(e.bad, key=lambda i: e.distance(i).relative)
    order = [i for i in range(len(e.pairs)) if e.row[i] is not None]
    last = max(e.bad)
    after = [i for i in order if i > last]
    begin = f"The runs part at step {e.step}, in {len(e.bad)} of {len(order)} leaves of {e.tree}"
    most = f"; the largest difference is {e.distance(worst).relative:.2g}, in {e.pairs[worst].label}"
    losses = _losses(e)
    if after:
        direction = f"; the {len(after)} leaves after {e.pairs[last].label} agree: it arises there, on the way back"
    elif losses is not None and losses < _SAME * e.judged[e.tree].arithmetic.unit:
        direction = "; the losses agree: it arises on the way back, near the loss"
    elif losses is not None:
        direction = "; the losses differ too: it arises on the way forward, or in the loss"
    else:
        direction = "; the last leaf differs too: it arises on the way forward, or in the loss"
    yield Finding("where", f"{begin}{most}{direction}.", e.step, e.labels(e.bad), {}, frozenset(), is_fault=False)


def _losses(e: Evidence) -> float | None:
    """The relative difference of the losses at that step, if both recorded them."""
    assert e.step is not None
    if not all("loss" in side.names(e.step) and side.shapes(e.step, "loss").get("") == () for side in (e.a, e.b)):
        return None
    one, other = (float(np.asarray(side.read(e.step, "loss", ""), np.float64).ravel()[0]) for side in (e.a, e.b))
    return abs(one - other) / max(abs(one), abs(other), 1e-300)
