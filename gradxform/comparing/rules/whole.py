"""Rules for all gradients together: zeros, a factor, a sign, a part of the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gradxform.comparing.constants import ALIKE, BETTER, CLOSE, FEWEST, PROVING
from gradxform.comparing.evidence import TREES, Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.rules.moved import apart


def zero(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run are zero."""
    if e.step is None:
        return
    for side, other in (("a", "b"), ("b", "a")):
        if not e.total(e.step, side) and not any(getattr(d, f"nonfinite_{side}") for d in e.row if d is not None):
            text = (
                f"All {e.tree} of {side.upper()} are zero at step {e.step}, and those of {other.upper()} are not: "
                "either no gradient reaches the parameters (a loss that is detached, a graph that is cut), or they are "
                "recorded when they are cleared already, or not yet computed."
            )
            yield Finding("zero", text, e.step)
            return


def factor(e: Evidence) -> Iterator[Finding]:
    """All gradients are one number times as large in B."""
    if e.step is None or not set(e.bad) >= set(e.significant) or not parallel(e, e.significant):
        return
    factors = [e.factor(i)[0] for i in e.significant]
    if spread(factors) > slack(e) or not factors[0]:
        return
    found = float(np.median(factors))
    if max(abs(factor - found) for factor in factors) > 0.1 * abs(found - 1):
        return  # another factor in each leaf
    if found < 0 and abs(found + 1) < slack(e):
        text = "All gradients have the opposite sign in B: one run ascends, or subtracts where the other adds."
        yield Finding("sign", text, e.step, (), {"factor": found})
        return
    yield from _times(e, found)


def _times(e: Evidence, found: float) -> Iterator[Finding]:
    """A factor of all gradients, how it goes on, and what the losses tell of it."""
    assert e.step is not None
    large, times = ("B", abs(found)) if abs(found) > 1 else ("A", 1 / abs(found))
    what = "gradients" if e.values else "norms of gradients"
    text = f"All {what} are {number(times)} times larger in {large}{' and of the opposite sign' if found < 0 else ''}"
    later = _later(e)
    if len(later) > 1 and spread(list(later.values())) > slack(e):
        step, other = max(later.items(), key=lambda item: abs(item[1] - found))
        ratio = number(abs(other) if large == "B" else 1 / abs(other))
        text += (
            f" at step {e.step}, {ratio} times at step {step}, another number at each step: a scale or a schedule that "
            "changes, or a mean over another number of tokens or examples in each batch"
        )
        yield Finding("factor", f"{text}.", e.step, (), {"factor": found}, is_certain=False)
        return
    hint = _hint(e, times)
    means = f"summed in one and averaged in the other{hint}" if hint else "multiplied by a factor in one"
    scale = (
        "a loss scale that is not undone, gradients that are summed over microbatches or devices in one and averaged "
        "in the other, or all clipped together"
    )
    one, other = e.losses.get(e.step, (0.0, 0.0))
    loss = other / one if one else math.nan
    summed = abs(loss - found) <= slack(e) * abs(found)
    if math.isnan(loss):
        text += f": either the loss is {means}, or {scale}. Recorded losses would tell."
    elif summed:
        text += f", and so is the loss: it is {means}."
    elif abs(loss - 1) <= slack(e):
        text += f", and the losses are equal: either {scale}."
    else:
        text += f", and the loss {number(loss)} times: either it is reported otherwise than it is used, or {scale}."
    if len(later) > 1:
        text += f" It is the same at {len(later)} steps."
    yield Finding("factor", text, e.step, (), {"factor": found}, is_certain=summed or len(later) > 1)


def _later(e: Evidence) -> dict[int, float]:
    """The factor of the largest leaf at each step at which all are parallel: where trainings go on alike."""
    found = {}
    for step, row in e.rows[e.tree].items():
        there = [d for i in e.significant if (d := row[i]) is not None]
        if there and all(1 - d.cosine**2 <= slack(e) ** 2 for d in there if e.values):
            largest = max(there, key=lambda d: d.norm_a)
            found[step] = largest.ratio if largest.cosine > 0 or not e.values else -largest.ratio
    return found


