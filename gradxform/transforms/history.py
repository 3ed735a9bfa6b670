"""Limits that follow the history of norms, of each gradient or of each element."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradxform.core import align
from gradxform.core.arguments import Scalar, count, limit, percent, places, unit_interval
from gradxform.core.factory import factory
from gradxform.core.norm import Norm, clip_coefficient
from gradxform.core.state import Fresh, advanced, between, by_row, rows_of, shares, stored_as
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas

T = TypeVar("T", bound=tuple[Any, ...])

# --- limits of norms, one per row of a state -------------------------------------------------------------------------


class PercentileState(NamedTuple):
    """State of `clip_percentile`: number of norms per row, and a ring buffer of the last ones."""

    count: Any
    history: Any


@factory(percentile=percent, window=places)
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

    def rule(g: Tree, state: PercentileState, _: Context) -> tuple[Tree, PercentileState]:
        norm, new = _observed(g, state, per_leaf)
        compute, dtype = g.backend.compute, g.backend.dtype(state.history)
        after = _counted(g, state, new, compute(with_norm, *state, new, window=window, dtype=dtype))
        limits = compute(_percentile, *after, between(g, percentile, 0.0, 100.0), window=window, dtype=dtype)
        return g.scaled(clip_coefficient(norm, _limits(g, limits, new, per_leaf))), after

    return stateful(
        PercentileState, rule, lambda fresh: first_rows(fresh, PercentileState, per_leaf, window), stage="clip"
    )


def first_rows(fresh: Fresh, kind: type[T], per_leaf: bool, *width: int) -> T:
    """A new state: the number of norms per row, and zeros."""
    rows = fresh.rows(per_leaf)
    return kind(fresh.numbers((rows,), "int32"), *[fresh.numbers((rows, *width)) for _ in kind._fields[1:]])  # type: ignore


def _observed(g: Tree, state: Any, per_leaf: bool) -> tuple[Norm, Array]:
    """The norms, and the norms as rows of a state."""
    norm = g.norms() if per_leaf else g.global_norm()
    return norm, by_row(g, norm, state.count.shape[0] if per_leaf else 1)


def _limits(g: Tree, limits: Array, norm: Array, per_leaf: bool) -> Array:
    """The limits of rows as one limit, or one per leaf."""
    return g.backend.compute(_of_rows, limits, norm, index=rows_of(g) if per_leaf else 0)


def _of_rows(xp: Any, limits: Array, norm: Array, *, index: int | tuple[int, ...]) -> Array:
    """Select limits; those of nonfinite norms are zero, which gives NaN."""
    return xp.take(xp.where(xp.isfinite(norm), limits, 0.0), index)


def _counted(g: Tree, state: T, norm: Array, *values: Any) -> T:
    """A state with new values, which has counted one more norm."""
    return stored_as(g, state, g.backend.compute(one_more, state[0], norm, dtype=g.backend.dtype(state[1])), *values)


_MOST = {"float32": float(np.nextafter(2.0**128 - 2.0**103, 0.0)), "float64": float(np.finfo(np.float64).max)}
"""Largest float64 that rounds to a finite number of the dtype."""


def _column(xp: Any, rows: Array) -> Array:
    """Reshape to one number per row; a slice would ask for the device of a tensor without memory."""
    return xp.reshape(rows, (-1, 1))


def _is_held(xp: Any, norm: Array, dtype: str) -> Array:
    """Whether a norm is finite in a dtype."""
    return xp.abs(norm) <= _MOST[dtype]


def one_more(xp: Any, count: Array, norm: Array, *, dtype: str) -> Array:
    """Count a norm that is finite in a dtype."""
    return xp.where(_is_held(xp, norm, dtype) & (count < 2.0**31 - 1), count + 1.0, count)


def with_norm(xp: Any, count: Array, history: Array, norm: Array, *, window: int, dtype: str) -> Array:
    """Write a norm into the ring buffer; the counter keeps growing, so its remainder is the position."""
    place = count - window * xp.floor(count / window)
    here = formulas.equal(xp, xp.arange(window), _column(xp, place)) & _column(xp, _is_held(xp, norm, dtype))
    return xp.where(here, _column(xp, norm), history)


def _percentile(xp: Any, count: Array, history: Array, percentile: Array, *, window: int, dtype: str) -> Array:
    """`numpy.percentile` of each row's recorded numbers."""
    filled = xp.where(count < window, count, window)
    numbers = xp.arange(window)
    given = xp.stop_gradient(xp.where(numbers < _column(xp, filled), history, math.inf))
    ordered = xp.float64(xp.sort(xp.cast(given, dtype)))  # TPUs cannot sort 64-bit numbers
    place = percentile / 100.0 * (filled - 1.0)
    below = xp.floor(place)
    low, high = (
        xp.sum(xp.where(formulas.equal(xp, numbers, _column(xp, at)), ordered, 0.0), axis=-1)
        for at in (below, xp.where(below < place, below + 1.0, below))
    )
    return xp.where(filled > 0.0, low + (high - low) * (place - below), math.inf)


