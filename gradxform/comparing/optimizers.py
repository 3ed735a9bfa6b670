"""Which optimizer a run moves its parameters by: settings that predict its moves from its own gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

BETTER = 8.0
"""How many times nearer a prediction must be to be preferred to a simpler one."""
_MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
_BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999), (0.8, 0.999), (0.5, 0.999), (0.0, 0.999))
_SQUARES = (0.9, 0.95, 0.99, 0.999)
_EPSILONS = tuple(10.0**power for power in range(-10, 1))
_RATES = tuple(digit * 10.0**power for power in range(-6, 0) for digit in (1, 3))
_REFINED, _FEW = 12, 256
"""Settings whose numbers are searched for, the best of the table, and elements that are enough to search by."""
_SIMPLE = ("SGD", "RMSprop", "Adam")
"""The families, the simplest first: with a large epsilon, all are SGD."""


class Run(NamedTuple):
    """Elements of one run over steps that follow each other from its first: arrays of steps by elements."""

    gradients: Any
    parameters: Any
    moves: Any
    """What is subtracted from the parameters."""
    unit: float
    """Half the distance of one to the next number of the parameters."""

    def of(self, elements: Any) -> Run:
        """Some of the elements."""
        return Run(self.gradients[:, elements], self.parameters[:, elements], self.moves[:, elements], self.unit)


class Setting(NamedTuple):
    """An optimizer with its numbers."""

    family: str
    """ "SGD", "Adam" or "RMSprop"."""
    beta1: float = 0.0
    beta2: float = 0.0
    nesterov: bool = False
    counted: int | None = None
    """What the bias correction counts the first step as; None without a correction."""
    place: str = ""
    """Where epsilon is added: "outside" of the root, "inside", or outside of the one without correction ("hat")."""
    epsilon: float = 0.0
    l2: float = 0.0
    """The part of the parameters that is added to the gradient."""
    rate: float = 0.0
    decay: float = 0.0
    """The part of the parameters that is subtracted at each step, beside the gradient."""


def table() -> Iterator[Setting]:
    """The optimizers that are tried, without their numbers."""
    yield from (Setting("SGD", beta, nesterov=n) for beta in _MOMENTA for n in ((False, True) if beta else (False,)))
    for (beta1, beta2), counted, place in itertools.product(_BETAS, (1, None, 0, 2), ("outside", "hat", "inside")):
        if place != "hat" or counted is not None:
            yield Setting("Adam", beta1, beta2, counted=counted, place=place)
    for beta2, place in itertools.product(_SQUARES, ("outside", "inside")):
        yield Setting("RMSprop", 0.0, beta2, place=place)


def direction(setting: Setting, run: Run) -> Any:
    """The moves at a learning rate of 1, without decay."""
    gradients = run.gradients + setting.l2 * run.parameters if setting.l2 else run.gradients
    beta1, beta2, m, v, found = setting.beta1, setting.beta2, 0.0, 0.0, []
    for step, g in enumerate(gradients):
        if setting.family == "SGD":
            m = beta1 * m + g
            found.append(g + beta1 * m if setting.nesterov else m)
            continue
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        count = None if setting.counted is None else max(step + setting.counted, 1)
        first, second = (1.0, 1.0) if count is None else (1 - beta1**count, 1 - beta2**count)
        if setting.place == "inside":
            size = np.sqrt(v / second + setting.epsilon)
        else:
            size = np.sqrt(v / second) + setting.epsilon / (np.sqrt(second) if setting.place == "hat" else 1.0)
        found.append(m / first / np.maximum(size, 1e-300))
    return np.array(found)


def fitted(setting: Setting, run: Run) -> tuple[float, Setting]:
    """The error of a setting with its best rate, and the decay that makes it much better, if one does."""
    moves, parameters = run.moves, run.parameters
    scale = np.abs(moves) + run.unit * np.abs(parameters)
    one = direction(setting, run) / scale
    columns = np.stack([one.ravel(), (parameters / scale).ravel()], 1)
    wanted = (moves / scale).ravel()

    def error(rate: float, decay: float) -> float:
        left = np.abs(columns @ (rate, decay) - wanted).reshape(moves.shape)
        return float(np.median(left, axis=1).max())

    rate = float(np.median(wanted[columns[:, 0] != 0] / columns[:, 0][columns[:, 0] != 0])) if one.any() else 0.0
    plain = error(rate, 0.0), setting._replace(rate=rate)
    if plain[0] <= BETTER * run.unit:
        return plain
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    decayed = error(*both), setting._replace(rate=float(both[0]), decay=float(both[1]))
    return decayed if BETTER * decayed[0] < plain[0] and decayed[1].decay > 0 else plain


def settings_of(run: Run, enough: float) -> list[tuple[float, Setting]]:
    """The settings that predict a run to within a relative error, best first; empty if none does."""
    few = run.of(slice(None, None, max(1, run.moves.shape[1] // _FEW)))
    found = _searched([s for setting in table() for s in _with_epsilons(setting)], few, "epsilon")
    if found[0][0] > enough:
        usual = [s for s in table() if s.family == "SGD" or (s.counted == 1 and s.place == "outside")]
        tried = [s._replace(epsilon=1e-8 if s.place else 0.0, l2=rate) for s in usual for rate in _RATES]
        found = _searched(tried, few, "l2")
    found = sorted((fitted(setting, run) for error, setting in found if error <= enough), key=_error)
    return [(error, s) for error, s in found if error <= min(enough, max(2 * found[0][0], enough / BETTER))]


def _error(fit: tuple[float, Setting]) -> float:
    return fit[0]


def _searched(settings: Iterable[Setting], run: Run, field: str) -> list[tuple[float, Setting]]:
    """The settings by their errors, the best with the number of a field searched for."""
    found = sorted((fitted(setting, run) for setting in settings), key=_error)
    refined = [(_refined(setting, run, field), fitted(setting, run)[0]) for setting in _distinct(found)[:_REFINED]]
    return sorted(found + [better for better, error in refined if 2 * better[0] < error], key=_error)


def _with_epsilons(setting: Setting) -> Iterable[Setting]:
    return (setting._replace(epsilon=e) for e in _EPSILONS) if setting.place else (setting,)


def _distinct(found: Iterable[tuple[float, Setting]]) -> list[Setting]:
    """The best setting of each kind."""
    kinds: dict[Any, Setting] = {}
    for _, setting in found:
        kinds.setdefault(setting[:6], setting)
    return list(kinds.values())


def _refined(setting: Setting, run: Run, field: str) -> tuple[float, Setting]:
    """A setting with the number of a field searched for between its neighbours in the table, by thirds."""
    if not getattr(setting, field):
        return fitted(setting, run)
    low, high = (np.log(getattr(setting, field)) + side * np.log(10.0) for side in (-1, 1))
    for _ in range(24):
        thirds = [low + part * (high - low) / 3 for part in (1, 2)]
        first, second = (fitted(_with(setting, field, x), run)[0] for x in thirds)
        low, high = (low, thirds[1]) if first < second else (thirds[0], high)
    return fitted(_with(setting, field, (low + high) / 2), run)


def _with(setting: Setting, field: str, log: float) -> Setting:
    value = float(np.exp(log))
    return setting._replace(epsilon=value) if field == "epsilon" else setting._replace(l2=value)


def alike(ones: Iterable[tuple[float, Setting]], others: Iterable[tuple[float, Setting]]) -> tuple[Setting, Setting]:
    """The two settings, one of each list, that have the most in common; of those, the ones that fit best."""
    pairs = itertools.product(ones, others)
    (_, one), (_, other) = min(pairs, key=lambda pair: (_unlike(pair[0][1], pair[1][1]), _rank(*pair)))
    return one, other


def is_loose(setting: Setting, fits: Iterable[tuple[float, Setting]]) -> bool:
    """Whether the least epsilon fits as well, so that it is too small to be told."""
    return any(s[:3] == setting[:3] and s.epsilon <= _EPSILONS[0] for _, s in fits if setting.place)


def _rank(one: tuple[float, Setting], other: tuple[float, Setting]) -> tuple[int, float]:
    return _SIMPLE.index(one[1].family), one[0] + other[0]


def _unlike(one: Setting, other: Setting) -> float:
    return sum(x != y for x, y in zip(one[:6], other[:6], strict=True)) + 0.5 * (
        abs(np.log(max(one.epsilon, 1e-12) / max(other.epsilon, 1e-12))) > 0.1
    )
