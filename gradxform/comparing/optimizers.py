"""Which optimizer a run moves its parameters by: settings that predict its moves from its own gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import BETTER, TELLING_UNITS

_MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
_BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999), (0.8, 0.999), (0.5, 0.999), (0.0, 0.999))
_SQUARES = (0.9, 0.95, 0.99, 0.999)
_L2 = tuple(digit * 10.0**power for power in range(-6, 0) for digit in (1, 3))


class Run(NamedTuple):
    """Elements of one run over steps that follow each other from its first: arrays of steps by elements."""

    gradients: Any
    parameters: Any
    moves: Any
    """What is subtracted from the parameters."""
    unit: float
    """Half the distance of one to the next number of the parameters."""


class Setting(NamedTuple):
    """An optimizer with its numbers."""

    family: str
    """ "SGD", "Adagrad", "RMSprop" or "Adam"."""
    beta1: float = 0.0
    beta2: float = 0.0
    nesterov: bool = False
    counted: int | None = None
    """What the bias correction counts the first step as; None without a correction."""
    place: str = ""
    """Where epsilon is added: "outside" of the root, "inside", or outside of the one without correction ("hat")."""
    start: float = 0.0
    """What the sum of squares of Adagrad begins with."""
    epsilon: float = 0.0
    """Zero where it is too small to show."""
    l2: float = 0.0
    """The part of the parameters that is added to the gradient."""
    rate: float = 0.0
    decay: float = 0.0
    """The part of the parameters that is subtracted at each step, beside the gradient."""
    error: float = float("inf")
    """How far the moves of a run are from the predicted ones, relative to them."""


def families() -> Mapping[str, list[Setting]]:
    """The optimizers that are tried, without their numbers, the simplest family first."""
    adam = [
        Setting("Adam", *betas, counted=counted, place=place)
        for betas, counted, place in itertools.product(_BETAS, (1, None, 0, 2), ("outside", "hat", "inside"))
        if place != "hat" or counted is not None
    ]
    return {
        "SGD": [Setting("SGD")],
        "momentum": [Setting("SGD", beta, nesterov=n) for beta in _MOMENTA if beta for n in (False, True)],
        "Adagrad": [Setting("Adagrad", start=start, place="outside") for start in (0.0, 0.1)],
        "Adagrad from another start": [Setting("Adagrad", place="inside")],  # which is its epsilon
        "RMSprop": [Setting("RMSprop", 0.0, beta, place=place) for beta in _SQUARES for place in ("outside", "inside")],
        "Adam": adam,
        "Adam with L2": [s._replace(l2=l2) for s in adam if s.counted == 1 and s.place == "outside" for l2 in _L2],
    }


class _Parts(NamedTuple):
    """What the moves of a setting are made of: `rate first / (root + epsilon / hat) + decay parameters`."""

    first: Any
    root: Any
    """Of the mean of squares; 1 in SGD."""
    hat: Any = 1.0


def _parts(setting: Setting, run: Run) -> _Parts:
    beta1, beta2, m, v = setting.beta1, setting.beta2, 0.0, setting.start
    kept, part = (1.0, 1.0) if setting.family == "Adagrad" else (beta2, 1 - beta2)
    firsts, roots, hats = [], [], []
    for step, g in enumerate(run.gradients + setting.l2 * run.parameters):
        if setting.family == "SGD":
            m = beta1 * m + g
            firsts.append(g + beta1 * m if setting.nesterov else m)
            continue
        m, v = beta1 * m + (1 - beta1) * g, kept * v + part * g**2
        count = None if setting.counted is None else max(step + setting.counted, 1)
        first, second = (1.0, 1.0) if count is None else (1 - beta1**count, 1 - beta2**count)
        firsts.append(m / first)
        roots.append(np.sqrt(v / second))
        hats.append([np.sqrt(second) if setting.place == "hat" else 1.0])
    return _Parts(np.array(firsts), np.array(roots), np.array(hats)) if roots else _Parts(np.array(firsts), 1.0)


def _predicted(setting: Setting, run: Run, parts: _Parts) -> Any:
    if setting.place == "inside":
        size = np.sqrt(parts.root**2 + setting.epsilon)
    else:
        size = parts.root + setting.epsilon / parts.hat
    l2 = _filtered(setting, run) * setting.l2 if setting.family == "SGD" else 0.0
    return setting.rate * (parts.first + l2) / np.maximum(size, 1e-300) + setting.decay * run.parameters


def _filtered(setting: Setting, run: Run) -> Any:
    """The part of L2 in the moves of SGD, whose momentum is linear."""
    return _parts(setting._replace(l2=0.0), run._replace(gradients=run.parameters)).first


def fitted(setting: Setting, run: Run) -> Setting:
    """A setting with the fewest numbers that predict the moves, and its error on the whole run.

    The numbers solve linear equations for half of the elements and all steps but the last, if there are several: the
    others are predicted. An epsilon above all roots of squares is none: the setting would be another optimizer.
    """
    parts = _parts(setting._replace(l2=0.0) if setting.family == "SGD" else setting, run)
    scale = np.abs(run.moves) + run.unit * np.abs(run.parameters)
    best = setting._replace(error=float("inf"))
    wanted, columns = _equations(setting, run, parts)
    for names in _NUMBERS:
        if not set(names) <= set(columns) or best.error <= TELLING_UNITS * run.unit:
            continue
        found: dict[str, Any] = dict(zip(names, _solved(wanted, [columns[name] for name in names]), strict=True))
        found.pop("product", None)
        if setting.place == "inside":
            found["rate"] = float(np.sqrt(max(found["rate"], 0.0)))
        if "l2" in found:
            found["l2"] /= found["rate"] or 1.0
        if min(found.values()) < 0 or found.get("epsilon", 0.0) > np.max(parts.root):
            continue
        numbers = setting._replace(**found)
        left = np.abs(_predicted(numbers, run, parts) - run.moves) / scale
        error = float(np.median(left, axis=1).max())
        if BETTER * error < best.error:
            best = numbers._replace(error=error)
    return best


_NUMBERS = (("rate",), ("rate", "epsilon"), ("rate", "decay"), ("rate", "epsilon", "decay", "product"), ("rate", "l2"))
"""The numbers that are solved for, the fewest first; the product is that of epsilon and decay."""


def _equations(setting: Setting, run: Run, parts: _Parts) -> tuple[Any, dict[str, Any]]:
    """What the numbers of a setting make up, multiplied by the size, and the column of each."""
    moves, p = run.moves, run.parameters
    if setting.family == "SGD":
        columns = {"rate": parts.first, "decay": p}
        return moves, columns | ({"l2": _filtered(setting, run)} if setting.beta1 else {})
    if setting.place == "inside":
        return (moves * parts.root) ** 2, {"rate": parts.first**2, "epsilon": -(moves**2)}
    columns = {"rate": parts.first, "epsilon": -moves / parts.hat, "decay": p * parts.root, "product": p / parts.hat}
    return moves * parts.root, columns


def _solved(wanted: Any, columns: list[Any]) -> list[float]:
    """The coefficients of columns that make up what is wanted, by relative least squares."""
    steps = slice(None, -1 if len(wanted) > 1 else None)
    matrix = np.stack([(column / wanted)[steps, ::2].ravel() for column in columns], 1)
    found = np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)[0]
    left = np.abs(matrix @ found - 1)
    kept = left <= np.quantile(left, 0.8)  # an element whose sign is rounding spoils a mean
    return [float(x) for x in np.linalg.lstsq(matrix[kept], np.ones(int(kept.sum())), rcond=None)[0]]


def settings_of(run: Run, enough: float) -> list[Setting]:
    """The settings of the simplest family that predict a run to within a relative error, best first.

    A family that predicts it much better is preferred: Adagrad is nearly RMSprop at first, or SGD.
    """
    best: list[Setting] = []
    for family, settings in families().items():
        if best and (best[0].error <= TELLING_UNITS * run.unit or family == "Adam with L2"):
            break
        fits = sorted((fitted(setting, run) for setting in settings), key=_error_of)
        if family == "Adam with L2":
            fits = [_searched(fits[0], run)]
        fits = [fit for fit in fits if fit.error <= enough]
        if fits and (not best or BETTER * fits[0].error < best[0].error):
            best = fits
    return [fit for fit in best if fit.error <= max(2 * best[0].error, enough / BETTER)]


def _error_of(setting: Setting) -> float:
    return setting.error


def _searched(setting: Setting, run: Run) -> Setting:
    """A setting with its L2 searched for by thirds, between its neighbours in the table."""
    low, high = np.log(setting.l2) - np.log(4), np.log(setting.l2) + np.log(4)
    for _ in range(20):
        thirds = [low + part * (high - low) / 3 for part in (1, 2)]
        errors = [fitted(setting._replace(l2=float(np.exp(third))), run).error for third in thirds]
        low, high = (low, thirds[1]) if errors[0] < errors[1] else (thirds[0], high)
    return fitted(setting._replace(l2=float(np.exp((low + high) / 2))), run)


def nearest(ones: list[Setting], others: list[Setting]) -> tuple[Setting, Setting]:
    """The two settings, one of each list, that have the most in common; of those, the ones that fit best."""

    def unlike(pair: tuple[Setting, Setting]) -> float:
        one, other = pair
        low, high = sorted((one.epsilon, other.epsilon))
        return sum(x != y for x, y in zip(one[:7], other[:7], strict=True)) + 0.5 * (high > 1.1 * low)

    return min(itertools.product(ones, others), key=unlike)
