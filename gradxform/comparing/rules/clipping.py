"""Rules for clips of one leaf, or one element, at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.whole import is_round


def clip_norm(e: Evidence) -> Iterator[Finding]:
    """Each leaf that is larger in one run has one norm, the limit, in the other."""
    if not e.bad or not all(map(e.is_parallel, e.bad)):
        return
    assert e.step is not None
    for side, other in (("b", "a"), ("a", "b")):
        norms = {i: getattr(d, f"norm_{side}") for i, d in enumerate(e.row) if d is not None}
        limit = max(norms[i] for i in e.bad)
        smaller = all(norms[i] < getattr(e.distance(i), f"norm_{other}") for i in e.bad)
        same = all(abs(norms[i] - limit) <= 1e-3 * limit for i in e.bad)
        within = max(norms.values()) <= limit * 1.001
        if smaller and same and within and (len(e.bad) > 1 or is_round(limit)):
            text = (
                f"{side.upper()} clips each gradient by its norm, to {number(limit)}; {other.upper()} does not. "
                f"{len(e.bad)} of {len(norms)} leaves are over it at step {e.step}."
            )
            yield Finding("clip_norm", text, e.step, e.labels(e.bad), {"limit": limit})
            return


def clip_value(e: Evidence) -> Iterator[Finding]:
    """No element exceeds a limit in one run, and clipping the other to it makes them equal."""
    if not e.bad or not e.values:
        return
    assert e.step is not None
    for place, side, other in ((1, "b", "a"), (0, "a", "b")):
        limit = max(getattr(d, f"largest_{side}") for d in e.row if d is not None)
        if not limit or any(getattr(e.distance(i), f"largest_{other}") <= limit for i in e.bad):
            continue
        if all(_is_clipped(e.arrays(i)[1 - place], e.arrays(i)[place], limit, e.limit) for i in e.bad):
            text = (
                f"{side.upper()} clips each element to {number(limit)}; {other.upper()} does not. "
                f"{len(e.bad)} of {len(e.row)} leaves have larger ones at step {e.step}."
            )
            yield Finding("clip_value", text, e.step, e.labels(e.bad), {"limit": limit})
            return


def _is_clipped(raw: np.ndarray, clipped: np.ndarray, limit: float, tolerance: float) -> bool:
    wanted = np.clip(raw, -limit, limit)
    return float(np.linalg.norm(wanted - clipped)) <= max(tolerance, 1e-4) * float(np.linalg.norm(clipped))
