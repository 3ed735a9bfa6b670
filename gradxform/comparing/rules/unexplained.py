"""What is seen of differences that no cause predicts, and what may cause it; the place at which runs part."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import Evidence
from gradxform.comparing.findings import Finding, number, proven, unequal
from gradxform.comparing.layouts import apart, few
from gradxform.comparing.measuring import BY_NAME, coarsest, stored_as
from gradxform.comparing.rules.preconditions import batches

_LEAVES = 16
"""Leaves whose ways are compared."""


def losses(e: Evidence) -> Iterator[Finding]:
    """Losses that rounding does not explain, at a step at which it explains the gradients."""
    step = next((step for step in e.steps if step == e.step or e.loss_gap(step)), e.step)
    if step != e.step and step is not None:
        one, other = unequal(*e.losses[step])
        why = "another loss is reported than is trained, or a part of it has no gradient (a detached penalty)"
        text = f"The losses differ at step {step}, {one} in A and {other} in B, and the {e.tree} agree: {why}."
        yield proven("loss", text, step, (), dict(zip("ab", e.losses[step], strict=True)))


def dtypes(e: Evidence) -> Iterator[Finding]:
    """One run in a lower precision, by its dtypes: a remark on what is taken for rounding."""
    one, other = (coarsest(side.dtypes(e.steps[0], e.tree).values()) for side in (e.a, e.b))
    if one != other:
        limit = f"differences of up to {e.arithmetic.budget:.2g} are taken for rounding."
        text = f"The {e.tree} are {one.name} in A and {other.name} in B: {limit}"
        yield proven("precision", text, e.steps[0], (), {"unit": e.arithmetic.unit}, frozenset(), is_fault=False)


def unrecorded(e: Evidence) -> Iterator[Finding]:
    """Runs that agreed, and part in most leaves, while no parameters say whether the optimizers moved them alike."""
    if not e.begins and (e.norms_only or "parameters" not in e.rows) and 2 * len(e.bad) > len(e.significant):
        why = "other optimizers, other data, or rounding that has grown. Record parameters in both runs, and batches"
        text = f"{_agreed(e)}, and {len(e.bad)} of {len(e.row)} leaves differ at step {e.step}: {why}, to decide."
        yield Finding("optimizer", text, e.at, e.labels(e.bad))


def _agreed(e: Evidence) -> str:
    return f"All agrees up to step {e.steps[e.steps.index(e.at) - 1]}"


def grown(e: Evidence) -> Iterator[Finding]:
    """Runs that agreed, and part where their parameters and losses still agree: rounding has crossed a kink, or grown.

    A ReLU or a maximum whose input is rounded to the other side of its kink changes a gradient, and no loss. A fault
    that begins later either shows in the loss, or is one that another rule proves. In half precision, inputs are
    rounded over their kinks at any step, for a few leaves.
    """
    arithmetic, gap = e.arithmetic, e.loss_gap(e.at)
    half = arithmetic.unit >= BY_NAME["float16"].unit and e.level <= arithmetic.grown
    few_of_half = half and len(e.bad) <= len(e.significant) / 4
    agree = gap == 0 or (gap is None and not set(e.significant) <= set(e.bad))
    if not e.bad or any(e.row[i].apart for i in e.bad) or (e.begins and not few_of_half) or not agree:
        return
    if _parameters_agree(e):
        text = "" if e.begins else f"{_agreed(e)}. "
        text += f"At step {e.step} {len(e.bad)} of {len(e.pairs)} gradients part, by "
        text += f"{e.row[e.worst_pair].relative:.2g} at most, while parameters, losses or other leaves agree: rounding "
        text += "that has grown, or an input of a ReLU or a maximum that is rounded to its other side. "
        text += "Later steps tell nothing."
        yield Finding("grown", text, e.at, e.labels(e.bad), {}, frozenset(e.bad), is_fault=False)


def _parameters_agree(e: Evidence) -> bool:
    """Whether most leaves have gone the same way, as far as gradients that differed by rounding may lead them."""
    rows = (row for at, row in e.rows[e.tree].items() if at < e.at)
    before = max((float(np.median([d.relative for d in row])) for row in rows), default=0.0)
    far = []
    for i in few(e.significant, _LEAVES):
        if all(e.has(i, "parameters", step) for step in (e.steps[0], e.at)):
            start, now = (e.both(i, "parameters", step) for step in (e.steps[0], e.at))
            one, other = (y - x for x, y in zip(start, now, strict=True))
            far += [apart(other, one)] if one.any() or other.any() else []
    return float(np.median(far or [0.0])) <= max(e.arithmetic.grown, constants.AMPLIFIED * before)


def precision(e: Evidence) -> Iterator[Finding]:
    """Gradients whose bits are those of a coarser format, and differences of the size of its rounding."""
    stored = {side.name: stored_as(side.recording, e.tree, e.at) for side in e.sides}
    name, own = next(((name, own) for name, own in stored.items() if own), ("", ""))
    if e.bad and len({*stored.values()}) > 1 and _rounding(e):
        text = f"{name} computes in {own}: most of its gradients are {own} numbers, and differ by its rounding."
        yield proven("precision", text, e.at, (), {"unit": BY_NAME[own].unit})


def _rounding(e: Evidence) -> str:
    """The finest format whose rounding is as large as the differences."""
    names = {"TF32": "TF32 or float16", "bfloat16": "bfloat16"}
    return next((words for name, words in names.items() if e.level <= BY_NAME[name].budget), "")


def vague(e: Evidence) -> Iterator[Finding]:
    """What is seen of differences that no cause predicts: their size, their direction; and what may be the cause."""
    fits, exact = _rounding(e), e.tolerance is None
    places = e.bad or [i for i in e.significant if exact and e.row[i].relative > constants.CLOSE * e.arithmetic.unit]
    if not places:
        return
    distances, many = [e.row[i] for i in places], not e.norms_only and len(e.bad) > len(e.significant) / 2
    large = [d for d in distances if d.size >= constants.LARGE] or distances * (not e.norms_only)
    # between differences and gradients; low for rounding, which has no direction
    directions = [abs(d.cosine * d.norms[1] - d.norms[0]) / d.difference for d in large if d.difference and d.norms[0]]
    largest, directed = max(d.relative for d in distances), max(directions, default=0.0) >= constants.DIRECTED
    one, other = (e.total(e.at, place) or math.inf for place in (0, 1))
    similarity = math.fsum(d.cosine * (d.norms[0] / one) * (d.norms[1] / other) for d in e.row)
    ratio = other / one if math.isfinite(one + other) else 0.0
    small = largest < constants.SMALL and exact and not any(d.apart for d in distances)
    if many and fits and e.begins and not directed:
        kind, text = "precision", f"The differences have the size of {fits} rounding and no direction: either a lower "
        text += "precision in one run, or a layer that differs a little (GELU)."
    elif directed and small and (e.bad or np.median(directions) >= constants.DIRECTED):
        kind, text = "constant", f"The {e.tree} differ by up to {largest:.2g} in relative terms, and with a direction: "
        text += "either another epsilon or constant (such as label smoothing), or a variance over n or n - 1."
    elif many and similarity < constants.UNRELATED and 0.5 < ratio < 2:
        data = "" if any(True for _ in batches(e, e.at)) else ", or other batches or labels, or in another order"
        kind, text = "unrelated", f"The {e.tree} of step {e.at} point elsewhere (cosine {number(similarity)}, B/A "
        text += f"{number(ratio)}): either dropout or augmentation in one{data}, or another computation (a mask)."
    elif e.bad:
        begin = "Rounding does not explain the differences" if exact else "The differences exceed the tolerance"
        kind, text = "unknown", f"{begin}, and no rule knows their cause."
    else:
        return
    if not e.begins:
        text += f" {_agreed(e)}: either something changes then (a schedule, the data), or the optimizers move the "
        text += "parameters otherwise."
    one, other = e.losses.get(e.at, (math.nan, math.nan))
    if e.loss_gap(e.at) and (e.begins or "parameters" in e.rows):  # else the parameters may differ
        text += f" The losses differ too ({' and '.join(unequal(one, other))}): look at the way forward, and the loss."
    elif abs(one - other) <= constants.CLOSE * e.arithmetic.unit * max(abs(one), abs(other)):  # the rounding of a sum
        text += " The losses agree: look first at the way back, and at what follows it."
    numbers = {"relative": largest, "cosine": similarity, "ratio": ratio}
    yield Finding(kind, text, e.at, e.labels(places), numbers)


def where(e: Evidence) -> Iterator[Finding]:
    """The first step and leaf at which runs part."""
    worst, count = e.worst_pair, sum(d.size > 0 for d in e.row)
    text = f"The runs part at step {e.step}, in {len(e.bad)} of {count} leaves of {e.tree}; the largest difference is "
    text += f"{e.row[worst].relative:.2g}, in {e.pairs[worst].label}."
    yield proven("where", text, e.at, e.labels(e.bad), {}, frozenset(), is_fault=False)


LIKELY = (unrecorded, grown, precision, vague)
"""What is said of differences that no cause predicts: the first that fits, with its alternatives."""
