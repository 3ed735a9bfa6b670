"""Rules for optimizers: gradients that agree, and parameters that do not move alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.evidence import Evidence
from gradxform.comparing.findings import Finding, number, some

_SAMPLE = 1 << 15
_EXACT = 256.0
"""How many units of its parameter a move must have, to count."""
_ALIKE = 3e-3
_BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999), (0.8, 0.999))


class Moves(NamedTuple):
    """How the parameters of a leaf move from one recorded step to the next, and the gradient before; of a sample."""

    a: Any
    b: Any
    parameter: Any
    gradient: Any


def moves(e: Evidence, step: int, after: int) -> dict[int, Moves]:
    """The moves of all leaves whose gradients are no noise, where they are large enough to be exact."""
    found = {}
    for i, d in enumerate(e.rows["gradients"][step]):
        there = e.has(i, "parameters", step) and e.has(i, "parameters", after)
        if d is None or not there or e.is_noise(i, "gradients", step):
            continue
        gradient = _sample(e.arrays(i, "gradients", step)[0])
        before, later = e.arrays(i, "parameters", step), e.arrays(i, "parameters", after)
        a, b = (_sample(x) - _sample(y) for x, y in zip(before, later, strict=True))
        parameter = _sample(before[0])
        least = _EXACT * 2.0**-24 * np.maximum(np.abs(parameter), 1e-30)
        exact = (np.maximum(np.abs(a), np.abs(b)) > least) & (np.abs(gradient) > 1e-2 * np.sqrt((gradient**2).mean()))
        found[i] = Moves(a[exact], b[exact], parameter[exact], gradient[exact])
    return {i: move for i, move in found.items() if len(move.a)}


def _sample(x: Any) -> Any:
    return x.ravel()[:: max(1, x.size // _SAMPLE)]


def first_moves(e: Evidence) -> tuple[int, dict[int, Moves]] | None:
    """The first step after which parameters move apart though the gradients agree; None if there is none."""
    if not {"gradients", "parameters"} <= set(e.rows) or not e.values:
        return None
    for step, after in zip(e.steps, e.steps[1:], strict=False):
        if e.step is not None and step >= e.step:
            return None
        if e.judged["gradients"].arithmetic.name not in ("float32", "float64"):
            return None
        found = moves(e, step, after)
        if any(_differs(move) for move in found.values()):
            return step, found
        if step - e.steps[0] > 8 or (len(e.steps) > 16 and step > e.steps[8]):
            return None
    return None


def _differs(move: Moves) -> bool:
    """Whether the moves of most elements are apart by more than rounding."""
    scale = np.maximum(np.abs(move.a), np.abs(move.b))
    noise = 8 * 2.0**-24 * np.abs(move.parameter) / scale
    return bool(np.median(np.abs(move.a - move.b) / scale - noise) > _ALIKE)


def update(e: Evidence) -> Iterator[Finding]:
    """What the optimizers do otherwise."""
    found = first_moves(e)
    if found is None:
        return
    step, all_moves = found
    bad = {i: move for i, move in all_moves.items() if _differs(move)}
    for rule in (_still, _decoupled, _epsilon, _factor):
        made = rule(e, step, all_moves, bad)
        if made is not None:
            yield made
            return
    text = f"The gradients agree, and the parameters move otherwise from step {step} on: the optimizers differ."
    yield Finding("optimizer", text, step, e.labels(list(bad)))


def _still(e: Evidence, step: int, all_moves: dict[int, Moves], bad: dict[int, Moves]) -> Finding | None:
    """Leaves that have a gradient and do not move in one run."""
    for side in ("a", "b"):
        still = [i for i, move in bad.items() if not getattr(move, side).any()]
        if still and len(still) < len(all_moves):
            text = f"{some(e.labels(still))} does not move in {side.upper()}, though it has a gradient: frozen there."
            return Finding("frozen", text, step, e.labels(still))
    return None


def _factor(e: Evidence, step: int, all_moves: dict[int, Moves], bad: dict[int, Moves]) -> Finding | None:
    """Moves that are one number times as large: bias correction, or the learning rate."""
    found = _ratio(all_moves)
    if found is None or len(bad) < len(all_moves):
        return None
    count = step + 1
    for first, second in _BETAS if e.steps[0] == 0 else ():
        corrected = math.sqrt(1 - second**count) / (1 - first**count)
        for run, wanted in (("B", 1 / corrected), ("A", corrected)):
            if abs(found / wanted - 1) < 5e-3 and _holds_later(e, step, first, second, run):
                text = (
                    f"{run} leaves out Adam's bias correction: its first steps are {number(1 / corrected)} times as "
                    f"large (betas {first} and {second})."
                )
                return Finding("bias_correction", text, step, (), {"beta1": first, "beta2": second})
    text = (
        f"The gradients agree, and B moves its parameters {number(found)} times as far at step {step}: another "
        "learning rate, schedule, or clip."
    )
    return Finding("learning_rate", text, step, (), {"factor": found})


def _ratio(all_moves: dict[int, Moves]) -> float | None:
    """The factor between the moves, if it is one for all elements of all leaves."""
    ratios = np.concatenate([m.b[m.a != 0] / m.a[m.a != 0] for m in all_moves.values()])
    if not len(ratios):
        return None
    low, middle, high = np.quantile(ratios, (0.2, 0.5, 0.8))
    return float(middle) if high - low <= 0.02 * abs(middle) else None


def _holds_later(e: Evidence, step: int, first: float, second: float, run: str) -> bool:
    """Whether the next step fits a missing correction as well; True where there is no next step to look at."""
    place = e.steps.index(step) + 1
    if place + 1 >= len(e.steps) or e.steps[place] != step + 1:
        return True
    found = _ratio(moves(e, e.steps[place], e.steps[place + 1]))
    if found is None:
        return True
    corrected = math.sqrt(1 - second ** (step + 2)) / (1 - first ** (step + 2))
    return abs(found / (1 / corrected if run == "B" else corrected) - 1) < 0.1


def _decoupled(e: Evidence, step: int, all_moves: dict[int, Moves], bad: dict[int, Moves]) -> Finding | None:
    """Moves that differ by one number times the parameters."""
    rates = []
    for move in bad.values():
        apart = move.b - move.a
        rate = float(np.vdot(move.parameter, apart) / max(np.vdot(move.parameter, move.parameter), 1e-300))
        if np.linalg.norm(apart - rate * move.parameter) > 0.1 * np.linalg.norm(apart):
            return None
        rates.append(rate)
    rate = float(np.median(rates))
    if max(rates) - min(rates) > 0.1 * abs(rate):
        return None
    run = "B" if rate > 0 else "A"
    text = (
        f"{run} decays its parameters by {number(abs(rate))} of themselves at each step, beside the gradient "
        "(learning rate times weight decay); the other does not."
    )
    return Finding("weight_decay", text, step, e.labels(list(bad)), {"rate": rate})


def _epsilon(e: Evidence, step: int, all_moves: dict[int, Moves], bad: dict[int, Moves]) -> Finding | None:
    """Adam's first moves, rate * g / (|g| + epsilon), with two epsilons."""
    if step != e.steps[0]:
        return None
    gradient = np.abs(np.concatenate([move.gradient for move in all_moves.values()]))
    found = []
    for side in ("a", "b"):
        size = np.abs(np.concatenate([getattr(move, side) for move in all_moves.values()]))
        kept = (size > 0) & (gradient > 0)
        if kept.sum() < 16:
            return None
        slope, cut = np.polyfit(1 / gradient[kept], 1 / size[kept], 1)
        left = 1 / size[kept] - (cut + slope / gradient[kept])
        if cut <= 0 or np.sqrt((left**2).mean()) > 0.02 * (1 / size[kept]).mean():
            return None
        found.append((max(slope / cut, 0.0), 1 / cut))
    (one, rate), (other, rate_b) = found
    if abs(rate / rate_b - 1) > 0.05 or max(one, other) < 1e-2 * float(np.median(gradient)) or one == other:
        return None
    text = (
        f"The optimizers have another epsilon: about {max(one, 0):.2g} in A and {max(other, 0):.2g} in B, "
        f"at a learning rate of {number(rate)}."
    )
    return Finding("epsilon", text, step, (), {"a": one, "b": other})
