"""Limits that follow the norms of previous steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gradxform.core import arguments
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.norm import Norm, clip_coefficient
from gradxform.core.state import Fresh, between, by_row, rows_of, stored_as
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas


class PercentileState(NamedTuple):
    """State of `clip_percentile`: number of norms per row, and a ring buffer of the last ones."""

    count: Any
    history: Any


@factory
def clip_percentile(percentile: Scalar, window: int = 1000, *, per_leaf: bool = False) -> GradientTransformation:
    r"""Limit the global norm to a percentile of its last values, including the current one.

    Each gradient g becomes ``g * min(1, c / norm)``, where c is the percentile of the last ``window`` norms:

    .. math:: g_i \leftarrow g_i \min(1, c / n_t), \quad c = P_p(n_{t-w+1}, \ldots, n_t)

    Percentiles are interpolated as in `numpy.percentile`. A nonfinite norm is not recorded, and makes the gradients
    NaN. Gradients within the limit keep every bit.

    Args:
        percentile: Percentile p, from 0 to 100: a number, a 0-d array or a schedule.
        window: Number w of recorded norms, in float32 (float64 for float64 gradients).
        per_leaf: Whether each gradient has its own norms and limit.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state has the size of the window.

    Raises:
        TypeError: `percentile` is not a number, or `window` is not an int. On use: a gradient is integer.
        ValueError: `percentile` is outside [0, 100], or `window` is below 1.

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
    p = arguments.number("clip_percentile", "percentile", percentile, 0.0, 100.0)
    length = arguments.integer("clip_percentile", "window", window, 1)

    def rule(g: Tree, state: PercentileState, _: Context) -> tuple[Tree, PercentileState]:
        norm, new = _observed(g, state.count, per_leaf)
        compute, dtype = g.backend.compute, g.backend.dtype(state.history)
        history = compute(_with_norm, state.history, state.count, new, window=length, dtype=dtype)
        after = stored_as(g, state, compute(counted, state.count, new, dtype=dtype), history)
        share, finite = between(g, p, 0.0, 100.0), compute(formulas.is_finite, new)
        limits = compute(_percentile, after.history, after.count, finite, share, window=length, dtype=dtype)
        return g.scaled(clip_coefficient(norm, _for_leaves(g, limits, per_leaf))), after

    def start(fresh: Fresh) -> PercentileState:
        rows = fresh.rows(per_leaf)
        return PercentileState(fresh.numbers((rows,), "int32"), fresh.numbers((rows, length)))

    return stateful(PercentileState, rule, start, stage="clip")


def _observed(g: Tree, count: Array, per_leaf: bool) -> tuple[Norm, Array]:
    """The norms, and the norms as rows of a state."""
    if not per_leaf:
        return (norm := g.global_norm()), by_row(g, norm, 1)
    return (norm := g.norms()), by_row(g, norm, count.shape[0])


def _for_leaves(g: Tree, rows: Array, per_leaf: bool) -> Array:
    """The limits of rows as one limit, or one per leaf."""
    return g.backend.compute(formulas.take, rows, index=rows_of(g) if per_leaf else 0)


_MOST = {"float32": float(np.nextafter(2.0**128 - 2.0**103, 0.0)), "float64": float(np.finfo(np.float64).max)}
"""Largest float64 that rounds to a finite number of the dtype."""


def _column(xp: Any, rows: Array) -> Array:
    """Reshape to one number per row."""
    return xp.reshape(rows, (-1, 1))


def held(xp: Any, norm: Array, dtype: str) -> Array:
    """Whether a norm is finite in a dtype."""
    return norm <= _MOST[dtype]


def counted(xp: Any, count: Array, norm: Array, *, dtype: str) -> Array:
    """Count a norm that is finite in a dtype."""
    return xp.where(held(xp, norm, dtype) & (count < 2.0**31 - 1), count + 1.0, count)


def _with_norm(xp: Any, history: Array, count: Array, norm: Array, *, window: int, dtype: str) -> Array:
    """Write a norm into the ring buffer; the counter keeps growing, so its remainder is the position."""
    place = count - window * xp.floor(count / window)
    here = formulas.equal(xp.arange(window), _column(xp, place)) & _column(xp, held(xp, norm, dtype))
    return xp.where(here, _column(xp, norm), history)


def _percentile(
    xp: Any, history: Array, count: Array, finite: Array, percentile: Array, *, window: int, dtype: str
) -> Array:
    """`numpy.percentile` of each row's recorded numbers; zero for a nonfinite norm."""
    filled = xp.where(count < window, count, window)
    numbers = xp.arange(window)
    given = xp.stop_gradient(xp.where(numbers < _column(xp, filled), history, math.inf))
    ordered = xp.float64(xp.sort(xp.cast(given, dtype)))  # TPUs cannot sort 64-bit numbers
    place = percentile / 100.0 * (filled - 1.0)
    below = xp.floor(place)
    low, high = (
        xp.sum(xp.where(formulas.equal(numbers, _column(xp, at)), ordered, 0.0), axis=-1)
        for at in (below, xp.where(below < place, below + 1.0, below))
    )
    limits = xp.where(filled > 0.0, low + (high - low) * (place - below), math.inf)
    return xp.where(finite > 0.0, limits, 0.0)


