"""Limits that follow the norms of the steps before."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gradxform.core import arguments, extended
from gradxform.core import state as stateful
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.flat import Flat, Norm, clip_coefficient
from gradxform.core.keeping import keeping
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array, formulas


class PercentileState(NamedTuple):
    """The state of `clip_percentile`: how many norms each row holds, and the last ones, in a ring."""

    count: Any
    history: Any


@factory
def clip_percentile(percentile: Scalar, window: int = 1000, *, per_leaf: bool = False) -> GradientTransformation:
    r"""Limit the norm of all gradients together to a percentile of its last values, this one among them.

    .. math:: g_i \leftarrow g_i \min(1, c / n_t), \quad c = P_p(n_{t-w+1}, \ldots, n_t)

    The percentile lies between two norms as `numpy.percentile` has it. A norm that is not finite is not kept, and makes
    the gradients NaN. Gradients within the limit come back bit by bit.

    Args:
        percentile: p, from 0 to 100; a number, a 0-d array or a schedule.
        window: how many norms w are kept, in float32 (float64 for float64 gradients).
        per_leaf: whether each gradient has norms and a limit of its own.

    Returns:
        A transformation of gradients of any shape and floating or complex dtype; its state is of the window's size.

    Raises:
        TypeError: a percentile that is no number, a window that is no int; on use, an integer gradient.
        ValueError: a percentile outside of [0, 100], a window below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_percentile(50.0, window=10)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 3.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates
        [array([2.])]

    References:
        Seetharaman, Wichern, Pardo and Le Roux, AutoClip: adaptive gradient clipping for source separation networks,
        2020.
    """
    p = arguments.limit("clip_percentile", "percentile", percentile)
    if arguments.static(percentile) and not p <= 100:
        raise ValueError(f"clip_percentile: percentile must be between 0 and 100, got {percentile!r}")
    length = arguments.integer("clip_percentile", "window", window, 1)

    def rule(g: Flat, state: PercentileState, _: Context) -> tuple[Flat, PercentileState]:
        norm, exact = _observed(g, state.count, per_leaf)
        new, dtype = extended.rounded(g.backend, exact), g.backend.dtype(state.history)
        history = stateful.stored(
            g, g.backend.compute(_with_norm, state.history, state.count, new, window=length, dtype=dtype), state.history
        )
        count = stateful.stored(g, g.backend.compute(_counted, state.count, new, dtype=dtype), state.count)
        share, finite = stateful.between(g, p, 0.0, 100.0), g.backend.compute(formulas.is_finite, exact)
        limits = g.backend.compute(_percentile, history, count, finite, share, window=length, dtype=dtype)
        return g.scaled(clip_coefficient(norm, _for_leaves(g, limits, per_leaf))), PercentileState(count, history)

    def start(params: Any) -> PercentileState:
        fresh = stateful.Fresh(params)
        rows = fresh.rows(per_leaf)
        return PercentileState(fresh.numbers((rows,), "int32"), fresh.numbers((rows, length)))

    return keeping("clip_percentile", PercentileState, rule, start)


def _observed(g: Flat, count: Array, per_leaf: bool) -> tuple[Norm, Array]:
    """The norms, and as rows of a state."""
    norm = g.norms() if per_leaf else g.global_norm()
    return norm, stateful.by_row(g, norm, count.shape[0] if per_leaf else 1)


def _for_leaves(g: Flat, rows: Array, per_leaf: bool) -> Array:
    """The limits of rows as one for all leaves, or one a leaf."""
    return g.backend.compute(formulas.take, rows, index=stateful.rows_of(g) if per_leaf else 0)


_MOST = {"float32": float(np.nextafter(2.0**128 - 2.0**103, 0.0)), "float64": float(np.finfo(np.float64).max)}
"""What rounds to the largest number of a dtype."""


def _column(xp: Any, rows: Array) -> Array:
    """One number a row."""
    return xp.reshape(rows, (-1, 1))


def _held(xp: Any, norm: Array, dtype: str) -> Array:
    """Whether a dtype has a finite number for a norm."""
    return norm <= _MOST[dtype]


def _counted(xp: Any, count: Array, norm: Array, *, dtype: str) -> Array:
    return xp.where(_held(xp, norm, dtype) & (count < 2.0**31 - 1), count + 1.0, count)


def _with_norm(xp: Any, history: Array, count: Array, norm: Array, *, window: int, dtype: str) -> Array:
    """The ring with a norm at its place; the counter goes on, so that the place is what is left of it."""
    place = count - window * xp.floor(count / window)
    here = formulas.equal(xp.arange(window), _column(xp, place)) & _column(xp, _held(xp, norm, dtype))
    return xp.where(here, _column(xp, norm), history)


def _percentile(
    xp: Any, history: Array, count: Array, finite: Array, percentile: Array, *, window: int, dtype: str
) -> Array:
    """As `numpy.percentile` of those numbers of each row that are filled; zero for a norm that is not finite."""
    filled = xp.where(count < window, count, window)
    numbers = xp.arange(window)
    given = xp.stop_gradient(xp.where(numbers < _column(xp, filled), history, math.inf))
    ordered = xp.float64(xp.sort(xp.cast(given, dtype)))  # a TPU sorts no 64 bits
    place = percentile / 100.0 * (filled - 1.0)
    below = xp.floor(place)
    low, high = (
        xp.sum(xp.where(formulas.equal(numbers, _column(xp, at)), ordered, 0.0), axis=-1)
        for at in (below, xp.where(below < place, below + 1.0, below))
    )
    limits = xp.where(filled > 0.0, low + (high - low) * (place - below), math.inf)
    return xp.where(finite > 0.0, limits, 0.0)


class ZScoreState(NamedTuple):
    """The state of `clip_zscore`: how many norms each row has seen, and their mean and deviation."""

    count: Any
    average: Any
    deviation: Any


@factory
def clip_zscore(
    threshold: Scalar = 2.5, decay: Scalar = 0.97, warmup: int = 25, *, per_leaf: bool = False
) -> GradientTransformation:
    r"""Limit the norm of all gradients together where it is a spike: far above the moving average of its last values.

    .. math:: g_i \leftarrow g_i \, c / n \text{ where } z = (n - \mu) / \sigma > z_0,
        \quad c = \mu + \sigma z_0^2 / z

    The mean and the variance are those of the first `warmup` norms, during which nothing is limited; then moving
    averages with what the norm was limited to. A norm that is not finite changes neither, and makes the gradients NaN.
    Gradients within the limit come back bit by bit.

    Args:
        threshold: the deviations :math:`z_0` above the mean from which on a norm is a spike; a number, a 0-d array or a
            schedule.
        decay: the share of the old mean and variance in the new ones, from 0 to 1.
        warmup: how many norms the first mean and variance are taken of, at least 1.
        per_leaf: whether each gradient has statistics of its own.

    Returns:
        A transformation of gradients of any shape and floating or complex dtype; its state is a few numbers, in float32
        (float64 for float64 gradients).

    Raises:
        TypeError: a hyperparameter that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN threshold, a decay outside of [0, 1], a warmup below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_zscore(threshold=2.0, warmup=2)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 3.0, 10.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates  # mean 2 and deviation 1, so that 10 is 8 deviations off
        [array([2.5])]

    References:
        Kumar, Owen, Roy Chowdhury and Guera, ZClip: adaptive spike mitigation for LLM pre-training, 2025.
    """
    z = arguments.limit("clip_zscore", "threshold", threshold)
    d = arguments.unit_interval("clip_zscore", "decay", decay)
    first = arguments.integer("clip_zscore", "warmup", warmup, 1)

    def rule(g: Flat, state: ZScoreState, _: Context) -> tuple[Flat, ZScoreState]:
        norm, new = _observed(g, state.count, per_leaf)
        compute, before = g.backend.compute, (state.count, state.average, state.deviation)
        dtype = g.backend.dtype(state.average)
        if dtype == "float64":  # the norm of no gradient is a plain zero
            new = compute(formulas.wide, new)
        limits = compute(_spike_limit, new, *before, stateful.between(g, z, 0.0, math.inf), warmup=first)
        now = stateful.between(g, d, 0.0, 1.0)
        mean = compute(_new_mean, new, *before, limits, now, warmup=first, dtype=dtype)
        deviation = compute(_new_deviation, new, *before, limits, mean, now, warmup=first, dtype=dtype)
        count = compute(_counted, state.count, new, dtype=dtype)
        numbers = zip((count, mean, deviation), before, strict=True)
        after = ZScoreState(*(stateful.stored(g, value, old) for value, old in numbers))
        return g.scaled(clip_coefficient(norm, _for_leaves(g, limits, per_leaf))), after

    def start(params: Any) -> ZScoreState:
        fresh = stateful.Fresh(params)
        rows = (fresh.rows(per_leaf),)
        return ZScoreState(fresh.numbers(rows, "int32"), fresh.numbers(rows), fresh.numbers(rows))

    return keeping("clip_zscore", ZScoreState, rule, start)


def _spike_limit(
    xp: Any, norm: Array, count: Array, mean: Array, deviation: Array, threshold: Array, *, warmup: int
) -> Array:
    """The limit where the norm is a spike, else infinity; zero, which makes NaN of it, where it is not finite."""
    above = norm - mean
    spike = (count >= warmup) & (above > threshold * deviation) & (deviation > 0.0)
    part = threshold * deviation / xp.where(spike, above, 1.0)
    return xp.where(xp.isfinite(norm), xp.where(spike, mean + threshold * deviation * part, math.inf), 0.0)


def _new_mean(
    xp: Any,
    norm: Array,
    count: Array,
    mean: Array,
    deviation: Array,
    limits: Array,
    decay: Array,
    *,
    warmup: int,
    dtype: str,
) -> Array:
    first = mean + (norm - mean) / (count + 1.0)
    later = decay * mean + (1.0 - decay) * xp.where(norm < limits, norm, limits)
    return xp.where(_held(xp, norm, dtype), xp.where(count < warmup, first, later), mean)


def _new_deviation(
    xp: Any,
    norm: Array,
    count: Array,
    mean: Array,
    deviation: Array,
    limits: Array,
    new_mean: Array,
    decay: Array,
    *,
    warmup: int,
    dtype: str,
) -> Array:
    if dtype == "float64":  # whose squares float64 may not hold
        mean, deviation = xp.extended(mean), xp.extended(deviation)
    variance = deviation * deviation
    first = variance + ((norm - mean) * (norm - new_mean) - variance) / (count + 1.0)
    off = xp.where(norm < limits, norm, limits) - new_mean
    later = decay * variance + (1.0 - decay) * off * off
    new = xp.where(count < warmup, first, later)
    root = xp.where(new > 0.0, xp.sqrt(xp.where(new > 0.0, new, 1.0)), 0.0)
    return xp.where(_held(xp, norm, dtype), root, deviation)
