"""Which optimizer a run moves its parameters by: settings that predict its moves from its own gradients."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import BETTER, OPTIMIZER_ELEMENTS, TELLING_UNITS

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

    def of(self, elements: Any, batches: int) -> Run:
        """Some elements, and steps that add the gradients of so many batches."""
        steps = slice(0, len(self.moves) // batches * batches, batches)
        g, moves = (sum(x[k:][steps][:, elements] for k in range(batches)) for x in (self.gradients, self.moves))
        return Run(g, self.parameters[steps, elements], moves, self.unit)


class Setting(NamedTuple):
    """An optimizer with its numbers; a number is zero where it has none, or one that is too small to show."""

    family: str
    """ "SGD", "Adagrad", "RMSprop", "Adam" or "Lion"."""
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
    """How far the moves of a run are from the predicted ones, relative to them."""


def _families() -> Iterator[list[Setting]]:
    """The optimizers that are tried, without their numbers, the simplest family first."""
    yield [Setting("SGD")]
    yield [Setting("SGD", beta, nesterov=nesterov) for beta in _MOMENTA for nesterov in (0, 1)]
    yield [Setting("Adagrad", start=start) for start in (0.0, 0.1)]
    yield [Setting("Adagrad", place=INSIDE)]  # from another start, which is its epsilon
    yield [Setting("RMSprop", 0.0, beta, place=place) for beta in _SQUARES for place in (OUTSIDE, INSIDE)]
    adam = itertools.product(_BETAS, (1, -1, 0, 2), PLACES)
    yield [Setting("Adam", *betas, 0, counted, place) for betas, counted, place in adam if counted >= 0 or place != HAT]
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
    return m / first, np.sqrt(v / second), one * np.sqrt(second) if s.place == HAT else one


def _predicted(s: Setting, run: Run) -> Setting:
    """A setting with its error on the whole run."""
    first, root, hat = _parts(s, run)
    divisor = np.sqrt(root**2 + s.epsilon) if s.place == INSIDE else root + s.epsilon / hat
    moves = np.array(s.rates)[:, None] * first / np.maximum(divisor, 1e-300) + s.decay * run.parameters
    size = np.abs(run.moves) + run.unit * np.abs(run.parameters)  # a parameter that starts at zero may stay there
    quantile = 0.95 if s.family == "Lion" else 0.5  # of nearly all signs, of most elements else
    left = np.abs(moves - run.moves) / np.maximum(size, 1e-300)
    small = np.argsort(np.abs(run.gradients[0]))[:OPTIMIZER_ELEMENTS]  # all others may be signs by a clip by value
    is_near = np.median(left[0, small]) < 1 / BETTER
    return s._replace(error=float(np.quantile(left, quantile, axis=1).max()) if is_near else np.inf)


_LINEAR = (("rate",), ("rate", "decay"), ("rate", "l2"))
_ADAPTIVE = (("rate",), ("rate", "epsilon"), ("rate", "decay"), ("rate", "epsilon", "decay"))
"""The numbers that are solved for, the fewest first."""


def _fitted(s: Setting, run: Run) -> Setting:
    """A setting with the fewest numbers that predict the moves.

    The numbers solve linear equations for half of the elements and all steps but the last, if there are several: the
    others are predicted. An epsilon above all roots of squares is none: the setting would be another optimizer.
    """
    best, moves, is_linear, power = s, run.moves, s.family in ("SGD", "Lion"), 1 + (s.place == INSIDE)
    first, root, hat = _parts(s, run)  # under the root, the squares of moves are linear in epsilon
    columns = {"rate": first**power, "epsilon": -(moves**power) / hat, "decay": run.parameters * root}
    columns |= {"l2": _parts(s, run._replace(gradients=run.parameters))[0]} if is_linear else {}
    for names in _LINEAR if is_linear else _ADAPTIVE[: 6 - 2 * power]:
        found: dict[str, Any] = dict(
            zip(names, _solved((moves * root) ** power, [columns[name] for name in names]), strict=True)
        )
        if min(found.values()) >= 0 and found.get("epsilon", 0.0) <= np.max(root):
            rate = found.pop("rate") ** (1 / power)
            if "l2" in found:
                found["l2"] /= rate or 1.0
            new = _predicted(s._replace(rates=(rate,), **found), run)
            if BETTER * new.error < best.error:
                best = new._replace(place=new.place if new.epsilon else OUTSIDE)
        if best.error <= TELLING_UNITS * run.unit:
            break
    return best


def _solved(wanted: Any, columns: list[Any]) -> list[float]:
    """The coefficients of columns that make up what is wanted, by relative least squares."""
    steps = slice(None, -1 if len(wanted) > 1 else None)
    matrix = np.stack([(column / wanted)[steps, ::2].ravel() for column in columns], 1)
    found = np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)[0]
    left = np.abs(matrix @ found - 1)
    kept = left <= np.quantile(left, 0.8)  # an element whose sign is rounding spoils a mean
    return np.linalg.lstsq(matrix[kept], np.ones(int(kept.sum())), rcond=None)[0].tolist()


def _scheduled(s: Setting, run: Run) -> Setting:
    """A setting with a rate of each step."""
    first, root, _ = _parts(s, run)
    rates = np.median((run.moves * root / first)[:, ::2], axis=1)
    return _predicted(s._replace(rates=tuple(rates.tolist())), run)


_error = operator.attrgetter("error")


def settings_of(run: Run, enough: float) -> list[Setting]:
    """The settings of the simplest family that predict a run to within a relative error, best first.

    A family that predicts it much better is preferred: Adagrad is nearly RMSprop at first, or SGD. Where no family does
    with one rate, L2 in Adam and rates that change from step to step are tried.
    """
    best: list[Setting] = []
    families = list(_families())

    def fitting(fits: Iterable[Setting]) -> list[Setting]:
        return sorted((fit for fit in fits if fit.error <= enough), key=_error)

    usual = [s for s in itertools.chain(*families) if s.place == OUTSIDE and s.counted == (s.family == "Adam") * 2 - 1]
    if run.steps.all():
        for settings in families:
            fits = fitting(_fitted(s, run) for s in settings)
            if fits and (not best or BETTER * fits[0].error < best[0].error):
                best = fits
            if best and best[0].error <= TELLING_UNITS * run.unit:
                break
        best = best or fitting([_with_l2([s for s in usual if s.family == "Adam"], run)])
    if not best and run.steps.sum() > 2:
        best = fitting(_scheduled(s, run) for s in usual)
    return [fit for fit in best if fit.error <= max(2 * best[0].error, enough / BETTER)]


def _with_l2(settings: list[Setting], run: Run) -> Setting:
    """The best setting with L2, which is searched for among ever nearer numbers, of ever fewer settings."""
    best, spread = [s._replace(l2=10.0**-3.3) for s in settings], 10.0**2.8
    for left in (8, 4, 2, 1, 1, 1, 1, 1, 1):
        near = [(s, float(s.l2 * spread**x)) for s in best for x in np.linspace(-1, 1, 11)]
        fits = [_fitted(Setting("Adam", *s[1:7], l2=l2), run) for s, l2 in near]
        each = {s[:7]: s for s in sorted(fits, key=_error, reverse=True)}  # with its best number
        best, spread = sorted(each.values(), key=_error)[:left], spread**0.3
    return best[0]