class ZScoreState(NamedTuple):
    """State of `clip_zscore`: number of norms per row, their mean and their deviation."""

    count: Any
    average: Any
    deviation: Any


@factory(threshold=limit, decay=unit_interval, warmup=places)
def clip_zscore(
    threshold: Scalar = 2.5, decay: Scalar = 0.97, warmup: int = 25, *, per_leaf: bool = False
) -> GradientTransformation:
    r"""Limit the global norm at spikes: norms far above their moving average.

    A norm is a spike if its z-score exceeds ``threshold``; gradients are then scaled by ``c / norm``:

    .. math:: g_i \leftarrow g_i \, c / n \text{ where } z = (n - \mu) / \sigma > z_0,
        \quad c = \mu + \sigma z_0^2 / z

    The first `warmup` norms set mean and variance, and are not limited. Afterwards both are moving averages of the
    limited norms; the variance is of distances from the new mean. While norms differ by rounding alone, so that the
    deviation is below a millionth of the mean, nothing is limited. A nonfinite norm changes neither, and makes the
    gradients NaN. Gradients within the limit keep every bit.

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

    def rule(g: Tree, state: ZScoreState, _: Context) -> tuple[Tree, ZScoreState]:
        norm, new = _observed(g, state, per_leaf)
        compute, dtype = g.backend.compute, g.backend.dtype(state.average)
        limits = compute(_spike_limit, new, *state, between(g, threshold, 0.0, math.inf), warmup=warmup)
        moments = compute(_moments, new, limits, between(g, decay, 0.0, 1.0), *state, warmup=warmup, dtype=dtype)
        factor = clip_coefficient(norm, _limits(g, limits, new, per_leaf))
        return g.scaled(factor), _counted(g, state, new, *moments)

    return stateful(ZScoreState, rule, lambda fresh: first_rows(fresh, ZScoreState, per_leaf), stage="clip")


_ROUNDING = 2.0**-20
"""A smaller deviation, relative to the mean, may be that of rounding, which differs between frameworks."""


def _spike_limit(
    xp: Any, norm: Array, count: Array, mean: Array, deviation: Array, threshold: Array, *, warmup: int
) -> Array:
    """Limit for a spike, else infinity."""
    above = norm - mean
    spike = (count >= warmup) & (above > threshold * deviation) & (deviation > _ROUNDING * mean)
    part = threshold * deviation / xp.where(spike, above, 1.0)
    return xp.where(spike, mean + threshold * deviation * part, math.inf)


def _moments(
    xp: Any, norm: Array, limits: Array, decay: Array, *before: Array, warmup: int, dtype: str
) -> tuple[Array, Array]:
    """The mean and the deviation with one more norm."""
    count, mean, deviation = before
    known, warm = _is_held(xp, norm, dtype), count >= warmup
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


class AdaGCState(NamedTuple):
    """State of `clip_adagc`: number of norms per gradient, and the average of its clipped norms."""

    count: Any
    average: Any


@factory(ratio=limit, decay=unit_interval, warmup=count, max_norm=limit)
def clip_adagc(
    ratio: Scalar = 1.05, decay: Scalar = 0.98, *, warmup: int = 100, max_norm: Scalar = 1.0
) -> GradientTransformation:
    r"""Limit each gradient to a multiple of the moving average of its own clipped norm.

    Each gradient g with norm n becomes ``g * min(1, ratio * a / n)``, where a is the average of its clipped norms:

    .. math:: g_i \leftarrow g_i \min(1, r a_i / n_i), \quad a_i \leftarrow d\,a_i + (1 - d) \min(n_i, r a_i)

    For the first `warmup` norms, the limit is that of `clip_global_norm`, and a is the smallest of the clipped norms:

    .. math:: g_i \leftarrow g_i \min(1, c / n), \quad a_i \leftarrow \min(a_i, n_i \min(1, c / n)),
        \quad n = \sqrt{\textstyle\sum_j n_j^2}

    A zero norm does not change the average, because it would never recover from a limit of zero. Nor does a norm that
    would bring it below the smallest normal number of its dtype. A nonfinite norm does not change it either, and makes
    the gradient NaN; during the warm-up, it makes all gradients NaN. None is ignored. Gradients within the limit keep
    every bit.

    Args:
        ratio: Multiple r of the average norm: a number, a 0-d array or a schedule.
        decay: Weight d of the old average, from 0 to 1: a number, a 0-d array or a schedule.
        warmup: Number of norms with a global limit. Zero: the first norm has no limit, and is the average.
        max_norm: Limit c of the global norm during the warm-up, in the gradients' units: a number, a 0-d array or a
            schedule.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state is two numbers per gradient, in
        int32 and float32 (float64 for float64 gradients).

    Raises:
        TypeError: A hyperparameter is not a number, or `warmup` is not an int. On use: a gradient is integer; the
            message gives its path.
        ValueError: `ratio` or `max_norm` is negative or NaN, `decay` is outside [0, 1], or `warmup` is negative.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_adagc(ratio=1.5, decay=0.5, warmup=1, max_norm=2.0)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (4.0, 9.0):
        ...     updates, state = tx.update([np.array([value])], state)
        ...     print(updates, state.average)
        [array([2.])] [2.]
        [array([3.])] [2.5]

    References:
        Wang, Li, Chen, Zeng, Yang, Sun, Ma, Yu and Shen, AdaGC: improving training stability for large language model
        pretraining, 2025.
    """

    def rule(g: Tree, state: AdaGCState, _: Context) -> tuple[Tree, AdaGCState]:
        norms, rows = _observed(g, state, True)
        compute, dtype = g.backend.compute, g.backend.dtype(state.average)
        together = clip_coefficient(g.norm_of(norms), max_norm)
        limits = compute(_adaptive_limits, *state, between(g, ratio, 0.0, math.inf), warmup=warmup)
        moments = rows, limits, together, between(g, decay, 0.0, 1.0), *state
        average = compute(_new_average, *moments, warmup=warmup, dtype=dtype)
        most = _limits(g, limits, rows, True)
        factor = compute(_in_turn, most, together, clip_coefficient(norms, most))
        return g.scaled(factor), _counted(g, state, rows, average)

    return stateful(AdaGCState, rule, lambda fresh: first_rows(fresh, AdaGCState, True), stage="clip")


def _adaptive_limits(xp: Any, count: Array, average: Array, ratio: Array, *, warmup: int) -> Array:
    """The limit: -1 in the warm-up, infinite without an average."""
    return xp.where(count >= warmup, xp.where(average > 0.0, ratio * average, math.inf), -1.0)


@formulas.by_number
def _in_turn(xp: Any, limit: Array, together: Array, own: Array) -> Array:
    """The factor of the global norm in the warm-up, and each gradient's own factor afterwards."""
    return xp.where(limit < 0.0, together, own)


