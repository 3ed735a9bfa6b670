"""Which optimizer a run moves its parameters by: settings that predict its moves from its own gradients."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator
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
    batches: int = 1
    """The recorded steps whose gradients are added for one step of the optimizer."""

    @property
    def steps(self) -> Any:
        """Whether any parameter moves at each recorded step."""
        return self.moves.any(1)

    def of(self, elements: Any, batches: int) -> Run:
        """Some elements, and steps that add the gradients of so many batches."""
        count = len(self.moves) // batches
        each = [x[: count * batches, elements].reshape(count, batches, -1) for x in self[:3]]
        return Run(each[0].sum(1), each[1][:, 0], each[2].sum(1), self.unit, batches)


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


def _parts(setting: Setting, run: Run) -> tuple[Any, Any, Any]:
    """What moves are made of: `rate first / (root + epsilon / hat) + decay parameters`; root and hat are 1 in SGD."""
    family, beta1, beta2 = setting.family, setting.beta1, setting.beta2
    m: Any = 0.0
    v: Any = setting.start
    kept, part = (1.0, 1.0) if family == "Adagrad" else (beta2, 1 - beta2)
    found = []
    for step, g in enumerate(run.gradients + setting.l2 * run.parameters):
        one = np.ones_like(g)
        mean: Any = beta1 * m + (1 - beta1) * g
        if family == "SGD":
            m = beta1 * m + g
            found.append((g + beta1 * m if setting.nesterov else m, one, one))
            continue
        if family == "Lion":
            m = beta2 * m + (1 - beta2) * g
            found.append((np.sign(mean), one, one))
            continue
        m, v = mean, kept * v + part * g**2
        count = max(step + setting.counted, 1) if setting.counted >= 0 else np.inf
        first, second = 1 - beta1**count, 1 - beta2**count
        found.append((m / first, np.sqrt(v / second), one * np.sqrt(second) if setting.place == HAT else one))
    firsts, roots, hats = (np.array(arrays) for arrays in zip(*found, strict=True))
    return firsts, roots, hats


Numbers = tuple[str, ...]
_LINEAR: tuple[Numbers, ...] = ("rate",), ("rate", "decay"), ("rate", "l2")
_ADAPTIVE: tuple[Numbers, ...] = ("rate",), ("rate", "epsilon"), ("rate", "decay")
"""The numbers that are solved for, the fewest first."""


def _fitted(setting: Setting, run: Run, numbers: Iterable[Numbers] = ()) -> Setting:
    """A setting with the fewest numbers that predict the moves, and its error on the whole run.

    The numbers solve linear equations for half of the elements and all steps but the last, if there are several: the
    others are predicted. An epsilon above all roots of squares is none: the setting would be another optimizer.
    """
    best, moves, p, inside = setting, run.moves, run.parameters, setting.place == INSIDE
    first, root, hat = _parts(setting, run)
    of_l2 = _parts(setting, run._replace(gradients=p))[0] if setting.family == "SGD" else 0.0
    columns = {"rate": first, "epsilon": -moves / hat, "decay": p * root, "l2": of_l2}
    wanted = moves * root
    if inside:
        wanted, columns = wanted**2, {"rate": first**2, "epsilon": -(moves**2)}
    size = np.abs(moves) + run.unit * np.abs(p)  # a parameter that starts at zero may stay there
    usual = (_LINEAR if setting.beta1 else _LINEAR[:2]) if setting.family in ("SGD", "Lion") else _ADAPTIVE
    for names in numbers or usual:
        if best.error <= TELLING_UNITS * run.unit or not {*names} <= {*columns, "rates"}:
            continue
        found: dict[str, Any] = {}
        if names == ("rates",):
            rates = np.median((wanted / first)[:, ::2], axis=1)
        else:
            found = dict(zip(names, _solved(wanted, [columns[name] for name in names]), strict=True))
            if min(found.values()) < 0 or found.get("epsilon", 0.0) > np.max(root):
                continue
            rates = np.array([found.pop("rate") ** (0.5 if inside else 1.0)])
        if "l2" in found:
            found["l2"] /= rates[0] or 1.0
        new = setting._replace(rates=tuple(rates.tolist()), **found)
        divisor = np.sqrt(root**2 + new.epsilon) if inside else root + new.epsilon / hat
        moved = first + (new.l2 * of_l2 if "l2" in found else 0.0)
        left = np.abs(rates[:, None] * moved / np.maximum(divisor, 1e-300) + new.decay * p - moves)
        quantile = 0.95 if setting.family == "Lion" else 0.5  # of nearly all signs, of most elements else
        error = float(np.quantile(left / np.maximum(size, 1e-300), quantile, axis=1).max())
        if BETTER * error < best.error:
            best = new._replace(error=error, place=new.place if new.epsilon else OUTSIDE)
    return best


def _solved(wanted: Any, columns: list[Any]) -> list[float]:
    """The coefficients of columns that make up what is wanted, by relative least squares."""
    steps = slice(None, -1 if len(wanted) > 1 else None)
    matrix = np.stack([(column / wanted)[steps, ::2].ravel() for column in columns], 1)
    found = np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)[0]
    left = np.abs(matrix @ found - 1)
    kept = left <= np.quantile(left, 0.8)  # an element whose sign is rounding spoils a mean
    return [float(x) for x in np.linalg.lstsq(matrix[kept], np.ones(int(kept.sum())), rcond=None)[0]]


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

    usual = [
        s for s in itertools.chain(*families) if s.place == OUTSIDE and s.counted == (1 if s.family == "Adam" else -1)
    ]
    if run.steps.all():
        for settings in families:
            fits = fitting(_fitted(setting, run) for setting in settings)
            if fits and (not best or BETTER * fits[0].error < best[0].error):
                best = fits
            if best and best[0].error <= TELLING_UNITS * run.unit:
                break
        best = best or fitting([_with_l2([s for s in usual if s.family == "Adam"], run)])
    if not best and run.steps.sum() > 2:
        best = fitting(_fitted(s, run, [("rates",)]) for s in usual)
    return [fit for fit in best if fit.error <= max(2 * best[0].error, enough / BETTER)]


def _with_l2(settings: list[Setting], run: Run) -> Setting:
    """The best setting with L2, which is searched for among ever nearer numbers, of ever fewer settings."""
    best, spread = [s._replace(l2=10.0**-3.3) for s in settings], 10.0**2.8
    for left in (8, 4, 2, 1, 1, 1, 1, 1, 1):
        near = [(s, float(s.l2 * spread**x)) for s in best for x in np.linspace(-1, 1, 11)]
        fits = [_fitted(s._replace(l2=l2, epsilon=0.0, decay=0.0, error=float("inf")), run) for s, l2 in near]
        each = {s[:7]: s for s in sorted(fits, key=_error, reverse=True)}  # with its best number
        best, spread = sorted(each.values(), key=_error)[:left], spread**0.3
    return best[0]
