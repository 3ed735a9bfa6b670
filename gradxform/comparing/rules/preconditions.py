"""Rules for what comes before the gradients: steps, data and parameters that differ, values that are not finite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import TREES, Evidence
from gradxform.comparing.findings import Finding, number, proven
from gradxform.comparing.layouts import cosine, hold_the_same, moved


def shifted(e: Evidence) -> Iterator[Finding]:
    """Trees of A that are those of other steps in B: steps counted otherwise, or parameters alone, recorded late."""
    late, shifts = e.step is None, [sign * by for by in range(1, constants.SHIFTS + 1) for sign in (1, -1)]
    trees = [tree for tree in e.rows if tree == "parameters" or not late]
    for shift in shifts if trees and e.begins else ():
        steps = [step for step in e.steps if step + shift in e.b.steps][: constants.SHIFTS]
        if steps and all(e.is_shifted(tree, at, at + shift) for at in steps for tree in trees):
            alone = trees == ["parameters"]
            why = f"{'BA'[shift > 0]} records its parameters after the optimizer's step"
            if not late:
                why = f"{f'{why}, or ' * alone}the recordings count their steps or batches otherwise"
            text = f"{' and '.join(trees).capitalize()} of step {steps[0]} in A are those of step {steps[0] + shift} "
            text += f"in B: {why}. Steps that show it: {len(steps)}."
            kind = "late_parameters" if alone else "offset"
            yield Finding(kind, text, e.at, (), {"steps": shift}, is_certain=late or not alone)
            return


def nonfinite(e: Evidence, later: bool = False) -> Iterator[Finding]:
    """NaN or an infinity in one run alone, before the runs part otherwise; later ones are a remark."""
    apart = ((step, tree) for step in e.steps for tree in e.rows if any(d.apart for d in e.rows[tree][step]))
    for step, tree in itertools.islice(apart, 1):
        row = e.rows[tree][step]
        lost, (a, b) = [i for i, d in enumerate(row) if d.apart], (sum(d.nonfinite[k] for d in row) for k in (0, 1))
        where = "in other elements, or is of another kind" if a and b else f"in {'AB'[not a]} alone"
        text = f"From step {step} on NaN or infinity stands {where}: {a} in A, {b} in B, in {len(lost)} of {len(row)} "
        text += f"leaves of {tree}, {e.pairs[lost[-1]].label} nearest to the loss."
        if later == (e.step is not None and step > e.step):
            yield proven("nonfinite", text, step, e.labels(lost), is_fault=not later)


def data(e: Evidence) -> Iterator[Finding]:
    """Batches that both recorded, and that hold other values at the step where the runs part."""
    for name, one, other in batches(e, e.at) if e.bad and not e.norms_only else ():
        limit = 0.0 if one.dtype.kind in "iu" and other.dtype.kind in "iu" else e.limit
        if one.size == other.size and not hold_the_same(one, other, limit):
            text = f"{name} differs at step {e.step}: if it goes into the network, the runs see other data, or prepare "
            text += "it otherwise; if it comes out of it, the runs part before their gradients do."
            yield proven("data", text, e.at)
            return


def batches(e: Evidence, step: int) -> Iterator[tuple[str, Any, Any]]:
    """Arrays with a batch, recorded by both under one name; scalars such as a time or a rate are none."""
    for name in (n for n in e.a.names(step) if n in e.b.names(step) and n not in (*TREES, "loss", "mean_loss")):
        one, other = (side.shapes(step, name) for side in (e.a, e.b))
        for path in (path for path in one.keys() & other.keys() if one[path] and other[path]):
            a, b = (np.asarray(side.read(step, name, path)) for side in (e.a, e.b))
            yield f"{name}/{path}" if path else name, a, b


def initial(e: Evidence) -> Iterator[Finding]:
    """Parameters that differ at the first step that was recorded."""
    step = e.steps[0]
    if "parameters" not in e.rows or e.step not in (None, step):  # they agreed long enough for the gradients to agree
        return
    row, limit = e.rows["parameters"][step], constants.COPIES * e.coarsest("parameters").unit
    sure = [i for i, pair in enumerate(e.pairs) if pair.sure >= constants.SURE and i not in e.sums]
    bad = [i for i in sure if row[i].relative > limit]
    if not bad or (e.step is None and step != 0):  # trained ones may have grown apart by as little as their gradients
        return
    what = "initial parameters" if step == 0 else f"parameters of step {step}, the first recorded,"
    largest = max(row[i].relative for i in bad)
    arrays = {i: e.both(i, "parameters", step) for i in bad if row[i].size > 1}
    others = [i for i, both in arrays.items() if abs(cosine(*both)) < constants.OTHER_SEED]
    ways = (
        (e.pairs[i].label, found[1]) for i, both in arrays.items() if (found := moved(*both, limit=constants.WHOLE))
    )
    text, most_are_others = f"The {what} differ in {len(bad)} of {len(row)} leaves", 2 * len(others) > len(arrays)
    if way := next(ways, None):
        text += f": {way[0]} in B is A's {way[1]}."
    else:
        why = ": other seeds or initializers, or weights that were not copied"
        text += f"{why if most_are_others else f' by up to {number(100 * largest)} %'}: {e.some(bad)}."
    # parameters after a step look like this: gradients that agree tell, or a third step, unless steps are counted apart
    unsure = e.step is None or len(e.steps) < 3 or e.a.steps[0] != e.b.steps[0]
    may_be_late = unsure and not way and not most_are_others and len(bad) == len(row)
    if may_be_late:
        text += " Either they start so, or one run counts its steps otherwise, or records them after its step."
    values = {"leaves": len(bad), "relative": largest}
    yield Finding("initial", text, step, e.labels(bad), values, is_certain=not may_be_late)
