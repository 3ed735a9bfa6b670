"""Rules for optimizers: gradients that agree, and parameters that do not move alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.evidence import Evidence, few
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.optimizers import Run, Setting, nearest, settings_of

_STEPS, _ELEMENTS, _LEAVES = 8, 2048, 8
"""Steps and elements that an optimizer is told by, and the leaves that they are taken from."""


class Moves(NamedTuple):
    """How the parameters of a leaf move from one recorded step to the next; of a sample."""

    a: Any
    b: Any
    apart: float
    """How far the gradients before are apart, in the median of their elements."""
    gap: float
    """How far the moves are apart in the median, beyond the rounding of two parameters in two runs."""


class Parting(NamedTuple):
    """The first steps between which parameters move apart though the gradients agree, the moves, and the leaves."""

    step: int
    after: int
    moves: Mapping[int, Moves]
    bad: list[int]


def _moves(e: Evidence, step: int, after: int, unit: float) -> dict[int, Moves]:
    """The moves of all leaves whose gradients are no noise, where they are large enough to be exact."""
    found = {}
    for i in range(len(e.pairs)):
        there = all(e.has(i, "parameters", at) for at in (step, after)) and e.has(i, "gradients", step)
        if not there or e.is_noise(i, "gradients", step):
            continue
        one, other = e.samples(i, "gradients", step)
        before, later = e.samples(i, "parameters", step), e.samples(i, "parameters", after)
        a, b = (x - y for x, y in zip(before, later, strict=True))
        p, scale = before[0], np.maximum(np.abs(a), np.abs(b))
        large = scale > constants.ROOM * unit * np.maximum(np.abs(p), 1e-30)
        exact = large & (np.abs(one) > constants.CANCELS * np.sqrt((one**2).mean()))
        if exact.any():
            apart = np.median((np.abs(one - other) / np.abs(one))[exact])
            gap = np.median(((np.abs(a - b) - 8 * unit * np.abs(p)) / scale)[exact])
            found[i] = Moves(a[exact], b[exact], float(apart), float(gap))
    return found


def _parting(e: Evidence) -> Parting | None:
    """Where parameters move apart though the gradients agree, if they do."""
    arithmetic = e.coarsest("parameters")
    least = max(arithmetic.budget, e.judged["gradients"].arithmetic.budget)
    apart: dict[int, float] = {}
    for step, after in itertools.pairwise(e.steps):
        if e.step is not None and step >= e.step:
            return None
        found = _moves(e, step, after, arithmetic.unit)
        apart |= {i: max(apart.get(i, least), move.apart) for i, move in found.items()}
        if bad := [i for i, move in found.items() if move.gap > constants.AMPLIFIED * apart[i]]:
            return Parting(step, after, found, bad)
        if step != e.steps[0]:
            e.a.close(step)
            e.b.close(step)
    return None


def update(e: Evidence) -> Iterator[Finding]:
    """What the optimizers do otherwise: settings that predict the moves of both, or what is seen of them."""
    found = _parting(e) if {"gradients", "parameters"} <= set(e.rows) else None
    if found is not None:
        made = (rule(e, found) for rule in (_still, _settings, _factor, _unknown))
        yield from itertools.islice(filter(None, made), 1)


def _unknown(e: Evidence, at: Parting) -> Finding | None:
    """Moves that no setting predicts."""
    tried = "no setting of SGD, Adagrad, RMSprop, Adam or Lion that was tried predicts the moves"
    why = tried if _runs(e, at.bad) else "there are too few elements to tell how"
    text = (
        f"The gradients agree, and the parameters move otherwise from step {at.step} on: the optimizers differ, or "
        f"what is done to gradients after they are recorded; {why}."
    )
    return Finding("optimizer", text, at.step, e.labels(at.bad)) if at.after - at.step == 1 else None


def _still(e: Evidence, at: Parting) -> Finding | None:
    """Leaves that have a gradient and do not move in one run."""
    for side in e.sides:
        moving = {i for i, move in at.moves.items() if (move.a, move.b)[side.place].any()}
        still = [i for i in at.bad if i not in moving]
        if not still:
            continue
        pattern = [any(_has_moved(e, i, side.place, *steps) for i in still) for steps in itertools.pairwise(e.steps)]
        later = (step for step, moved in zip(e.steps[1:], pattern, strict=True) if moved and step > at.after)
        begun, period = next(later, None), _period(pattern)
        if begun is not None and not moving and not period and (made := _settings(e, at)):
            return made
        if period:
            why = f"it moves at one step in {period} alone: gradients are accumulated, or steps left out"
        elif begun is not None:
            why = f"it has moved at step {begun}: a warm-up from zero, or a step on every second batch or later"
        else:
            yet = "no step is taken yet (a warm-up from zero, gradients that are accumulated)"
            why = f"frozen there, or {'the optimizer does not have it' if moving else yet}"
        names, end = f"{e.some(still)} does not move" if moving else "No parameter moves", begun and at.after
        text = f"{names} in {side.name} from step {at.step} to {end or e.steps[-1]}, though it has a gradient: {why}."
        certain = bool(period or (moving and begun is None))
        return Finding("optimizer" if period else "frozen", text, at.step, e.labels(still), is_certain=certain)
    return None


def _period(pattern: Sequence[bool]) -> int:
    """How many steps there are from one that moves parameters to the next; zero if that changes, or is one."""
    every = range(2, len(pattern) // 2 + 1)
    return next((n for n in every if pattern == [k % n == 0 for k in range(1, len(pattern) + 1)]), 0)


def _has_moved(e: Evidence, i: int, side: int, step: int, later: int) -> bool:
    there = e.has(i, "parameters", step) and e.has(i, "parameters", later)
    return there and not np.array_equal(*(e.samples(i, "parameters", at)[side] for at in (step, later)))


def _runs(e: Evidence, bad: list[int]) -> list[Run]:
    """Elements of leaves that move apart, of both runs, over the steps that follow the first without a gap, if any."""
    steps = [step for i, step in enumerate(e.steps) if step == e.steps[0] + i][: _STEPS + 1]
    shapes, unit = e.a.shapes(e.steps[0], "parameters"), e.coarsest("parameters").unit
    matrices = [i for i in bad if len(shapes[e.pairs[i].a.path]) > 1] or bad  # what has no decay is mostly a vector
    places = [i for i in matrices if all(e.has(i, t, s) for t in ("gradients", "parameters") for s in steps)][:_LEAVES]
    if len(steps) < 2 or not places:
        return []
    runs, kept = [], np.array(True)
    for side in (0, 1):
        gradients, parameters = (
            np.stack([np.concatenate([e.samples(i, tree, step)[side] for i in places]) for step in steps])
            for tree in ("gradients", "parameters")
        )
        runs.append(Run(gradients[:-1], parameters[:-1], parameters[:-1] - parameters[1:], unit))
        exact = np.abs(runs[side].moves) > constants.ROOM * unit * np.abs(parameters[:-1])
        kept = kept & exact[runs[side].steps].all(0) & (gradients[:-1] != 0).all(0)
    chosen = few(np.flatnonzero(kept), _ELEMENTS)
    if len(chosen) < constants.OPTIMIZER_ELEMENTS:
        return []
    ones, others = (run.steps.tolist() for run in runs)
    batches = (ones == others and _period(ones)) or 1
    return [run.of(chosen, batches) for run in runs]


def _settings(e: Evidence, at: Parting) -> Finding | None:
    """Two settings that predict the moves of each run from its own gradients, and how they differ."""
    runs, budget = _runs(e, at.bad), e.coarsest("parameters").budget
    candidates = [settings_of(run, constants.AMPLIFIED * budget) for run in runs]
    pair = nearest(*candidates) if runs and all(candidates) else None
    found = list(_differences(*pair)) if pair else []
    if pair is None or not found:
        return None
    kind, _, numbers = found[0]
    labels = e.labels(at.bad) if len(at.bad) < len(at.moves) else ()
    count, elements = min(int(run.steps.sum()) for run in runs), runs[0].moves.shape[1]
    proven, batches = all(_is_proven(setting, count, budget) for setting in pair), runs[0].batches
    if count == 1:
        end = "One step is explained by other settings as well: record two more steps to decide."
    else:
        more = "" if proven else " Another optimizer may do so as well: record more steps to decide."
        nearly = "" if proven else "nearly "
        sums = f", by sums of the gradients of {batches} batches, which a run may divide by {batches}" * (batches > 1)
        end = (
            f"With these numbers both move {nearly}as recorded{sums}, in {elements} elements over {count} steps.{more}"
        )
    shown = f", as {e.some(at.bad)} show" if labels else ""
    text = f"The gradients agree, and the optimizers differ{shown}: {'; '.join(words for _, words, _ in found)}. {end}"
    certain = proven and (batches == 1 or kind != "epsilon")  # which a mean in one run looks like
    return Finding(kind, text, at.step, labels, numbers, is_certain=certain)


def _is_proven(setting: Setting, count: int, budget: float) -> bool:
    """Whether moves are predicted as well as rounding allows, over more steps than another setting would predict.

    A start of Adagrad's sum is not told from its rate, nor a momentum of two steps from a decay toward initial values.
    """
    alike = setting.epsilon if setting.family == "Adagrad" else setting.family == "SGD" and setting.beta1 and count < 3
    return count > 1 and setting.error <= budget and not alike


_TOLD = {
    "SGD": ("momentum is", "{0:g}"),
    "Adagrad": ("sum of squares begins with", "{2:g}"),
    "RMSprop": ("decay is", "{1:g}"),
    **dict.fromkeys(("Adam", "Lion"), ("betas are", "{0:g} and {1:g}")),
}
"""What is told of the betas, or the start, of a family."""
_PLACES = {"": "", "outside": "", "hat": ", added before the bias correction,", "inside": ", added under the root,"}
Aspect = tuple[str, str, str, tuple[float, ...], float]
"""A kind, what may differ, its words and numbers in a setting, and how far equal numbers may be apart, relatively."""


def _aspects(s: Setting) -> list[Aspect]:
    """What settings of one family may differ in. A rate that changes has a factor for all leaves, as a clip has."""
    (what, shown), nesterov = _TOLD[s.family], "Nesterov's" if s.nesterov else "the plain one"
    counted = ("not at all", -1.0) if s.counted is None else (f"as {s.counted}", float(s.counted))
    epsilon = f"about {s.epsilon:.2g}{_PLACES[s.place]}" if s.epsilon else "too small to show"
    decay = f"{s.l2:.3g} times the parameters, added to the gradient (L2)," if s.l2 else "none"
    if s.decay:
        times = f"{s.decay / (s.rates[0] or math.inf):.2g} times the learning rate of {number(s.rates[0])}"
        decay = f"{s.decay:.3g} of the parameters at each step, beside the gradient ({times}),"
    why = " from step to step (a schedule, or a clip or a scale of all gradients after recording, or a step left out)"
    rates = ", ".join(f"{rate:.4g}" for rate in s.rates) + why * (len(s.rates) > 1)
    place = list(_PLACES).index(s.place) if s.epsilon else 0
    return [
        ("bias_correction", "Adam's bias correction counts the first step", *counted[:1], counted[1:], 0.0),
        ("optimizer", f"the {what}", shown.format(s.beta1, s.beta2, s.start), (s.beta1, s.beta2, s.start), 0.0),
        ("optimizer", "the momentum is", nesterov, (s.nesterov,), 0.0),
        ("epsilon", "epsilon is", epsilon, (s.epsilon, place), constants.SAME_EPSILON),
        ("weight_decay", "the weight decay is", decay, (s.decay, s.l2), constants.SAME_DECAY),
        ("learning_rate", "the learning rate is", rates, s.rates, constants.SAME_RATE),
    ]


def _differences(a: Setting, b: Setting) -> Iterator[tuple[str, str, dict[str, float]]]:
    """How two settings differ: a kind, words and numbers for each."""
    if a.family != b.family:
        yield "optimizer", f"A moves as {_name(a)}, B as {_name(b)}", {}
        return
    for (kind, what, one, x, by), (_, _, other, y, _) in zip(_aspects(a), _aspects(b), strict=True):
        both = zip(*(numbers * (max(len(x), len(y)) // len(numbers)) for numbers in (x, y)), strict=True)
        apart = [pair for pair in both if abs(pair[0] - pair[1]) > by * min(pair)]
        if apart:
            words = f"{what} {one} in A{',' if ' and ' in one else ' and'} {other} in B"
            yield kind, words, dict(zip("ab", map(float, apart[0]), strict=True))


def _name(s: Setting) -> str:
    what, shown = _TOLD[s.family]
    numbers = f" whose {what} {shown.format(s.beta1, s.beta2, s.start)} and" * bool(s.beta1 or s.beta2 or s.start)
    return f"{s.family}{numbers or ' with'} a learning rate of {_aspects(s)[-1][2]}"


def _factor(e: Evidence, at: Parting) -> Finding | None:
    """Moves that are one number times as large, between two steps: which has many causes."""
    ratios = np.concatenate([m.b[m.a != 0] / m.a[m.a != 0] for m in at.moves.values()])
    if len(ratios) < constants.OPTIMIZER_ELEMENTS or len(at.bad) < len(at.moves):
        return None
    low, middle, high = (float(x) for x in np.quantile(ratios, (0.2, 0.5, 0.8)))
    if high - low > min(constants.SAME_RATIO * abs(middle), abs(middle - 1) / constants.BETTER):
        return None
    why = "another learning rate" if at.step == e.steps[0] else "a rate that changes there, after they moved alike"
    when = f"at step {at.step}" if at.after - at.step == 1 else f"from step {at.step} to {at.after}"
    text = (
        f"The gradients agree, and B moves its parameters {number(middle)} times as far {when}: either {why}, another "
        "optimizer whose first steps are like these, or a clip or a scale after the gradients are recorded. More steps "
        "in a row, from the first on, would tell."
    )
    return Finding("learning_rate", text, at.step, (), {"factor": middle})
