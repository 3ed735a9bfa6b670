"""Rules for clips: of all gradients together, of one leaf and of one element at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.constants import ALIKE, SAME_NORM
from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.whole import parallel, slack, spread


def _is_limit(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether several numbers are one limit: equal while the others vary."""
    return len(values) > 1 and spread(values) <= SAME_NORM and spread(others) > ALIKE


def clip_global_norm(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run have one norm together at the steps at which they differ by a factor."""
    if e.step is None or not parallel(e, e.bad):
        return
    factors = [e.factor(i)[0] for i in e.bad]
    if spread(factors) > slack(e) or factors[0] <= 0:
        return
    steps = list(e.judged[e.tree].bad)
    norms = {side: [e.total(step, side) for step in steps] for side in "ab"}
    if len(steps) > 1 and all(spread(norms[side]) <= SAME_NORM for side in "ab"):
        yield _both(e, "by the global norm", "clip_global_norm", norms["a"][0], norms["b"][0])
        return
    for side, other in (("b", "a"), ("a", "b")):
        run, rest, limit = side.upper(), other.upper(), norms[side][0]
        if norms[other][0] > limit:
            beyond = [(one, more) for one, more in zip(norms[side], norms[other], strict=True) if more > limit]
            most = max(e.total(step, side) for step in e.rows[e.tree])
            if not _is_limit(*map(list, zip(*beyond, strict=True))) or most > limit * (1 + SAME_NORM):
                continue
            text = (
                f"{run} clips by the global norm, to {number(limit)}, at {len(beyond)} steps; at step {e.step} the "
                f"norm is {number(norms[other][0])} in {rest}, which does not clip to it."
            )
        elif _is_limit(norms[side], norms[other]):
            text = (
                f"The gradients of {run} have the global norm {number(limit)} at {len(steps)} steps, even where "
                f"it is smaller in {rest} ({number(norms[other][0])} at step {e.step}): either {run} clips gradients "
                f"that are larger before the clip{_of_losses(e, side)}, or it normalizes them."
            )
        else:
            continue
        yield Finding("clip_global_norm", text, e.step, (), {"limit": limit})
        return


def _of_losses(e: Evidence, side: str) -> str:
    """How many times larger the loss is in the run with the larger gradients."""
    losses = e.losses.get(e.at, (0.0, 0.0))
    one, other = losses if side == "b" else losses[::-1]
    return f" (the loss is {number(other / one)} times larger too)" if one and other / one > 1 + ALIKE else ""


def _both(e: Evidence, how: str, kind: str, limit_a: float, limit_b: float) -> Finding:
    text = f"Both clip {how}, to other limits: A to {number(limit_a)}, B to {number(limit_b)}."
    return Finding(kind, text, e.at, e.labels(e.bad), {"limit_a": limit_a, "limit_b": limit_b})


def clip_norm(e: Evidence) -> Iterator[Finding]:
    """Each leaf that is larger in one run has one norm, the limit, in the other."""
    if len(e.bad) < 2 or not parallel(e, e.bad) or any(e.factor(i)[0] <= 0 for i in e.bad):
        return
    norms = {side: [getattr(e.distance(i), f"norm_{side}") for i in e.bad] for side in "ab"}
    if all(spread(norms[side]) <= SAME_NORM for side in "ab"):
        yield _both(e, "each gradient by its norm", "clip_norm", norms["a"][0], norms["b"][0])
        return
    for side, other in (("b", "a"), ("a", "b")):
        limit, there = max(norms[side]), [getattr(d, f"norm_{side}") for d in e.row if d is not None]
        smaller = all(one < another for one, another in zip(norms[side], norms[other], strict=True))
        if _is_limit(norms[side], norms[other]) and max(there) <= limit * (1 + SAME_NORM):
            text = (
                f"{side.upper()} clips each gradient by its norm, to {number(limit)}; {len(e.bad)} of {len(there)} "
                f"leaves are over it in {other.upper()} at step {e.step}."
            )
            if not smaller:
                each = f"each of {len(e.bad)} gradients has the norm {number(limit)}"
                text = f"In {side.upper()} {each}: it normalizes them."
            yield Finding("clip_norm", text, e.at, e.labels(e.bad), {"limit": limit})
            return


def clip_value(e: Evidence) -> Iterator[Finding]:
    """Several elements have a limit in one run, none exceeds it, and clipping the other to it makes them equal."""
    if not e.bad or not e.values:
        return
    for place, side, other in ((1, "b", "a"), (0, "a", "b")):
        limit, highest = (max(getattr(d, f"largest_{run}") for d in e.row if d is not None) for run in (side, other))
        if not limit or any(getattr(e.distance(i), f"largest_{other}") <= limit for i in e.bad):
            continue
        raw, clipped = ([e.arrays(i)[at] for i in e.bad] for at in (1 - place, place))
        fits = all(_is_clipped(x, y, limit, e.limit) for x, y in zip(raw, clipped, strict=True))
        if not fits or _count(clipped, limit) < 2:
            continue
        if _count(raw, highest) > 1:  # no two largest elements are equal by chance
            yield _both(e, "each element", "clip_value", *((highest, limit) if side == "b" else (limit, highest)))
            return
        text = (
            f"{side.upper()} clips each element to {number(limit)}; {len(e.bad)} of {len(e.row)} leaves have "
            f"larger ones in {other.upper()} at step {e.step}, up to {number(highest)}."
        )
        yield Finding("clip_value", text, e.at, e.labels(e.bad), {"limit": limit})
        return


def _count(arrays: Sequence[Any], value: float) -> int:
    """How many elements have a magnitude."""
    return sum(int((np.abs(array) == value).sum()) for array in arrays)


def _is_clipped(raw: Any, clipped: Any, limit: float, tolerance: float) -> bool:
    wanted = np.clip(raw, -limit, limit)
    return float(np.linalg.norm(wanted - clipped)) <= tolerance * float(np.linalg.norm(clipped))
