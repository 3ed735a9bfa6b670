"""Rules for optimizers: gradients that agree, and parameters that do not move alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import AMPLIFIED, BETTER, LARGE, OPTIMIZER_ELEMENTS, ROOM
from gradxform.comparing.evidence import Evidence, few
from gradxform.comparing.findings import Finding, number, some
from gradxform.comparing.optimizers import Run, Setting, nearest, settings_of

_STEPS, _ELEMENTS, _LEAVES = 8, 2048, 8
"""Steps and elements that an optimizer is told by, and the leaves that they are taken from."""


class Moves(NamedTuple):
    """How the parameters of a leaf move from one recorded step to the next, and the gradients before; of a sample."""

    a: Any
    b: Any
    parameter: Any
    apart: float
    """How far the gradients are apart, in the median of their elements."""

    def gap(self, unit: float) -> float:
        """How far the moves are apart in the median, beyond the rounding of two parameters in two runs."""
        scale = np.maximum(np.abs(self.a), np.abs(self.b))
        return float(np.median((np.abs(self.a - self.b) - 8 * unit * np.abs(self.parameter)) / scale))

    def part(self) -> tuple[float, float]:
        """The part of the parameters by which moves differ, and what is left then of the difference."""
        apart, size = self.b - self.a, float(np.vdot(self.parameter, self.parameter))
        rate = float(np.vdot(self.parameter, apart)) / size if size else 0.0
        whole = float(np.linalg.norm(apart))
        return rate, float(np.linalg.norm(apart - rate * self.parameter)) / whole if whole else 1.0

    def is_part(self, unit: float) -> bool:
        """Whether moves differ by a part of the parameters, however small; in float32, 1 - rate is rounded."""
        rate, left = self.part()
        return len(self.a) >= LARGE and left**2 < 0.5 and abs(rate) > 8 * unit


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
        large = np.maximum(np.abs(a), np.abs(b)) > ROOM * unit * np.maximum(np.abs(before[0]), 1e-30)
        # a gradient of a hundredth of the usual is a sum that cancels, and its sign may be rounding
        exact = large & (np.abs(one) > 1e-2 * np.sqrt((one**2).mean()))
        if exact.any():
            apart = float(np.median(np.abs(one - other)[exact] / np.abs(one)[exact]))
            found[i] = Moves(a[exact], b[exact], before[0][exact], apart)
    return found


def _first_moves(e: Evidence) -> tuple[int, int, dict[int, Moves], list[int]] | None:
    """The first steps between which parameters move apart though the gradients agree, the moves, and the leaves."""
    if not {"gradients", "parameters"} <= set(e.rows) or not e.values or e.tolerated:
        return None
    unit, middle = e.arithmetic("parameters").unit, e.arithmetic("parameters").budget
    least = max(middle, e.judged["gradients"].arithmetic.budget)
    apart: dict[int, float] = {}
    for step, after in zip(e.steps, e.steps[1:], strict=False):
        if e.step is not None and step >= e.step:
            return None
        found = _moves(e, step, after, unit)
        gaps = {i: move.gap(unit) for i, move in found.items()}
        apart |= {i: max(apart.get(i, least), move.apart) for i, move in found.items()}
        limits = {i: AMPLIFIED * apart[i] for i in found}
        middle = max(middle, float(np.median([move.apart for move in found.values()] or [0.0])))
        # gradients in bfloat16 (limit 1) have errors in any direction
        bad = [i for i, move in found.items() if gaps[i] > limits[i] or (limits[i] < 1 and move.is_part(unit))]
        if not bad and len(gaps) > 1 and np.median(list(gaps.values())) > AMPLIFIED * middle:
            bad = [i for i, gap in gaps.items() if gap > AMPLIFIED * middle]
        if bad:
            return step, after, found, bad
        if step != e.steps[0]:
            e.a.close(step)
            e.b.close(step)
    return None


def update(e: Evidence) -> Iterator[Finding]:
    """What the optimizers do otherwise: settings that predict the moves of both, or what is seen of them."""
    found = _first_moves(e)
    if found is None:
        return
    for rule in (_still, _settings, _decoupled, _factor, _unknown):
        made = rule(e, *found)
        if made is not None:
            yield made
            return


def _unknown(e: Evidence, step: int, after: int, moves: Mapping[int, Moves], bad: list[int]) -> Finding | None:
    """Moves that no setting predicts."""
    tried = "no setting of SGD, momentum, Adagrad, RMSprop, Adam, RAdam or Lion that was tried predicts the moves"
    text = (
        f"The gradients agree, and the parameters move otherwise from step {step} on: the optimizers differ, and "
        f"{tried if _runs(e, bad) else 'there are too few elements to tell how'}. Either another optimizer, or "
        "something that is done to gradients after they are recorded (a clip, a scale), or to parameters."
    )
    return Finding("optimizer", text, step, e.labels(bad)) if after - step == 1 else None


def _still(e: Evidence, step: int, after: int, moves: Mapping[int, Moves], bad: list[int]) -> Finding | None:
    """Leaves that have a gradient and do not move in one run."""
    for side in e.sides:
        moving = [i for i, move in moves.items() if (move.a, move.b)[side.place].any()]
        still = [i for i in bad if i not in moving]
        if not still:
            continue
        intervals = list(zip(e.steps, e.steps[1:], strict=False))
        pattern = [any(_has_moved(e, i, side.place, *ends) for i in still) for ends in intervals]
        begun = next(
            (later for (at, later), moved in zip(intervals, pattern, strict=True) if moved and at >= after), None
        )
        period = next((n for n in range(2, len(pattern) // 2 + 1) if _is_each(pattern, n)), 0)
        why = (
            "frozen there, or the optimizer does not have it"
            if moving
            else "frozen there, or no step is taken yet (a warm-up from zero, gradients that are accumulated)"
        )
        if begun is not None:
            why = f"it has moved at step {begun}: a warm-up from zero, or a step on every second batch or later"
        if period:
            why = f"it moves at each {period}. step alone: gradients are accumulated, or steps left out"
        names, end = f"{e.some(still)} does not move" if moving else "No parameter moves", e.steps[-1]
        text = (
            f"{names} in {side.name} from step {step} to {end if begun is None else after}, though it has a gradient: "
            f"{why}."
        )
        certain = bool(period or (moving and begun is None))
        return Finding("frozen", text, step, e.labels(still), is_certain=certain)
    return None


def _is_each(pattern: list[bool], period: int) -> bool:
    """Whether parameters move at each n-th recorded step alone."""
    return pattern == [(at + 1) % period == 0 for at in range(len(pattern))]


def _has_moved(e: Evidence, i: int, side: int, step: int, later: int) -> bool:
    there = e.has(i, "parameters", step) and e.has(i, "parameters", later)
    return there and not np.array_equal(*(e.samples(i, "parameters", at)[side] for at in (step, later)))


def _runs(e: Evidence, bad: list[int]) -> list[Run]:
    """Elements of leaves that move apart, of both runs, over the steps that follow the first without a gap, if any."""
    steps = [step for i, step in enumerate(e.steps) if step == e.steps[0] + i][: _STEPS + 1]
    shapes, unit = e.a.shapes(e.steps[0], "parameters"), e.arithmetic("parameters").unit
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
        exact = np.abs(runs[side].moves) > ROOM * unit * np.abs(parameters[:-1])
        kept = kept & exact.all(0) & (gradients[:-1] != 0).all(0)
    (chosen,) = np.nonzero(kept)
    chosen = few(chosen, _ELEMENTS)
    if len(chosen) < OPTIMIZER_ELEMENTS:
        return []
    return [Run(run.gradients[:, chosen], run.parameters[:, chosen], run.moves[:, chosen], unit) for run in runs]


def _settings(e: Evidence, step: int, after: int, moves: Mapping[int, Moves], bad: list[int]) -> Finding | None:
    """Two settings that predict the moves of each run from its own gradients, and how they differ."""
    runs, budget = _runs(e, bad), e.arithmetic("parameters").budget
    candidates = [settings_of(run, AMPLIFIED * budget) for run in runs]
    if not runs or not all(candidates):
        return None
    pair = nearest(*candidates)
    found = list(_differences(*pair))
    if not found:
        return None
    kind, _, numbers = found[0]
    labels = e.labels(bad) if len(bad) < len(moves) else ()
    count, elements = runs[0].moves.shape
    certain = all(_is_proven(setting, count, budget) for setting in pair)
    nearly = "" if certain else "nearly "
    end = f"With these numbers both move {nearly}as recorded, in {elements} elements over {count} steps."
    if not certain:
        end += " Another optimizer may do so as well: record more steps to decide."
    if count == 1:
        end = "One step is explained by other settings as well: record two more steps to decide."
    begin = f"The gradients agree, and the optimizers differ{f', as {some(labels)} show' if labels else ''}"
    text = f"{begin}: {'; '.join(words for _, words, _ in found)}. {end}"
    return Finding(kind, text, step, labels, numbers, is_certain=certain)


def _is_proven(setting: Setting, count: int, budget: float) -> bool:
    """Whether moves are predicted as well as rounding allows, over more steps than another setting would predict.

    A start of Adagrad's sum is not told from its rate, nor a momentum of two steps from a decay toward initial values.
    """
    alike = setting.epsilon if setting.family == "Adagrad" else setting.family == "SGD" and setting.beta1 and count < 3
    return count > 1 and setting.error <= budget and not alike


_NUMBERS = {
    "SGD": ("momentum is", "{0:g}"),
    "Adagrad": ("sum of squares begins with", "{2:g}"),
    "RMSprop": ("decay is", "{1:g}"),
    "Adam": ("betas are", "{0:g} and {1:g}"),
}
_NUMBERS |= dict.fromkeys(("Lion", "RAdam"), _NUMBERS["Adam"])
"""What is told of the betas, or the start, of a family."""


def _differences(a: Setting, b: Setting) -> Iterator[tuple[str, str, dict[str, float]]]:
    """How two settings differ: a kind, words and numbers for each."""
    if a.family != b.family:
        yield "optimizer", f"A moves as {_name(a)}, B as {_name(b)}", {}
        return
    if a.counted != b.counted:
        first = ["not at all" if setting.counted is None else f"as {setting.counted}" for setting in (a, b)]
        text = f"Adam's bias correction counts the first step {first[0]} in A and {first[1]} in B"
        yield "bias_correction", text, {"beta1": a.beta1, "beta2": a.beta2}
    words, shown = _NUMBERS[a.family]
    told = tuple(shown.format(setting.beta1, setting.beta2, setting.start) for setting in (a, b))
    if told[0] != told[1]:
        text = f"the {words} {told[0]} in A{',' if ' and ' in told[0] else ' and'} {told[1]} in B"
        yield "optimizer", text, {"a": a.beta1, "b": b.beta1}
    if a.nesterov != b.nesterov:
        yield "optimizer", f"{'A' if a.nesterov else 'B'} has Nesterov's momentum, the other a plain one", {}
    if _differ(a.epsilon, b.epsilon, 0.1) or (a.place != b.place and a.epsilon):
        yield "epsilon", f"epsilon is {_epsilon(a)} in A and {_epsilon(b)} in B", {"a": a.epsilon, "b": b.epsilon}
    if _differ(a.l2, b.l2, 0.02) or _differ(a.decay, b.decay, 0.02):
        yield "weight_decay", f"A {_decay(a)}; B {_decay(b)}", {"rate": b.decay - a.decay, "l2": b.l2 - a.l2}
    count = max(len(a.rates), len(b.rates), 1)
    rates = [setting.rates or (setting.rate,) * count for setting in (a, b)]
    if any(_differ(one, other, AMPLIFIED * 2.0**-14) for one, other in zip(*rates, strict=True)):
        text = f"the learning rate is {_rate(a)} in A and {_rate(b)} in B"
        yield "learning_rate", text, {"factor": b.rate / (a.rate or math.inf), "a": a.rate, "b": b.rate}


def _differ(a: float, b: float, by: float) -> bool:
    """Whether two numbers are apart by more than a part of them."""
    return abs(a - b) > by * min(a, b)


def _name(setting: Setting) -> str:
    words, shown = _NUMBERS[setting.family]
    numbers = (setting.beta1, setting.beta2, setting.start)
    told = f" whose {words} {shown.format(*numbers)} and" if any(numbers) else " with"
    return f"{setting.family}{told} a learning rate of {_rate(setting)}"


def _rate(setting: Setting) -> str:
    """The rate; one that changes may be a clip as well, which has one factor for all leaves."""
    if not setting.rates:
        return f"{setting.rate:.4g}"
    shown = ", ".join(f"{rate:.4g}" for rate in setting.rates)
    return f"{shown} from step to step (a schedule, or a clip or a scale of all gradients after they are recorded)"


def _epsilon(setting: Setting) -> str:
    places = {"hat": ", added before the bias correction,", "inside": ", added under the root,"}
    return f"about {setting.epsilon:.2g}{places.get(setting.place, '')}" if setting.epsilon else "too small to show"


def _decay(setting: Setting) -> str:
    if setting.decay:
        beside = "" if setting.family == "SGD" and not setting.beta1 else ", beside the gradient, as AdamW does"
        return (
            f"decays its parameters by {setting.decay:.3g} of themselves at each step{beside} (a weight decay of "
            f"{setting.decay / setting.rate:.2g} times the learning rate of {number(setting.rate)})"
        )
    if setting.l2:
        return f"adds {setting.l2:.3g} times the parameters to the gradient (L2)"
    return "does not decay its parameters"


def _decoupled(e: Evidence, step: int, after: int, moves: Mapping[int, Moves], bad: list[int]) -> Finding | None:
    """Moves that differ by one number times the parameters, the same in all leaves."""
    found = [moves[i].part() for i in bad]
    rates = [rate / (after - step) for rate, _ in found]
    rate = float(np.median(rates))
    if max(left for _, left in found) > 1 / BETTER or max(rates) - min(rates) > abs(rate) / BETTER:
        return None
    run, other = ("B", "A") if rate > 0 else ("A", "B")
    certain = sum(len(moves[i].a) for i in bad) >= LARGE
    text = (
        f"{run} decays its parameters by {number(abs(rate))} of themselves at each step, beside the gradient (learning "
        f"rate times weight decay), which {other} does not do, or does so much less, or toward other values, such as "
        "its initial ones."
    )
    return Finding("weight_decay", text, step, e.labels(bad), {"rate": rate}, is_certain=certain)


def _factor(e: Evidence, step: int, after: int, moves: Mapping[int, Moves], bad: list[int]) -> Finding | None:
    """Moves that are one number times as large, between two steps: which has many causes."""
    ratios = np.concatenate([m.b[m.a != 0] / m.a[m.a != 0] for m in moves.values()])
    if len(ratios) < OPTIMIZER_ELEMENTS or len(bad) < len(moves):
        return None
    low, middle, high = (float(x) for x in np.quantile(ratios, (0.2, 0.5, 0.8)))
    if high - low > min(0.02 * abs(middle), abs(middle - 1) / BETTER):
        return None
    begins = step == e.steps[0]
    why = "another learning rate" if begins else "the learning rate changes there, by a schedule or in steps"
    when = f"at step {step}" if after - step == 1 else f"from step {step} to {after}"
    text = (
        f"The gradients agree, and B moves its parameters {number(middle)} times as far {when}"
        f"{'' if begins else ', after they moved alike'}: either {why}, another optimizer whose first steps are "
        "like these, or a clip or a scale after the gradients are recorded, or another bias correction. More steps in "
        "a row, from the first on, would tell."
    )
    return Finding("learning_rate", text, step, (), {"factor": middle})