def _hint(e: Evidence, times: float) -> str:
    """What a whole number may be."""
    whole = round(times)
    if whole < 2 or abs(times - whole) > 1e-3 * whole:
        return ""
    for side in (e.a, e.b):
        for name in (name for name in side.names(e.steps[0]) if name not in (*TREES, "loss")):
            for path, shape in side.shapes(e.steps[0], name).items():
                if shape and shape[0] == whole:
                    return f" ({whole} is the first dimension of {name})"
                if not shape and e.values and float(side.read(e.steps[0], name, path)) == whole:
                    return f" ({whole} is {name})"
    return f" ({whole} may be the batch, the sequence or the devices)"


def parallel(e: Evidence, places: Sequence[int]) -> bool:
    """Whether all of these leaves are a number times those of the other run."""
    return bool(places) and all(map(e.is_parallel, places)) and sum(e.distance(i).size for i in places) >= PROVING


def slack(e: Evidence) -> float:
    """How far factors may be apart that are one."""
    return max(ALIKE, e.limit / 2)


def spread(values: Sequence[float]) -> float:
    """How far numbers are apart, relative to their middle."""
    middle = abs(float(np.median(values)))
    return (max(values) - min(values)) / middle if middle else float("inf")


def weight_decay(e: Evidence) -> Iterator[Finding]:
    """Gradients of B that are k times those of A plus r times the parameters, in all leaves or in some."""
    if not e.values or e.step is None or not all(e.has(i, "parameters", e.step) for i in e.bad):
        return
    leaves = {i: [x.ravel() for x in (*e.arrays(i), e.arrays(i, "parameters", e.step)[0])] for i in e.bad}
    leaves = {i: leaf for i, leaf in leaves.items() if leaf[1].any() and np.isfinite(leaf[1]).all()}
    large = {i: (a, b, p) for i, (a, b, p) in leaves.items() if a.size >= FEWEST and a.any()}
    if not large or len(leaves) < len(e.bad):
        return

    def off(i: int, times: float, rate: float) -> float:
        """The relative error of the prediction b = times a + rate p."""
        a, b, p = leaves[i]
        return apart(times * a + rate * p, b)

    fits = {i: np.linalg.lstsq(np.stack([a, p], 1), b, rcond=None)[0] for i, (a, b, p) in large.items()}
    decayed = [i for i, (a, b, _) in large.items() if off(i, a @ b / (a @ a), 0.0) > BETTER * off(i, *fits[i])]
    if not decayed:
        return
    times = float(fits[min(fits, key=lambda i: off(i, *fits[i]))][0])
    times = 1.0 if abs(times - 1) <= e.limit else times
    rate = float(np.median([fits[i][1] for i in decayed]))
    errors = {i: (off(i, times, rate), off(i, times, 0.0)) for i in leaves}
    unit = e.judged[e.tree].arithmetic.unit
    allowed = {i: max(min(e.limit, e.distance(i).relative / BETTER), CLOSE * unit) for i in leaves}
    if not rate or any(min(errors[i]) > allowed[i] for i in leaves):
        return
    places = [i for i, (with_, without) in errors.items() if with_ < without]
    if times != 1:
        yield from _times(e, times)
    run, other = ("B", "A") if rate > 0 else ("A", "B")
    certain = _goes_on(e, decayed, times, rate)
    text = (
        f"{run} adds weight decay to the gradients, {number(abs(rate))} times the parameters in {len(places)} of "
        f"{len(e.pairs)} leaves, which {other} does not add, or adds so much less."
        f"{'' if certain else ' This is told from one step: a second one that shows it would decide.'}"
    )
    yield Finding("weight_decay", text, e.step, e.labels(places), {"rate": rate}, frozenset(e.bad), is_certain=certain)


def _goes_on(e: Evidence, places: Sequence[int], times: float, rate: float) -> bool:
    """Whether a part of the parameters explains most of the difference at the next recorded step as well."""
    after = next((step for step in e.steps if step > e.at), None)
    if after is None or not all(e.has(i, tree, after) for i in places for tree in (e.tree, "parameters")):
        return False
    leaves = [(*e.samples(i, e.tree, after), e.samples(i, "parameters", after)[1]) for i in places]
    a, b, p = (np.concatenate(arrays) for arrays in zip(*leaves, strict=True))
    return BETTER * apart(times * a + rate * p, b) < apart(times * a, b)
