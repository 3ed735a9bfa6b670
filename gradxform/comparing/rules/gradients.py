"""Rules for gradients that follow from the other run's: what one run does to all of them, or to single leaves.

Each predicts leaves of one run from those of the other by a few numbers, at the step where the runs part, and says at
how many steps it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import TREES, Evidence, Side
from gradxform.comparing.findings import Finding, number, proven, some
from gradxform.comparing.layouts import apart, moved, reals


def no_gradient(e: Evidence) -> Iterator[Finding]:
    """All gradients of one run are zero, or single ones are zero or absent."""
    until = [step for step in e.steps if e.step is None or step <= e.step]
    for side in e.sides:
        if e.bad and not e.total(e.at, side.place) and not any(e.row[i].apart for i in e.bad):
            why = "no gradient reaches the parameters (a detached loss, a cut graph), or they were cleared already"
            text = f"All {e.tree} of {side.name} are zero at step {e.step}, and those of {side.other} are not: {why}."
            yield proven("zero", text, e.at)
            return
        for step, lost in [(step, lost) for step in until if (lost := _without_gradient(e, side, step))][:1]:
            explains = frozenset(lost) if e.step in (None, step) else None  # what parts later follows from it
            since = "" if step == e.steps[0] else f" from step {step} on"
            text = f"{side.name} has no gradient for {e.some(lost)}{since}, and {side.other} has: frozen, or not used?"
            text += _held(e, step, [at for at in e.steps if {*lost} <= {*_without_gradient(e, side, at)}])
            yield proven("frozen", text, step, e.labels(lost), {}, explains)


def _without_gradient(e: Evidence, side: Side, step: int) -> list[int]:
    """The pairs that one run alone lacks at a step, or that differ where the runs part and whose gradient is zero."""
    row, own, bad = e.rows[e.tree][step], side.place, e.bad if step >= e.at else []
    there = [each.recording.shapes(step, e.tree).keys() for each in e.sides]
    zero = [i for i in bad if row[i].norms[1 - own] and not (row[i].norms[own] or row[i].nonfinite[own])]
    absent = ((i, e.pairs[i].views) for i, d in enumerate(row) if not d.size)
    lost = [i for i, x in absent if x[1 - own].path in there[1 - own] and x[own].path not in there[own]]
    return sorted([*zero, *lost])


def _held(e: Evidence, begin: int, held: Sequence[int]) -> str:
    """At how many of some steps from one on something holds."""
    steps = [step for step in e.steps if step >= begin][: len(e.later)]
    return _steps([step for step in steps if step in held], steps)


# --- clips ------------------------------------------------------------------------------------------------------------

Norms = list[tuple[float, float]]
"""Of leaves or of steps, in A and in B."""


def clip_norm(e: Evidence) -> Iterator[Finding]:
    """Leaves that are larger in one run have one norm, the limit, in the other: each of them, or all at each step."""
    factors = [e.row[i].factor for i in e.bad]
    if not e.are_parallel(e.bad) or min(factors) <= 0:
        return
    leaves = [e.row[i].norms for i in e.bad], [d.norms for d in e.row], len(e.bad) - 1
    yield from (found := [*_limits(e, "clip_norm", "each gradient by its norm", *leaves)])
    if not found and spread(factors) <= e.slack:
        parted, every = ([(e.total(at, 0), e.total(at, 1)) for at in x] for x in (e.judged[e.tree].bad, e.steps))
        yield from _limits(e, "clip_global_norm", "by the global norm", parted, every, 1)  # later ones may be smaller


def _limits(e: Evidence, kind: str, how: str, parted: Norms, every: Norms, least: int) -> Iterator[Finding]:
    """Norms where the runs differ, and all: equal ones in a run in which none is larger are a limit.

    A norm below the limit tells a clip from a normalization.
    """
    for own, other in ((1, 0), (0, 1)):
        limit = max(norms[own] for norms in every)
        over = [norms for norms in parted if norms[other] > limit]
        if len(over) > max(1, least) and spread([norms[own] for norms in over]) <= constants.WHOLE:
            raw = [norms[other] for norms in over]
            both = spread(raw) <= constants.WHOLE
            limits = {own: limit, other: max(raw)} if both else {own: limit}
            below = (any(0 < norms[k] < top * (1 - constants.WHOLE) for norms in every) for k, top in limits.items())
            yield _clip(e, kind, how, limits, all(below), [] if both else raw)
            return


def _clip(e: Evidence, kind: str, how: str, to: dict[int, float], certain: bool, raw: Sequence[float] = ()) -> Finding:
    """A limit in one run, or another one in each."""
    verb = "clips" if certain else "clips or normalizes"
    text = "; ".join(f"{'AB'[k]} {verb} {how}, to {number(limit)}" for k, limit in sorted(to.items()))
    text += f"; the other run has {number(min(raw))} to {number(max(raw))}." if raw else "."
    smaller = "element" if kind == "clip_value" else "norm"
    text += "" if certain else f" A smaller {smaller} would tell a clip from a normalization."
    numbers = {"limit" + f"_{'ab'[k]}" * (len(to) > 1): limit for k, limit in to.items()}
    return Finding(kind, text, e.at, e.labels(e.bad), numbers, is_certain=certain)


def clip_value(e: Evidence) -> Iterator[Finding]:
    """Several elements have a limit in one run, none exceeds it, and clipping the other to it makes them equal."""
    for own, other in () if e.norms_only else ((1, 0), (0, 1)):
        limit, highest = (max(d.largest[place] for d in e.row) for place in (own, other))
        if any(e.row[i].largest[other] <= limit for i in e.bad):
            continue
        arrays = [(pair[other], pair[own]) for pair in (e.both(i, e.tree, e.at) for i in e.bad)]
        fits = all(apart(np.clip(raw, -limit, limit), clipped) <= e.limit for raw, clipped in arrays)
        tied, ends = (sum(int((np.abs(x[k]) == top).sum()) for x in arrays) for k, top in ((1, limit), (0, highest)))
        if fits and tied > 1:
            both = {own: limit, other: highest} if ends > 1 else {own: limit}  # no two largest are equal by chance
            # Else all elements have one size, as of `sign` or of Adam's first step.
            below = any((np.abs(x[x != 0.0]) < (1 - constants.CLIPPED) * limit).any() for _, x in arrays)
            yield _clip(e, "clip_value", "each element", both, below, [limit, highest][: 2 * (len(both) < 2)])
            return


def spread(values: Any) -> float:
    """How far numbers are apart, relative to their middle."""
    middle = abs(float(np.median(values)))
    return (max(values) - min(values)) / middle if middle else float("inf")


# --- a number times the gradients, and a number times the parameters --------------------------------------------------


def factor(e: Evidence) -> Iterator[Finding]:
    """All gradients are one number times as large in B."""
    if not set(e.bad) >= set(e.significant) or not e.are_parallel(e.significant):
        return
    factors = [e.row[i].factor for i in e.significant]
    found = float(np.median(factors))
    if spread(factors) <= min(e.slack, constants.EXPLAINED * abs(found - 1)):
        yield _times(e, found)


def _times(e: Evidence, found: float) -> Finding:
    """A factor of all gradients, how it goes on, and what the losses tell of it."""
    held, over = _over(e, e.significant, lambda x, _: found * x)
    if abs(found + 1) < e.slack:
        text = f"All {e.tree} have the opposite sign in B: one run ascends, or subtracts where the other adds."
        return proven("sign", text + over, e.at, (), {"factor": found})
    power, large = (1, "B") if abs(found) > 1 else (-1, "A")
    text = f"All {e.tree} are {number(found**power)} times larger in {large}"
    own = {step: times for step in e.later if (times := _factor_at(e, step))}
    if len(own) > 1 and spread(list(own.values())) > e.slack:
        step, other = max(own.items(), key=lambda item: abs(item[1] - found))
        text += f" at step {e.step}, {number(other**power)} times at step {step}, another number at each step: "
        text += "a scale or a schedule that changes, or a mean over another number of tokens in each batch."
        return Finding("factor", text, e.at, (), {"factor": found})
    one, other = e.losses.get(e.at, (0.0, 0.0))
    loss = other / one if one else math.nan
    goes_on = next((step in held for step in e.later if step > e.at), False)
    no_clip = goes_on and min(spread([e.total(step, k) for step in held]) for k in (0, 1)) > constants.CLIPPED
    hint = _hint(e, found**power)
    means = f"summed in one and averaged in the other{hint}" if hint else "multiplied by a factor in one"
    if summed := abs(loss - found) <= e.slack * abs(found):
        text += f", and so is the loss: it is {means}."
    else:
        equal, unknown = abs(loss - 1) <= e.slack, math.isnan(loss)
        text += ", and the losses are equal" if equal else "" if unknown else f", and the loss {number(loss)} times"
        why = [f"the loss is {means}"] if unknown else ["it is reported otherwise than it is used"] * (not equal)
        why += ["a loss scale that is not undone", "a sum over microbatches or devices"]
        if e.tree == "updates" and "gradients" in e.rows:  # which agree
            why, unknown = ["another learning rate", "another scale in the transform"], False
        text += f": either {', or '.join(why + ['all clipped together'] * (not no_clip))}."
        text += " Recorded losses would tell." * unknown
    return Finding("factor", text + over, e.at, (), {"factor": found}, is_certain=summed or no_clip)


def _factor_at(e: Evidence, step: int) -> float:
    """The number times which the leaves of A are those of B at a step; zero if there is none."""
    found = ((*d.norms, d.factor) for d in (e.rows[e.tree][step][i] for i in e.significant))
    aa, ab, bb = map(math.fsum, zip(*((a * a, by * a * a, b * b) for a, b, by in found), strict=True))
    return ab / aa if aa and bb - ab * ab / aa <= e.slack**2 * bb else 0.0


Way = Callable[..., Any]
"""What leads from a leaf of one run, or from some elements of several, at a step, to those of the other."""


def _over(e: Evidence, places: Sequence[int], way: Way, place: int = 0, times: float = 1.0) -> tuple[list[int], str]:
    """At which steps a way predicts leaves from the run at a place on, or from a number times it, and words for it.

    In trainings that have parted, a part of the difference is left, or the norms have the factor.
    """
    held = []
    for step in e.later:
        one, other = e.sampled(places, e.tree, step)[:: -1 if place else 1]
        if one.any() and other.any():
            found = way(times * one, step)
            scale, ratio = (float(np.linalg.norm(x) / np.linalg.norm(found)) for x in (times * one, other))
            near = constants.BETTER * apart(found, other) < apart(times * one, other) * min(1.0, ratio / scale)
            goes_on = abs((ratio if scale < 1 else 1 / ratio) - 1) < constants.SAME_FACTOR < abs(1 / scale - 1)
            held += [step] * (near or goes_on)
    return held, _steps(held, e.later, "; in trainings that have parted it may not show")


def _steps(held: Sequence[int], steps: Sequence[int], why: str = "") -> str:
    """At how many steps a prediction holds, if there are several, and why not at the others."""
    return f" It holds at {len(held)} of {len(steps)} steps{why * (len(held) < len(steps))}." if len(steps) > 1 else ""


def _hint(e: Evidence, times: float) -> str:
    """What a whole number may be."""
    whole = round(times)
    if whole < 2 or abs(times - whole) > constants.WHOLE * whole:
        return ""
    others = ((run, name) for run in (e.a, e.b) for name in run.names(e.at) if name not in TREES)
    first = [name for run, name in others if any(x[:1] == (whole,) for x in run.shapes(e.at, name).values())]
    what = f"is the first dimension of {first[0]}" if first else "may be the batch, the sequence or the devices"
    return f" ({whole} {what})"


def weight_decay(e: Evidence) -> Iterator[Finding]:
    """Gradients of B that are k times those of A plus r times the parameters, in all leaves or in some."""
    if not all(e.has(i, "parameters", e.at) for i in e.bad):
        return
    leaves = {i: [x.ravel() for x in (*e.both(i, e.tree, e.at), e.both(i, "parameters", e.at)[0])] for i in e.bad}
    large = [i for i, x in leaves.items() if e.row[i].size >= constants.FEWEST and np.isfinite(x).all()]
    fits = {i: np.linalg.lstsq(np.stack(leaves[i][::2], 1), leaves[i][1], rcond=None)[0] for i in large}

    def off(i: int, times: float, rate: float) -> float:
        """The relative error of the prediction b = times a + rate p."""
        a, b, p = leaves[i]
        return apart(times * a + rate * p, b)

    decayed = [i for i in fits if e.row[i].left > constants.BETTER * off(i, *fits[i])]
    if not decayed:
        return
    times = float(min((off(i, *fit), fit[0]) for i, fit in fits.items())[1])
    rate = float(np.median([fits[i][1] for i in decayed]))
    times, unit = 1.0 if abs(times - 1) <= e.limit else times, constants.CLOSE * e.arithmetic.unit
    errors = {i: (off(i, times, rate), off(i, times, 0.0)) for i in leaves}
    if any(min(errors[i]) > max(min(e.limit, e.row[i].relative / constants.BETTER), unit) for i in leaves):
        return
    if times != 1:
        yield _times(e, times)
    run, other = ("B", "A") if rate > 0 else ("A", "B")

    def added(x: Any, step: int) -> Any:
        p = e.sampled(decayed, "parameters", step)[int(rate > 0)]
        return x + rate * (p if p.shape == x.shape else 0.0)

    held, over = _over(e, decayed, added, times=times)
    places = [i for i, (with_, without) in errors.items() if with_ < without]
    whose = f" of {other}, if updates have the minus sign," if e.tree == "updates" else ","
    text = f"{run} adds {number(abs(rate))} times the parameters to the {e.tree}, a weight decay{whose} in "
    text += f"{len(places)} of {len(e.pairs)} leaves; {other} does not, or so much less, or toward its initial values."
    text += over if len(held) > 1 else " A second step would decide."
    numbers, explains = {"rate": rate}, frozenset(e.bad)
    yield Finding("weight_decay", text, e.at, e.labels(places), numbers, explains, is_certain=len(held) > 1)


# --- single leaves ----------------------------------------------------------------------------------------------------


def _leaf(e: Evidence, i: int, kind: str, text: str, way: Way, place: int = 0, **about: Any) -> Finding:
    """What is found of one leaf, and at how many steps it holds, from that in the run at a place on."""
    about = {"leaves": e.labels([i]), "explains": frozenset([i]), "is_certain": True, **about}
    return Finding(kind, text + _over(e, [i], way, place=place)[1], e.at, **about)


def scaled(e: Evidence) -> Iterator[Finding]:
    """Single leaves that are a number times as large in B, and have elements enough to tell."""
    large = {i: d for i in e.bad if (d := e.row[i]).size >= constants.PROVING and d.factor != 1}
    # one of so many leaves may have a factor by chance, in so few elements
    chances = {i: min(1.0, d.left / abs(d.factor - 1)) ** (d.size - 1) * len(e.row) for i, d in large.items()}
    factors = {i: d.factor for i, d in large.items() if e.is_parallel(i) and chances[i] <= constants.CHANCE}
    most = len(factors) > 2 and 2 * len(factors) > len(e.significant)
    why = ", as most leaves have: a clip, a scale or a normalization of each?" if most else "."
    for i, times in factors.items():
        is_sign = abs(times + 1) < constants.WHOLE
        own = f"is {number(times)} times as large in B: a factor of its own{why}"
        text = f"The {e.tree[:-1]} of {e.pairs[i].label} {'has the opposite sign in B.' if is_sign else own}"
        kind, about = "leaf_sign" if is_sign else "leaf_factor", {"factor": times}
        yield _leaf(e, i, kind, text, lambda x, _, by=times: by * x, numbers=about, is_certain=is_sign or not most)


def permuted(e: Evidence) -> Iterator[Finding]:
    """Leaves whose values stand in other places in B."""
    for i in e.bad:
        d = e.row[i]
        is_moved = abs(d.ratio - 1) <= max(e.limit, constants.WHOLE) and abs(d.cosine) <= 1 - constants.WHOLE
        found = moved(*e.both(i, e.tree, e.at), limit=max(e.limit, constants.EXACT)) if is_moved else None
        if found is not None:
            text = f"The {e.tree[:-1]} of {e.pairs[i].label} in B is A's {found[1]}."
            yield _leaf(e, i, "layout", text, lambda x, _, way=found[0]: way(x))


def alone(e: Evidence) -> Iterator[Finding]:
    """Leaves with a gradient that one run does not have at all, or has as a part of another."""
    unaligned: list[tuple[str, str]] = []
    for side in e.sides:
        ties = {path: tie for path in side.alone if (tie := _tie(e, side, path)) is not None}
        for path, (i, way) in ties.items():
            label = e.pairs[i].label
            text = f"{label} and {path} are tied in {side.other}, whose gradient is the sum of the two in {side.name}."
            yield _leaf(e, i, "tied", text, way, side.place, leaves=(label, path))
        there = [path for path in side.alone if path not in ties]
        lacking = [path for path in there if path not in e.alignment.not_aligned]
        unaligned += [(path, side.name) for path in there if path in e.alignment.not_aligned]
        if lacking:
            text = f"{side.other} has no leaf for {some(lacking)}, which {side.name} trains."
            trained = [step for step in e.steps if {*lacking} <= side.recording.shapes(step, "gradients").keys()]
            text += _held(e, e.steps[0], trained)
            yield proven("missing", text, e.steps[0], tuple(lacking))
    if unaligned:
        text = some([f"{path} in {name}" for path, name in unaligned])
        text += " have no partner and were not compared: either they have other names or layouts, which a map tells "
        text += "(--write-map, --map), or each run lacks what the other has."
        yield Finding("unaligned", text, e.steps[0], tuple(path for path, _ in unaligned), {}, frozenset())


def _tie(e: Evidence, side: Side, path: str) -> tuple[int, Way] | None:
    """The pair whose gradient in the other run is that in this one and that of a leaf that this one has alone."""

    def added(one: Any, step: int) -> Any:
        shape = side.recording.shapes(step, e.tree).get(path)
        if shape is None or one.shape not in (shape, shape[::-1]):
            return one
        extra = reals(side.recording.read(step, e.tree, path))
        return one + (extra if shape == one.shape else extra.T)

    if e.norms_only or path not in side.recording.shapes(e.at, e.tree):
        return None
    size, limit = float(np.linalg.norm(reals(side.recording.read(e.at, e.tree, path)))), max(e.limit, constants.EXACT)
    for i in e.bad:  # few have a difference of this size
        if abs(e.row[i].difference - size) <= limit * max(*e.row[i].norms, size):
            one, other = e.both(i, e.tree, e.at)[:: -1 if side.place else 1]
            if apart(added(one, e.at), other) <= limit:
                return i, added
    return None


PROVEN = (no_gradient, clip_norm, clip_value, factor, weight_decay, scaled, permuted, alone)
"""Causes that predict the gradients of one run from those of the other, to within rounding."""
