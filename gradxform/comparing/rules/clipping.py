"""Rules for clips: of all gradients together, of one leaf and of one element at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.comparing.constants import ALIKE, SAME_NORM
from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.whole import parallel, slack, spread

_UNDECIDED = " A {} with a smaller norm would tell a clip from a normalization."


def _is_limit(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether several numbers are one limit: equal while the others vary."""
    return len(values) > 1 and spread(values) <= SAME_NORM and spread(others) > ALIKE


def _is_spared(norms: Sequence[float], limit: float) -> bool:
    """Whether a norm is below a limit: what normalizes leaves none there."""
    return any(0 < norm < limit * (1 - SAME_NORM) for norm in norms)


def clip_global_norm(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run have one norm together at the steps at which they differ by a factor."""
    if e.step is None or not parallel(e, e.bad):
        return
    factors = [e.factor(i)[0] for i in e.bad]
    if spread(factors) > slack(e) or factors[0] <= 0:
        return
    steps = list(e.judged[e.tree].bad)
    norms = {side: [e.total(step, side) for step in steps] for side in "ab"}
    every = {side: [e.total(step, side) for step in e.rows[e.tree]] for side in "ab"}
    if len(steps) > 1 and all(spread(norms[side]) <= SAME_NORM for side in "ab"):
        certain = all(_is_spared(every[side], norms[side][0]) for side in "ab")
        yield _both(e, "by the global norm", "clip_global_norm", norms["a"][0], norms["b"][0], certain)
        return
    for side, other in (("b", "a"), ("a", "b")):
        run, rest, limit = side.upper(), other.upper(), norms[side][0]
        if norms[other][0] > limit:
            beyond = [(one, more) for one, more in zip(norms[side], norms[other], strict=True) if more > limit]
            if not _is_limit(*map(list, zip(*beyond, strict=True))) or max(every[side]) > limit * (1 + SAME_NORM):
                continue
            certain = _is_spared(every[side], limit)
            text = (
                f"{run} clips{'' if certain else ' or normalizes'} by the global norm, to {number(limit)}, at "
                f"{len(beyond)} steps; at step {e.step} the norm is {number(norms[other][0])} in {rest}, which does "
                f"not clip to it.{'' if certain else _UNDECIDED.format('step')}"
            )
        elif _is_limit(norms[side], norms[other]):
            certain = False
            text = (
                f"The gradients of {run} have the global norm {number(limit)} at {len(steps)} steps, even where "
                f"it is smaller in {rest} ({number(norms[other][0])} at step {e.step}): either {run} clips gradients "
                f"that are larger before the clip{_of_losses(e, side)}, or it normalizes them."
            )
        else:
            continue
        yield Finding("clip_global_norm", text, e.step, (), {"limit": limit}, is_certain=certain)
        return


def _of_losses(e: Evidence, side: str) -> str:
    """How many times larger the loss is in the run with the larger gradients."""
    losses = e.losses.get(e.at, (0.0, 0.0))
    one, other = losses if side == "b" else losses[::-1]
    return f" (the loss is {number(other / one)} times larger too)" if one and other / one > 1 + ALIKE else ""


def _both(e: Evidence, how: str, kind: str, limit_a: float, limit_b: float, certain: bool) -> Finding:
    verb = "clip" if certain else "clip or normalize"
    text = f"Both {verb} {how}, to other limits: A to {number(limit_a)}, B to {number(limit_b)}."
    return Finding(kind, text, e.at, e.labels(e.bad), {"limit_a": limit_a, "limit_b": limit_b}, is_certain=certain)


def clip_norm(e: Evidence) -> Iterator[Finding]:
    """Each leaf that is larger in one run has one norm, the limit, in the other."""
    if len(e.bad) < 2 or not parallel(e, e.bad) or any(e.factor(i)[0] <= 0 for i in e.bad):
        return
    norms = {side: [getattr(e.distance(i), f"norm_{side}") for i in e.bad] for side in "ab"}
    every = {side: [getattr(d, f"norm_{side}") for d in e.row if d is not None] for side in "ab"}
    if all(spread(norms[side]) <= SAME_NORM for side in "ab"):
        certain = all(_is_spared(every[side], norms[side][0]) for side in "ab")
        yield _both(e, "each gradient by its norm", "clip_norm", norms["a"][0], norms["b"][0], certain)
        return
    for side, other in (("b", "a"), ("a", "b")):
        limit, there = max(norms[side]), every[side]
        smaller = all(one < another for one, another in zip(norms[side], norms[other], strict=True))
        if _is_limit(norms[side], norms[other]) and max(there) <= limit * (1 + SAME_NORM):
            certain = smaller and _is_spared(there, limit)
            text = (
                f"{side.upper()} clips{'' if certain else ' or normalizes'} each gradient by its norm, to "
                f"{number(limit)}; {len(e.bad)} of {len(there)} leaves are over it in {other.upper()} at step {e.step}."
                f"{'' if certain else _UNDECIDED.format('leaf')}"
            )
            if not smaller:
                each = f"each of {len(e.bad)} gradients has the norm {number(limit)}"
                text = (
                    f"In {side.upper()} {each}, even where it is smaller in {other.upper()}: either it normalizes "
                    "them, or clips gradients that are larger before the clip."
                )
            yield Finding("clip_norm", text, e.at, e.labels(e.bad), {"limit": limit}, is_certain=certain)
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
            limits = (highest, limit) if side == "b" else (limit, highest)
            yield _both(e, "each element", "clip_value", *limits, certain=True)
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
