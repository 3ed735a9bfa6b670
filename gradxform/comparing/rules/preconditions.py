"""Rules for what comes before the gradients: steps, data and parameters that differ, values that are not finite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import TREES, Evidence
from gradxform.comparing.findings import Finding, number, proven
from gradxform.comparing.layouts import apart, cosine, moved


def shifted(e: Evidence) -> Iterator[Finding]:
    """Trees of A that are those of other steps in B: steps counted otherwise, or parameters alone, recorded late."""
    late, shifts = e.step is None, [sign * by for by in range(1, constants.SHIFTS + 1) for sign in (1, -1)]
    trees = [tree for tree in e.rows if tree == "parameters" or not late]
    for shift in (shifts[:2] if late else shifts) if trees and e.begins else ():
        steps = [step for step in e.steps if step + shift in e.b.steps][: constants.SHIFTS]
        if len(steps) <= late or not all(e.is_shifted(tree, at, at + shift) for at in steps for tree in trees):
            continue
        alone = trees == ["parameters"]
        why = f"{'BA'[shift > 0]} records its parameters after the optimizer's step"
        if not late:
            why = f"{f'{why}, or ' * alone}the recordings count their steps or batches otherwise"
        text = f"{' and '.join(trees).capitalize()} of step {steps[0]} in A are those of step {steps[0] + shift} in B: "
        kind = "late_parameters" if alone else "offset"
        text += f"{why}. Steps that show it: {len(steps)}."
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
    if not e.bad:
        return
    name = next((name for name, one, other in batches(e, e.at) if not _same(one, other, e.limit)), None)
    if name is not None:
        text = f"{name} differs at step {e.step}: if it goes into the network, the runs see other data, or prepare it "
        text += "otherwise; if it comes out of it, the runs part before their gradients do."
        yield proven("data", text, e.at)


def batches(e: Evidence, step: int) -> Iterator[tuple[str, Any, Any]]:
    """Arrays with a batch, recorded by both under one name; scalars such as a time or a rate are none."""
    names = [n for n in e.a.names(step) if n in e.b.names(step) and n not in (*TREES, "loss", "mean_loss")]
    for name in names:
        one, other = (side.shapes(step, name) for side in (e.a, e.b))
        for path in one.keys() & other.keys():
            if one[path] and other[path]:
                a, b = (np.asarray(side.read(step, name, path)) for side in (e.a, e.b))
                yield f"{name}/{path}" if path else name, a, b


def _same(one: Any, other: Any, limit: float) -> bool:
    """Whether two batches hold the same values: in any order and layout, or as numbers of classes and one-hot."""
    if abs(one.ndim - other.ndim) == 1:
        long, short = (one, other) if one.ndim > other.ndim else (other, one)
        if long.shape[:-1] == short.shape:
            one, other = long.argmax(-1), short
    limit = 0.0 if one.dtype.kind + other.dtype.kind in ("ii", "iu", "ui", "uu") else limit
    return one.size == other.size and _same_values(one, other, limit)


def _same_values(one: Any, other: Any, limit: float) -> bool:
    """Whether two arrays of one size hold the same values in any order."""
    one, other = (np.sort(np.asarray(x, np.float64), axis=None) for x in (one, other))
    largest = max(np.abs(one).max(initial=0.0), np.abs(other).max(initial=0.0))
    return np.allclose(one, other, rtol=0, atol=limit * largest, equal_nan=True)


def initial(e: Evidence) -> Iterator[Finding]:
    """Parameters that differ at the first step that was recorded."""
    step = e.steps[0]
    if "parameters" not in e.rows or e.step not in (None, step):  # they agreed long enough for the gradients to agree
        return
    row, limit = e.rows["parameters"][step], constants.COPIES * e.coarsest("parameters").unit
    far = [i for i, d in enumerate(row) if e.pairs[i].sure >= constants.SURE and d.relative > limit]
    bad = [i for i in far if not _is_sum(e, i, limit)]
    if not bad or (e.step is None and step != 0):  # trained ones may have grown apart by as little as their gradients
        return
    what = "initial parameters" if step == 0 else f"parameters of step {step}, the first recorded,"
    largest = max(row[i].relative for i in bad)
    seen = {i: _copied(*e.both(i, "parameters", step)) for i in bad if row[i].size > 1}
    most_are_others = 2 * sum(is_other for is_other, _ in seen.values()) > len(seen)
    place = next((i for i, (_, way) in seen.items() if way), None)
    text = f"The {what} differ in {len(bad)} of {len(row)} leaves"
    if place is not None:
        text += f": {e.pairs[place].label} in B is A's {seen[place][1]}."
    else:
        why = ": other seeds or initializers, or weights that were not copied"
        text += f"{why if most_are_others else f' by up to {number(100 * largest)} %'}: {e.some(bad)}."
    # parameters after a step look like this: gradients that agree tell, or a third step, unless steps are counted apart
    unsure = e.step is None or len(e.steps) < 3 or e.a.steps[0] != e.b.steps[0]
    may_be_late = unsure and place is None and not most_are_others and len(bad) == len(row)
    if may_be_late:
        text += " Either they start so, or one run counts its steps otherwise, or records them after its step."
    values = {"leaves": len(bad), "relative": largest}
    yield Finding("initial", text, step, e.labels(bad), values, is_certain=not may_be_late)


def _copied(a: Any, b: Any) -> tuple[bool, str]:
    """Whether a weight is another one, and what leads from it to that of the other run, if something does."""
    is_other = abs(cosine(a, b)) < constants.OTHER_SEED
    if (found := moved(a, b, limit=constants.WHOLE)) is not None:
        return is_other, found[1]
    same = is_other and len(np.unique(a)) > 1 and _same_values(a, b, constants.EXACT)
    return is_other, "with its elements in another order, such as of gates or rows" * same


def _is_sum(e: Evidence, i: int, limit: float) -> bool:
    """Whether a leaf is the sum of two in the other run, such as the two biases of PyTorch's recurrent layers."""
    if i not in e.sums or e.norms_only:
        return i in e.sums
    (place, second), arrays = e.sums[i], e.both(i, "parameters", e.steps[0])
    extra = e.array(place, second, "parameters", e.steps[0])
    return apart(arrays[place] + extra, arrays[1 - place]) <= limit