def _new_average(
    xp: Any, norm: Array, limits: Array, together: Array, decay: Array, *before: Array, warmup: int, dtype: str
) -> Array:
    count, average = before
    warm = count >= warmup
    clipped = xp.where(warm, xp.where(norm < limits, norm, limits), norm * together)
    least = xp.where(clipped < average, clipped, average)
    later = xp.where(warm, decay * average + (1.0 - decay) * clipped, least)
    new = xp.where(average > 0.0, later, clipped)
    known = _is_held(xp, norm, dtype) & (clipped > 0.0) & (new >= _LEAST[dtype])  # false for NaN
    return xp.where(known, new, average)


_LEAST = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""Smallest normal number: some frameworks would flush a smaller average to zero, which is no limit."""


# --- limits of elements ---------------------------------------------------------------------------------------------


class SpikesState(NamedTuple):
    """State of `clip_spikes`.

    Number of steps; the root of the moving average of each element's squares, in float32 or float64.
    """

    count: Any
    rms: Any


@factory(threshold=limit, decay=unit_interval, warmup=count)
def clip_spikes(threshold: Scalar = 5000.0, decay: Scalar = 0.999, *, warmup: int = 20) -> GradientTransformation:
    r"""Limit each element to a multiple of the root mean square of its last values.

    An element g is a spike if its square exceeds ``threshold`` times V, the moving average of its squares. It then
    becomes ``sign(g) * sqrt(threshold * V)``:

    .. math:: g_{ij} \leftarrow \operatorname{sign}(g_{ij}) \sqrt{\theta V_{ij}}
        \text{ where } g_{ij}^2 > \theta V_{ij}, \quad V_{ij} \leftarrow d\,V_{ij} + (1 - d)\,g_{ij}^2

    V is from the previous step, starts at zero, is not debiased, and averages the limited elements. The first `warmup`
    steps set it and limit nothing. An element whose V is zero is not limited either, because it would stay zero. An
    infinite element becomes its limit. NaN stays NaN. What is not finite afterwards leaves V unchanged, as does None.
    Elements within the limit keep every bit.

    Args:
        threshold: Multiple :math:`\theta` of the average square, at least 0: a number, a 0-d array or a schedule. Zero
            limits nothing.
        decay: Weight d of the old average, from 0 to 1: a number, a 0-d array or a schedule.
        warmup: Number of steps without a limit.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The two parts of a complex number are
        separate elements. The state has the gradients' size, in float32 (float64 for float64 gradients).

    Raises:
        TypeError: A hyperparameter is not a number, or `warmup` is not an int. On use: a gradient is integer; the
            message gives its path.
        ValueError: `threshold` is negative or NaN, `decay` is outside [0, 1], or `warmup` is negative.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_spikes(threshold=4.0, decay=0.0, warmup=1)
        >>> state = tx.init([np.zeros(2)])
        >>> for value in ([1.0, -1.0], [3.0, -1.5]):
        ...     updates, state = tx.update([np.array(value)], state)
        >>> updates  # at most twice the element before
        [array([ 2. , -1.5])]

    References:
        Huang, Zhu, Jin, Liu, Wang and Liu, SPAM: spike-aware Adam with momentum reset for stable LLM training, 2025.
    """

    def rule(g: Tree, state: SpikesState, context: Context) -> tuple[Tree, SpikesState]:
        dense = g.dense()
        old, averages = align.of_state(dense, state.rms, "clip_spikes: the averages")
        limits = g.backend.compute(_after, between(g, threshold, 0.0, math.inf), state.count, warmup=warmup)
        out = dense.mapped(_limited, old, numbers=[limits])
        limited, weights = dense.given(out), shares(g, decay)
        new = limited.mapped(_new_rms, old, numbers=weights, out=old if context.owned else None)
        return limited, SpikesState(advanced(g, state.count), averages.replaced(dense, new))

    return stateful(SpikesState, rule, lambda fresh: SpikesState(fresh.count(), fresh.zeros()), stage="limit")


def _after(xp: Any, threshold: Array, count: Array, *, warmup: int) -> Array:
    """The threshold, zero during the warm-up."""
    return xp.where(count >= warmup, threshold, 0.0)


def _limited(xp: Any, x: Array, rms: Array, threshold: Array) -> Array:
    limit = rms * xp.sqrt(xp.where(threshold > 0.0, threshold, 1.0))
    limit = xp.where((limit > 0.0) & (threshold > 0.0), limit, math.inf)
    return xp.where(x > limit, limit, xp.where(x < -limit, -limit, x))


def _new_rms(xp: Any, x: Array, rms: Array, share: Array, decay: Array) -> Array:
    """The root of the average with one more square; squares are relative to the larger, so that they are in range.

    Only the larger is used more than once: a compiler would keep a quotient or a mean in memory.
    """
    size = xp.abs(x)
    new = xp.where(share > 0.0, xp.where(xp.isfinite(size), size, rms), 0.0)
    old = xp.where(decay > 0.0, rms, 0.0)
    larger = xp.where(new > old, new, old)
    nothing = larger <= 0.0
    unit = xp.where(nothing, 1.0, larger)
    one, other = old / unit, new / unit
    return larger * xp.sqrt(xp.where(nothing, 1.0, decay * (one * one) + share * (other * other)))
