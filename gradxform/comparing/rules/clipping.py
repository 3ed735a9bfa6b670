"""Rules for clips: of all gradients together, of one leaf and of one element at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.whole import ALIKE, parallel, slack, spread

_SAME = 1e-3
"""How far norms may be apart that are one limit: a clip divides by its norm plus 1e-6, or by a norm in float16."""


def _is_limit(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether numbers are one limit: equal while the others vary, or a round one."""
    varied = len(values) > 1 and spread(others) > ALIKE
    return spread(values) <= _SAME and (varied or is_round(values[0]))


def is_round(value: float) -> bool:
    """Whether a number has at most two significant digits, as limits have."""
    return math.isclose(float(f"{value:.1e}"), value, rel_tol=1e-4)


def clip_global_norm(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run have one norm together at the steps at which they differ by a factor."""
    if not parallel(e, e.bad) or spread([e.factor(i)[0] for i in e.bad]) > slack(e) or e.factor(e.bad[0])[0] <= 0:
        return
    assert e.step is not None
    steps = list(e.judged[e.tree].bad)
    norms = {side: [e.total(step, side) for step in steps] for side in "ab"}
    if len(steps) > 1 and all(spread(norms[side]) <= _SAME for side in "ab"):
        yield _both(e, "by the global norm", "clip_global_norm", norms["a"][0], norms["b"][0])
        return
    for side, other in (("b", "a"), ("a", "b")):
        limit = norms[side][0]
        over = [norm > limit for norm in norms[other]]
        kept = [norm for norm, more in zip(norms[side], over, strict=True) if more]
        beyond = [norm for norm, more in zip(norms[other], over, strict=True) if more]
        most = max(e.total(step, side) for step in e.rows[e.tree])
        run, rest = side.upper(), other.upper()
        if over[0] and _is_limit(kept, beyond) and most <= limit * (1 + _SAME):
            text = (
                f"{run} clips by the global norm, to {number(limit)}; at step {e.step} the norm is "
                f"{number(beyond[0])} in {rest}, which does not clip to it."
            )
            yield Finding("clip_global_norm", text, e.step, (), {"limit": limit})
            return
        if not over[0] and len(steps) > 1 and _is_limit(norms[side], norms[other]):
            loss = _loss_words(e, run)
            text = (
                f"The gradients of {run} have the global norm {number(limit)} at {len(steps)} steps, even where "
                f"it is smaller in {rest} ({number(norms[other][0])} at step {e.step}): either {run} clips gradients "
                f"that are larger before the clip{loss}, or it normalizes them."
            )
            yield Finding("clip_global_norm", text, e.step, (), {"limit": limit})
            return


def _loss_words(e: Evidence, run: str) -> str:
    """How many times larger the loss is in the run with the larger gradients."""
    one, other = e.losses.get(e.at, (0.0, 0.0)) if run == "B" else e.losses.get(e.at, (0.0, 0.0))[::-1]
    return f" (the loss is {number(other / one)} times larger too)" if one and other / one > 1 + ALIKE else ""


def _both(e: Evidence, how: str, kind: str, limit_a: float, limit_b: float) -> Finding:
    text = f"Both clip {how}, to other limits: A to {number(limit_a)}, B to {number(limit_b)}."
    return Finding(kind, text, e.at, e.labels(e.bad), {"limit_a": limit_a, "limit_b": limit_b})


def clip_norm(e: Evidence) -> Iterator[Finding]:
    """Each leaf that is larger in one run has one norm, the limit, in the other."""
    if len(e.pairs) < 2 or not parallel(e, e.bad) or any(e.factor(i)[0] <= 0 for i in e.bad):
        return
    norms = {side: [getattr(e.distance(i), f"norm_{side}") for i in e.bad] for side in "ab"}
    if len(e.bad) > 1 and all(spread(norms[side]) <= _SAME for side in "ab"):
        yield _both(e, "each gradient by its norm", "clip_norm", norms["a"][0], norms["b"][0])
        return
    for side, other in (("b", "a"), ("a", "b")):
        limit, there = max(norms[side]), [getattr(d, f"norm_{side}") for d in e.row if d is not None]
        smaller = all(one < another for one, another in zip(norms[side], norms[other], strict=True))
        if smaller and _is_limit(norms[side], norms[other]) and max(there) <= limit * (1 + _SAME):
            text = (
                f"{side.upper()} clips each gradient by its norm, to {number(limit)}; {len(e.bad)} of {len(there)} "
                f"leaves are over it in {other.upper()} at step {e.step}."
            )
            yield Finding("clip_norm", text, e.at, e.labels(e.bad), {"limit": limit})
            return


def clip_value(e: Evidence) -> Iterator[Finding]:
    """No element exceeds a limit in one run, and clipping the other to it makes them equal."""
    if not e.bad or not e.values:
        return
    for place, side, other in ((1, "b", "a"), (0, "a", "b")):
        limit = max(getattr(d, f"largest_{side}") for d in e.row if d is not None)
        if not limit or any(getattr(e.distance(i), f"largest_{other}") <= limit for i in e.bad):
            continue
        if all(_is_clipped(e.arrays(i)[1 - place], e.arrays(i)[place], limit, e.limit) for i in e.bad):
            highest = max(getattr(d, f"largest_{other}") for d in e.row if d is not None)
            at_highest = sum(int((np.abs(e.arrays(i)[1 - place]) == highest).sum()) for i in e.bad)
            if at_highest > 1:  # no two largest elements are equal by chance
                yield _both(e, "each element", "clip_value", *((highest, limit) if side == "b" else (limit, highest)))
                return
            text = (
                f"{side.upper()} clips each element to {number(limit)}; {len(e.bad)} of {len(e.row)} leaves have "
                f"larger ones in {other.upper()} at step {e.step}, up to {number(highest)}."
            )
            yield Finding("clip_value", text, e.at, e.labels(e.bad), {"limit": limit})
            return


def _is_clipped(raw: np.ndarray, clipped: np.ndarray, limit: float, tolerance: float) -> bool:
    wanted = np.clip(raw, -limit, limit)
    return float(np.linalg.norm(wanted - clipped)) <= tolerance * float(np.linalg.norm(clipped))
