"""The rule for optimizers: gradients that agree, and parameters that do not move alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing import constants
from gradxform.comparing.comparison import SAMPLE, Evidence
from gradxform.comparing.findings import Finding, number
from gradxform.comparing.layouts import few
from gradxform.comparing.optimizers import INSIDE, Run, Setting, settings_of

_STEPS, _ELEMENTS, _LEAVES = 8, 2048, 8
"""Steps and elements that an optimizer is told by, and the leaves that they are taken from."""


class Parting(NamedTuple):
    """The first steps between which parameters move apart though the gradients agree, the moves, and the leaves."""

    step: int
    after: int
    moves: Mapping[int, tuple[Any, Any]]
    """How a sample of each leaf moves from one recorded step to the next in A and B."""
    bad: list[int]


def _parting(e: Evidence) -> Parting | None:
    """Where parameters move apart though the gradients agree, if they do.

    Moves are those of all leaves whose gradients are no noise, where they are large enough to be exact. They are apart
    if most are much further apart than the gradients before, beyond the rounding of two parameters in two runs.
    """
    arithmetic, apart = e.coarsest("parameters"), dict[int, float]()
    least, unit = max(arithmetic.budget, e.judged["gradients"].arithmetic.budget), arithmetic.unit
    for step, after in itertools.pairwise(step for step in e.steps if e.step is None or step <= e.step):
        moves, bad = dict[int, tuple[Any, Any]](), []
        for i in range(len(e.pairs)):
            there = all(e.has(i, "parameters", at) for at in (step, after)) and e.has(i, "gradients", step)
            if not there or e.is_noise(i, "gradients", step):
                continue
            one, other = e.both(i, "gradients", step, most=SAMPLE)
            before, later = (e.both(i, "parameters", at, most=SAMPLE) for at in (step, after))
            a, b = (x - y for x, y in zip(before, later, strict=True))
            size, scale = np.abs(before[0]), np.maximum(np.abs(a), np.abs(b))
            large = scale > constants.ROOM * unit * np.maximum(size, 1e-30)
            exact = large & (np.abs(one) > constants.CANCELS * np.sqrt((one**2).mean()))
            if exact.any():
                moves[i], near = (a[exact], b[exact]), float(np.median((np.abs(one - other) / np.abs(one))[exact]))
                apart[i] = max(apart.get(i, least), near)
                far = np.median(((np.abs(a - b) - 8 * unit * size) / scale)[exact])
                bad += [i] * bool(far > constants.AMPLIFIED * apart[i])
        if bad:
            return Parting(step, after, moves, bad)
        if step != e.steps[0]:
            e.a.close(step)
            e.b.close(step)
    return None


def update(e: Evidence) -> Iterator[Finding]:
    """What the optimizers do otherwise: settings that predict the moves of both, or what is seen of them.

    Norms do not tell how parameters move.
    """
    at = None if e.norms_only or not {"gradients", "parameters"} <= set(e.rows) else _parting(e)
    if at is not None and (found := _still(e, at) or _settings(e, at) or _unknown(e, at)):
        yield found


def _unknown(e: Evidence, at: Parting) -> Finding | None:
    """Moves that no setting predicts, one number times as large or not."""
    ratios = np.concatenate([b[a != 0] / a[a != 0] for a, b in at.moves.values()])
    low, middle, high = (float(x) for x in np.quantile(ratios, (0.2, 0.5, 0.8)))
    alike = high - low <= min(constants.SAME_RATIO * abs(middle), abs(middle - 1) / constants.BETTER)
    text = "The gradients agree, and "
    if alike and len(ratios) >= constants.OPTIMIZER_ELEMENTS and len(at.bad) == len(at.moves):
        text += f"B moves its parameters {number(middle)} times as far at step {at.step}: another learning rate, a "
        text += "schedule, another optimizer, or a clip or a scale after the gradients are recorded."
        return Finding("learning_rate", text, at.step, (), {"factor": middle})
    if at.after - at.step > 1:
        return None
    why = "no setting of SGD, Adagrad, RMSprop, Adam or Lion that was tried predicts the moves"
    why = why if _runs(e, at.bad, 1)[0] else "there are too few elements to tell how, or gradients of one size"
    text += f"the parameters move otherwise from step {at.step} on: other optimizers, or what is done to gradients "
    return Finding("optimizer", f"{text}after they are recorded; {why}.", at.step, e.labels(at.bad))


def _still(e: Evidence, at: Parting) -> Finding | None:
    """Leaves that have a gradient and do not move in one run."""
    for side in e.sides:
        moving = [i for i, move in at.moves.items() if move[side.place].any()]
        still = [i for i in at.bad if i not in moving]
        if not still:
            continue
        moved = [_has_moved(e, side.place, still, *steps) for steps in itertools.pairwise(e.steps)]
        begun = [after for after, has_moved in zip(e.steps[1:], moved, strict=True) if has_moved and after > at.after]
        period = _period(moved)
        if begun and not moving and not period and (made := _settings(e, at)):
            return made
        why = "frozen, not in the optimizer, or no step is taken yet (a warm-up from zero, accumulated gradients)"
        if period:
            why = f"it moves at one step in {period} alone: gradients are accumulated, or steps left out"
        elif begun:
            why = f"it has moved at step {begun[0]}: a warm-up from zero, or a step on every second batch or later"
        names, end = f"{e.some(still)} does not move" if moving else "No parameter moves", begun and at.after
        text = f"{names} in {side.name} from step {at.step} to {end or e.steps[-1]}, though it has a gradient: {why}."
        certain = bool(period or (moving and not begun))
        return Finding("optimizer" if period else "frozen", text, at.step, e.labels(still), is_certain=certain)
    return None


def _has_moved(e: Evidence, place: int, leaves: list[int], *steps: int) -> bool:
    """Whether a run moves one of some leaves between two steps."""
    there = (i for i in leaves if all(e.has(i, "parameters", step) for step in steps))
    each = ([e.both(i, "parameters", step, most=SAMPLE)[place] for step in steps] for i in there)
    return any(not np.array_equal(*both) for both in each)


def _period(pattern: Sequence[bool]) -> int:
    """How many steps there are from one that moves parameters to the next; zero if that changes, or is one."""
    every = range(2, len(pattern) // 2 + 1)
    return next((n for n in every if pattern == [k % n == 0 for k in range(1, len(pattern) + 1)]), 0)


def _runs(e: Evidence, bad: list[int], most: int) -> tuple[list[Run], int]:
    """Elements of leaves that move apart, of both runs, over the steps that follow the first without a gap, if any.

    Where both move at one step in some alone, gradients are added over as many, which are told.
    """
    steps = [step for i, step in enumerate(e.steps) if step == e.steps[0] + i][: most + 1]
    shapes, unit = e.a.shapes(e.steps[0], "parameters"), e.coarsest("parameters").unit
    matrices = [i for i in bad if len(shapes[e.pairs[i].a.path]) > 1] or bad  # what has no decay is mostly a vector
    places = [i for i in matrices if all(e.has(i, t, s) for t in ("gradients", "parameters") for s in steps)][:_LEAVES]
    if len(steps) < 2 or not places:
        return [], 1
    read = ([[e.both(i, t, s, most=SAMPLE) for i in places] for s in steps] for t in ("gradients", "parameters"))
    g, p = (np.stack([np.stack([*map(np.concatenate, zip(*x, strict=True))]) for x in tree], 1) for tree in read)
    runs = [Run(x[:-1], y[:-1], y[:-1] - y[1:], unit) for x, y in zip(g, p, strict=True)]
    exact = (np.abs(run.moves) > constants.ROOM * unit * np.abs(run.parameters) for run in runs)
    each = [x[run.steps].all(0) & (run.gradients != 0).all(0) for x, run in zip(exact, runs, strict=True)]
    chosen = few(np.flatnonzero(np.logical_and(*each)), _ELEMENTS)
    ones, others = (run.steps.tolist() for run in runs)
    batches = (ones == others and _period(ones)) or 1
    enough = len(chosen) >= constants.OPTIMIZER_ELEMENTS
    tells = enough and not any(_are_signs(run.of(x, batches)) for run, x in zip(runs, each, strict=True))
    return [run.of(chosen, batches) for run in runs if tells], batches


def _are_signs(run: Run) -> bool:
    """Whether all move by one size, and no gradient is so small that no clip by value would do so."""
    gradients, moves = np.abs(run.gradients), np.abs(run.moves).max(0)
    has_one_size = moves.min() > (1 - constants.CLIPPED) * moves.max()
    return bool(has_one_size and gradients.min() > constants.CANCELS * np.median(gradients))


def _settings(e: Evidence, at: Parting) -> Finding | None:
    """Two settings that predict the moves of each run, or else the first one, if that tells them apart."""
    found = _difference(e, at, *_runs(e, at.bad, _STEPS))
    first = None if found else _difference(e, at, *_runs(e, at.bad, 1))
    return first if first and first.is_certain else found


def _difference(e: Evidence, at: Parting, runs: list[Run], batches: int) -> Finding | None:
    """Two settings that predict the moves of each run from its own gradients, and how they differ."""
    budget = e.coarsest("parameters").budget
    candidates = [settings_of(run, constants.AMPLIFIED * budget) for run in runs]
    if not runs or not all(candidates):
        return None
    count = min(int(run.steps.sum()) for run in runs)
    pairs = {pair: _kinds(*pair) for pair in itertools.product(*candidates)}
    nearest = [pair for pair, kinds in pairs.items() if not any({*other} < {*kinds} for other in pairs.values())]
    pair, kinds = nearest[0], pairs[nearest[0]]
    if not kinds:
        return None
    claims = {(pairs[each][0], *(_name(s, count, False) for s in each)) for each in nearest}
    found = {field: both for field in _FIELDS if (both := _unequal(field, *pair))}
    alike = pair[0].family == pair[1].family
    numbers = dict(zip("ab", next(iter(found.values())), strict=True)) if alike else {}
    labels = e.labels(at.bad) if len(at.bad) < len(at.moves) else ()
    certain = len(claims) == 1 and all(s.error <= budget and not _is_open(s, count) for s in pair)
    certain = certain and (batches == 1 or kinds[0] != "epsilon")  # which a mean in one run looks like
    fields = ([f for f in _FIELDS if (f in found if alike else count > 1 and getattr(s, f) != _NONE[f])] for s in pair)
    told = [f" with {', '.join(_words(s, f) for f in x)}" * bool(x) for s, x in zip(pair, fields, strict=True)]
    a, b = (f"{_name(s, count, alike)}{x}" for s, x in zip(pair, told, strict=True))
    text = (
        f"The gradients agree, and the optimizers differ{f', as {e.some(at.bad)} show' if labels else ''}: A is {a}; "
        f"B is {b}. Both move so, in {runs[0].moves.shape[1]} elements over {count} step{'s' * (count > 1)}"
    )
    text += f", by sums of the gradients of {batches} batches, which a run may divide by {batches}" * (batches > 1)
    text += "." if certain else ". Other settings may move so as well: record more steps to decide."
    if count == 1 and kinds[0] == "epsilon":
        text += " One added before the bias correction, as in Keras, looks 1 / sqrt(1 - second beta) times as large."
    return Finding(kinds[0], text, at.step, labels, numbers, is_certain=certain)


def _is_open(s: Setting, count: int) -> bool:
    """Whether a setting has a number that steps do not tell.

    A start of Adagrad's sum is not told from its rate, nor a momentum of two steps from a decay toward initial values.
    """
    is_open = {"Adagrad": s.place == INSIDE, "SGD": s.beta1 > 0 and count == 2}
    return count > 1 and is_open.get(s.family, False)


def _name(s: Setting, count: int, alike: bool) -> str:
    """An optimizer in words; in their first steps, those that divide by the size of a gradient are alike."""
    if count > 1 or (alike and s.family == "SGD"):
        return s.family
    return "like SGD" if s.family in ("SGD", "EMA or RAdam") else "adaptive (Adam, Adagrad, RMSprop or Lion)"


def _kinds(a: Setting, b: Setting) -> list[str]:
    """What two settings differ in; another optimizer has other rates, and maybe no epsilon."""
    kinds = {field: about[0] for field, about in _FIELDS.items() if _unequal(field, a, b)}
    first = next(iter(kinds.values()), "") if a.family == b.family else "optimizer"
    if first not in ("optimizer", "bias_correction"):
        return [*kinds.values()]
    both = ("decay", "l2", "epsilon", "place")[: 4 if a.epsilon and b.epsilon else 2]
    return [first, *(kinds[field] for field in both if field in kinds)]


_NONE = Setting._field_defaults
_FIELDS = {
    "counted": ("bias_correction", "a bias correction from step", 0.0),
    "beta1": ("optimizer", "momentum", 0.0),
    "beta2": ("optimizer", "second beta", 0.0),
    "start": ("optimizer", "sum of squares from", 0.0),
    "nesterov": ("optimizer", "Nesterov's momentum", 0.0),
    "decay": ("weight_decay", "decay beside the gradient", constants.SAME_DECAY),
    "l2": ("weight_decay", "L2 in the gradient", constants.SAME_DECAY),
    "epsilon": ("epsilon", "epsilon", constants.SAME_EPSILON),
    "place": ("epsilon", "epsilon added", 0.0),
    "rates": ("learning_rate", "learning rate", constants.SAME_RATE),
}
"""What settings of one family may differ in: a kind, words, and how far equal numbers may be apart, relatively."""


def _unequal(field: str, a: Setting, b: Setting) -> tuple[float, ...]:
    """The first numbers of a field in which two settings differ, if any."""
    x, y = np.broadcast_arrays(*(np.atleast_1d(getattr(s, field)) for s in (a, b)))
    apart = np.argwhere(np.abs(x - y) > _FIELDS[field][2] * np.minimum(x, y))
    return tuple(float(side[apart[0, 0]]) for side in (x, y)) if len(apart) else ()


def _words(s: Setting, field: str) -> str:
    """A field of a setting; rates that change are a factor of all leaves, as a clip has it."""
    why = " from step to step (a schedule, or a clip or a scale of all gradients after recording, or a step left out)"
    value, what = getattr(s, field), _FIELDS[field][1]
    if field == "rates":
        return f"{what} {', '.join(f'{rate:.4g}' for rate in value)}{why * (len(value) > 1)}"
    if field == "place":
        return f"{what} {('outside of the root', 'before the bias correction', 'under the root')[value]}"
    times = f" of the parameters a step, {value / (s.rates[0] or math.inf):.2g} times the learning rate"
    return f"{what} {value:.3g}{times * (field == 'decay')}" if value != _NONE[field] else f"no {what} that shows"
