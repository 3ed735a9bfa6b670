"""Which optimizer a run moves its parameters by: settings that predict its moves from its own gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import BETTER, TELLING_UNITS

_MOMENTA = (0.5, 0.8, 0.9, 0.95, 0.99)
_BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.999), (0.8, 0.999), (0.5, 0.999), (0.0, 0.999))
_LION = ((0.9, 0.99), (0.95, 0.98), (0.9, 0.9), (0.0, 0.0))
"""Of Lion, of signs of a mean, and of signs alone."""
_SQUARES = (0.9, 0.95, 0.99, 0.999)
PLACES = OUTSIDE, HAT, INSIDE = range(3)
"""Where epsilon is added: outside of the root, outside of the root without bias correction, or under the root."""


class Run(NamedTuple):
    """Elements of one run over steps that follow each other from its first: arrays of steps by elements."""

    gradients: Any
    parameters: Any
    moves: Any
    """What is subtracted from the parameters."""
    unit: float
    """Half the distance of one to the next number of the parameters."""

    @property
    def steps(self) -> Any:
        """Whether any parameter moves at each recorded step."""
        return self.moves.any(1)

    @property
    def terms(self) -> Any:
        """How large the terms of the moves are, which may cancel: as the largest move up to then."""
        size = np.abs(self.moves)
        return np.maximum(np.maximum.accumulate(size), self.unit * size.max())

    def of(self, elements: Any, batches: int) -> Run:
        """Some elements, and steps that add the gradients of so many batches."""
        steps = slice(0, len(self.moves) // batches * batches, batches)
        g, moves = (sum(x[k:][steps][:, elements] for k in range(batches)) for x in (self.gradients, self.moves))
        return Run(g, self.parameters[steps, elements], moves, self.unit)


class Setting(NamedTuple):
    """An optimizer with its numbers; a number is zero where it has none, or one that is too small to show."""

    family: str
    """ "SGD", "EMA or RAdam" (which divides by nothing at first), "Adagrad", "RMSprop", "Adam" or "Lion"."""
    beta1: float = 0.0
    beta2: float = 0.0
    nesterov: int = 0
    counted: int = -1
    """What the bias correction counts the first step as; -1 without a correction."""
    place: int = OUTSIDE
    start: float = 0.0
    """What the sum of squares of Adagrad begins with."""
    epsilon: float = 0.0
    decay: float = 0.0
    """The part of the parameters that is subtracted at each step, beside the gradient."""
    l2: float = 0.0
    """The part of the parameters that is added to the gradient."""
    rates: tuple[float, ...] = ()
    """One, or that of each step, where they differ."""
    error: float = float("inf")
    """How far a move is at most from its prediction, relative to its terms and beyond the rounding of parameters."""

    def cost(self, unit: float) -> float:
        """The error, where it is above rounding, times what each number that was fitted must make it smaller by."""
        numbers = len(self.rates) + sum(number > 0 for number in (self.epsilon, self.decay, self.l2))
        return max(self.error, TELLING_UNITS * unit) * BETTER**numbers


def _families() -> Iterator[list[Setting]]:
    """The optimizers that are tried, the simplest first; those of a list differ from the second step on alone."""
    yield [Setting("SGD")]
    yield [Setting("SGD", beta, nesterov=nesterov) for beta in _MOMENTA for nesterov in (0, 1)]
    yield [Setting("EMA or RAdam", beta, counted=1) for beta in _MOMENTA]
    yield from ([Setting("Adagrad", start=start)] for start in (0.0, 0.1))
    yield [Setting("Adagrad", place=INSIDE)]  # from another start, which is its epsilon
    yield [Setting("RMSprop", 0.0, beta, place=place) for beta in _SQUARES for place in (OUTSIDE, INSIDE)]
    for place in PLACES:
        adam = itertools.product(_BETAS, (1, 0, 2) if place == HAT else (1, -1, 0, 2))
        yield [Setting("Adam", *betas, 0, counted, place) for betas, counted in adam if betas[0] or counted == 1]
    yield [Setting("Lion", *betas) for betas in _LION]


def _running(values: Any, keep: float, add: float, start: float = 0.0) -> Any:
    """A running sum before the first step and after each: a part of what it was, and a part of the value."""
    start = start + 0.0 * values[0]
    return np.array([*itertools.accumulate(values, lambda total, x: keep * total + add * x, initial=start)])


def _parts(s: Setting, run: Run) -> tuple[Any, Any, Any]:
    """What moves are made of: `rate first / (root + epsilon / hat) + decay parameters`; root and hat are 1 in SGD."""
    g = run.gradients + s.l2 * run.parameters
    one = np.ones_like(g)
    if s.family == "SGD":
        m = _running(g, s.beta1, 1.0)[1:]
        return g + s.beta1 * m if s.nesterov else m, one, one
    if s.family == "Lion":
        return np.sign(s.beta1 * _running(g, s.beta2, 1 - s.beta2)[:-1] + (1 - s.beta1) * g), one, one
    keep, add = (1.0, 1.0) if s.family == "Adagrad" else (s.beta2, 1 - s.beta2)
    m, v = _running(g, s.beta1, 1 - s.beta1)[1:], _running(g**2, keep, add, s.start)[1:]
    count: Any = np.maximum(np.arange(len(g)) + s.counted, 1)[:, None] if s.counted >= 0 else np.inf
    first, second = 1 - s.beta1**count, 1 - s.beta2**count
    root = one if s.family == "EMA or RAdam" else np.sqrt(v / second)
    return m / first, root, one * np.sqrt(second) if s.place == HAT else one


def _predicted(s: Setting, run: Run, part: float) -> Setting:
    """A setting with its error on the whole run, on a part of all moves."""
    first, root, hat = _parts(s, run)
    divisor = np.sqrt(root**2 + s.epsilon) if s.place == INSIDE else root + s.epsilon / hat
    moves = np.array(s.rates)[:, None] * first / np.maximum(divisor, 1e-300) + s.decay * run.parameters
    left = np.abs(moves - run.moves) - 2 * run.unit * np.abs(run.parameters)
    return s._replace(error=max(0.0, float(np.quantile(left / run.terms, part))))


_UNDIVIDED = ("SGD", "EMA or RAdam", "Lion")
_LINEAR: tuple[tuple[str, ...], ...] = (), ("decay",), ("l2",)
_DIVIDED: tuple[tuple[str, ...], ...] = (), ("epsilon",), ("epsilon", "decay"), ("decay",)
_ADAPTIVE = {OUTSIDE: _DIVIDED, HAT: _DIVIDED[1:3], INSIDE: _DIVIDED[1:2]}
"""The numbers that are solved for, beside rates."""


def _fits(s: Setting, run: Run, rates: Any, part: float = 1.0) -> Iterator[Setting]:
    """A setting with some of its numbers, and how well it predicts the moves.

    The numbers are solved for in half of the elements and all steps but the last, if there are several: the others are
    predicted. An epsilon above all roots of squares is none: the setting would be another optimizer.

    Args:
        s: the setting without numbers.
        run: the moves to predict.
        rates: a row for each rate, with a one at the steps that have it.
        part: the part of all moves that the error is the largest of.
    """
    (first, root, hat), power = _parts(s, run), 1 + (s.place == INSIDE)
    l2 = _parts(s, run._replace(gradients=run.parameters))[0] if s.family in _UNDIVIDED else first
    rounding = (np.abs(run.parameters) + TELLING_UNITS * run.terms) * run.terms ** (power - 1)
    ways = _LINEAR if s.family in _UNDIVIDED else _ADAPTIVE[s.place]
    known = slice(None, -1 if len(rates) < len(first) else None)
    for names in ways if len(rates) == 1 else ways[:2]:
        found: dict[str, Any] = {"epsilon": 0.0}
        for _ in range(3 if "epsilon" in names else 1):  # epsilon times decay is as it was found before
            scale = (root**power + max(found["epsilon"], 0.0) / hat) * rounding
            moves = run.moves - found.get("decay", 0.0) * run.parameters
            columns = {"epsilon": -(moves**power) / hat, "decay": run.parameters * root, "l2": l2}
            terms = ((run.moves * root) ** power, *(rates * first**power), *(columns[name] for name in names))
            wanted, *rows = ((term / scale)[known, ::2].ravel() for term in terms)
            (*numbers,) = np.linalg.lstsq(np.stack(rows, 1), wanted, rcond=None)[0].tolist()
            found = {name: numbers.pop() for name in reversed(names)}
        numbers = [(abs(rate) > run.unit * max(numbers)) * rate for rate in numbers]
        if min(*numbers, *found.values(), 0.0) >= 0 and found.get("epsilon", 0.0) <= np.max(root) ** power:
            if "l2" in found:
                found["l2"] /= numbers[0] or 1.0
            yield _predicted(s._replace(rates=tuple(rate ** (1 / power) for rate in numbers), **found), run, part)


def settings_of(run: Run, enough: float) -> list[Setting]:
    """The settings that predict all moves of a run to within a relative error, and none much better or more simply.

    Where none does, rates of each step are tried, and L2 in Adam.
    """
    count = len(run.moves)
    settings = [s for alike in _families() for s in alike[: None if count > 1 else 1]]
    usual = [s for s in settings if s.place == OUTSIDE and s.counted == (s.family == "Adam") * 2 - 1]
    one, each = np.ones((1, count, 1)), np.eye(count)[:, :, None]

    def fitting(settings: list[Setting], rates: Any) -> list[Setting]:
        return [fit for s in settings for fit in _fits(s, run, rates) if fit.error <= enough]

    fits = fitting(settings, one) if run.steps.all() else []
    if not fits and run.steps.sum() > 2:
        fits = fitting(usual, each)
    if not fits and run.steps.all():
        fits = fitting([_with_l2([s for s in usual if s.family == "Adam"], run, one)], one)
    fits.sort(key=lambda fit: fit.cost(run.unit))
    return [fit for fit in fits if fit.cost(run.unit) < BETTER * fits[0].cost(run.unit)]


def _with_l2(settings: list[Setting], run: Run, rates: Any) -> Setting:
    """The best setting with L2, which is searched for among ever nearer numbers, of ever fewer settings."""
    best, spread = [s._replace(l2=10.0**-3.3) for s in settings], 10.0**2.8
    for left in (8, 8, 4, 2, *[1] * 8):
        near = [Setting("Adam", *s[1:7], l2=float(s.l2 * spread**x)) for s in best for x in np.linspace(-1, 1, 11)]
        fits = [next(_fits(s, run, rates, 0.8), s) for s in near]
        each = {s[:7]: s for s in sorted(fits, key=lambda fit: fit.error, reverse=True)}  # with its best number
        best, spread = sorted(each.values(), key=lambda fit: fit.error)[:left], spread**0.3
    return best[0]
