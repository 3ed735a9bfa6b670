"""Where two runs part: the step, the leaves and the direction in the network; and whether rounding alone did it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gradxform.comparing.evidence import AMPLIFIED, CLOSE, Evidence
from gradxform.comparing.findings import Finding
from gradxform.comparing.rounding import BY_NAME, scaled

VAGUE = {"unknown", "unrelated", "constant", "precision"}
"""Findings that name no one cause."""
_LEAVES = 16
"""Leaves whose ways are compared."""


def grown(e: Evidence) -> Iterator[Finding]:
    """Runs that agreed, and part where their parameters and losses still agree: rounding has crossed a kink, or grown.

    A ReLU or a maximum whose input is rounded to the other side of its kink changes a gradient, and no loss. A fault
    that begins later either shows in the loss, or is one that another rule proves.
    """
    if (
        e.step is None
        or (e.step == e.steps[0] and not _few_of_half(e))
        or e.tolerated
        or any(e.distance(i).apart for i in e.bad)
    ):
        return
    gap, agree = e.loss_gap(e.step), [i for i in e.significant if i not in e.bad]
    if gap or (gap is None and not agree) or not _parameters_agree(e, e.step):
        return
    before = e.steps.index(e.step) - 1
    begin = f"All agrees up to step {e.steps[before]}. " if before >= 0 else ""
    known = "the parameters" if "parameters" in e.rows else ""
    known = " and ".join([*([known] if known else []), *(["the losses"] if gap is not None else [])]) or "other leaves"
    worst = max(e.bad, key=lambda i: e.distance(i).relative)
    text = (
        f"{begin}At step {e.step} {len(e.bad)} of {len(e.pairs)} gradients part, by "
        f"{e.distance(worst).relative:.2g} at most, while {known} still agree: rounding that has grown, or an input of "
        "a ReLU or a maximum that is rounded to its other side. Later steps belong to two trainings and tell nothing."
    )
    yield Finding("grown", text, e.step, e.labels(e.bad), {}, frozenset(e.bad), is_fault=False)


def _few_of_half(e: Evidence) -> bool:
    """Whether few leaves part, and little: in half precision inputs are rounded over their kinks at any step."""
    judged = e.judged[e.tree]
    apart = max(scaled(e.distance(i), e.scale(e.tree, e.at).near[i]) for i in e.bad)
    half = judged.arithmetic.unit >= BY_NAME["float16"].unit
    return half and apart <= judged.arithmetic.grown and len(e.bad) <= len(e.significant) / 4


def _parameters_agree(e: Evidence, step: int) -> bool:
    """Whether most leaves have gone the same way, as far as gradients that differed by rounding may lead them."""
    if "parameters" not in e.rows:
        return True
    first, rows = e.steps[0], (row for at, row in e.rows[e.tree].items() if at < step)
    before = max((float(np.median([d.relative for d in row if d is not None] or [0.0])) for row in rows), default=0.0)
    limit = max(e.judged[e.tree].arithmetic.grown, AMPLIFIED * before)
    apart = []
    for i in e.significant[:: max(1, len(e.significant) // _LEAVES)]:
        if e.has(i, "parameters", first) and e.has(i, "parameters", step):
            starts, ends = e.arrays(i, "parameters", first), e.arrays(i, "parameters", step)
            a, b = (end - start for start, end in zip(starts, ends, strict=True))
            apart.append(float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(a)), 1e-300))
    return not apart or float(np.median(apart)) <= limit


def where(e: Evidence, found: Iterable[Finding] = ()) -> Iterator[Finding]:
    """The first step and leaf at which runs part; without a known cause, also from where in the network it comes."""
    if e.step is None:
        return
    worst = max(e.bad, key=lambda i: e.distance(i).relative)
    there = [i for i in range(len(e.pairs)) if e.row[i] is not None]
    begin = f"The runs part at step {e.step}, in {len(e.bad)} of {len(there)} leaves of {e.tree}"
    most = f"; the largest difference is {e.distance(worst).relative:.2g}, in {e.pairs[worst].label}"
    vague = all(finding.kind in VAGUE for finding in found)
    direction = _direction(e) if vague and _is_ordered(e) else ""
    yield Finding("where", f"{begin}{most}{direction}.", e.step, e.labels(e.bad), {}, frozenset(), is_fault=False)


def _direction(e: Evidence) -> str:
    """What the order of the leaves and the losses tell; nothing where they tell nothing, or not the same."""
    after = [e.distance(i).relative for i in e.significant if i > max(e.bad)]
    if e.loss_tells(e.at) and e.loss_gap(e.at):
        return "; the losses differ too: it arises on the way forward, or in the loss"
    if not e.losses_agree(e.at):
        return ""
    if not after:
        return "; the losses agree: it arises on the way back, near the loss"
    if max(after) <= CLOSE * e.judged[e.tree].arithmetic.unit:
        last = e.pairs[max(e.bad)].label
        return f"; the losses and all leaves after {last}, nearer to the loss, agree: it arises there, on the way back"
    return ""


def _is_ordered(e: Evidence) -> bool:
    """Whether the leaves come in the order of the network: sorted paths are the order of a dict in JAX."""
    sides = ([view.path for view in views] for views in zip(*((p.a, p.b) for p in e.pairs), strict=True))
    return any(paths != sorted(paths) for paths in sides)