class ZScoreState(NamedTuple):
    """State of `clip_zscore`: number of norms per row, their mean and their deviation."""

    count: Any
    average: Any
    deviation: Any


@factory
def clip_zscore(
    threshold: Scalar = 2.5, decay: Scalar = 0.97, warmup: int = 25, *, per_leaf: bool = False
) -> GradientTransformation:
    r"""Limit the global norm at spikes: norms far above their moving average.

    A norm is a spike if its z-score exceeds ``threshold``; gradients are then scaled by ``c / norm``:

    .. math:: g_i \leftarrow g_i \, c / n \text{ where } z = (n - \mu) / \sigma > z_0,
        \quad c = \mu + \sigma z_0^2 / z

    The first `warmup` norms set mean and variance, and are not limited. Afterwards both are moving averages of the
    limited norms. A nonfinite norm changes neither, and makes the gradients NaN. Gradients within the limit keep every
    bit.

    Args:
        threshold: Z-score :math:`z_0` above which a norm is a spike: a number, a 0-d array or a schedule.
        decay: Weight of the old mean and variance, from 0 to 1: a number, a 0-d array or a schedule.
        warmup: Number of norms for the initial mean and variance, at least 1.
        per_leaf: Whether each gradient has its own statistics.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state is a few numbers, in float32
        (float64 for float64 gradients).

    Raises:
        TypeError: A hyperparameter is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `threshold` is negative or NaN, `decay` is outside [0, 1], or `warmup` is below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_zscore(threshold=2.0, warmup=2)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 3.0, 10.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates  # mean 2, deviation 1: 10 has z-score 8
        [array([2.5])]

    References:
        Kumar, Owen, Roy Chowdhury and Guera, ZClip: adaptive spike mitigation for LLM pre-training, 2025.
    """
    z = arguments.limit("clip_zscore", "threshold", threshold)
    d = arguments.unit_interval("clip_zscore", "decay", decay)
    first = arguments.integer("clip_zscore", "warmup", warmup, 1)

    def rule(g: Tree, state: ZScoreState, _: Context) -> tuple[Tree, ZScoreState]:
        norm, new = _observed(g, state.count, per_leaf)
        compute, dtype = g.backend.compute, g.backend.dtype(state.average)
        limits = compute(_spike_limit, new, *state, between(g, z, 0.0, math.inf), warmup=first)
        moments = compute(_moments, new, limits, between(g, d, 0.0, 1.0), *state, warmup=first, dtype=dtype)
        after = stored_as(g, state, compute(counted, state.count, new, dtype=dtype), *moments)
        return g.scaled(clip_coefficient(norm, _for_leaves(g, limits, per_leaf))), after

    def start(fresh: Fresh) -> ZScoreState:
        rows = (fresh.rows(per_leaf),)
        return ZScoreState(fresh.numbers(rows, "int32"), fresh.numbers(rows), fresh.numbers(rows))

    return stateful(ZScoreState, rule, start, stage="clip")


def _spike_limit(
    xp: Any, norm: Array, count: Array, mean: Array, deviation: Array, threshold: Array, *, warmup: int
) -> Array:
    """Limit for a spike, else infinity; zero, which gives NaN, for a nonfinite norm."""
    above = norm - mean
    spike = (count >= warmup) & (above > threshold * deviation) & (deviation > 0.0)
    part = threshold * deviation / xp.where(spike, above, 1.0)
    return xp.where(xp.isfinite(norm), xp.where(spike, mean + threshold * deviation * part, math.inf), 0.0)


def _moments(
    xp: Any, norm: Array, limits: Array, decay: Array, *before: Array, warmup: int, dtype: str
) -> tuple[Array, Array]:
    """The mean and the deviation with one more norm."""
    count, mean, deviation = before
    known, warm = held(xp, norm, dtype), count >= warmup
    limited = xp.where(norm < limits, norm, limits)
    new_mean = xp.where(
        known, xp.where(warm, decay * mean + (1.0 - decay) * limited, mean + (norm - mean) / (count + 1.0)), mean
    )
    change = xp.where(warm, limited - new_mean, norm - mean)
    size = xp.stop_gradient(xp.abs(change))
    unit = xp.power_of_two(xp.where(size > deviation, size, deviation))  # in which squares are in range
    spread, change = deviation / unit, change / unit
    variance = spread * spread
    first = variance + (change * ((norm - new_mean) / unit) - variance) / (count + 1.0)
    later = decay * variance + (1.0 - decay) * change * change
    new = xp.where(warm, later, first)
    positive = new > 0.0  # the derivative of a root of zero is infinite
    root = unit * xp.where(positive, xp.sqrt(xp.where(positive, new, 1.0)), 0.0)
    return new_mean, xp.where(known, root, deviation)
