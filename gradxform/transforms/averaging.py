"""Average gradients over steps, or compare them with the step before."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradxform.backend.protocol import Steps
from gradxform.core import align
from gradxform.core.arguments import Scalar, limit, static, unit_interval
from gradxform.core.factory import factory
from gradxform.core.norm import clip_coefficient
from gradxform.core.state import advanced, between, blend, overwritten, shares, stored
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array


class EmaState(NamedTuple):
    """State of `ema`.

    Number of steps; averages, in float32 or float64; the divisor of `debias`, which is the sum of the weights, in two
    parts. The divisor is used only if the decay is an array or a schedule.
    """

    count: Any
    ema: Any
    divisor: Any


@factory(decay=unit_interval)
def ema(decay: Scalar, debias: bool = True) -> GradientTransformation:
    r"""Replace each gradient by its exponential moving average.

    The average becomes ``m = decay * m + (1 - decay) * g``; at step t, counted from one, the result is
    ``m / (1 - decay ** t)``:

    .. math:: m \leftarrow d\,m + (1 - d)\,g_i, \quad g_i \leftarrow m / (1 - d^t)

    If `decay` is a schedule, m is divided by the sum of the weights. Without `debias`, m is returned. Averages are
    float32 (float64 for float64 gradients). A None gradient leaves its average unchanged.

    Args:
        decay: Weight d of the old average, from 0 to 1: a number, a 0-d array or a schedule.
        debias: Whether to divide by the sum of the weights.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size.

    Raises:
        TypeError: `decay` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `decay` is outside [0, 1].

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.ema(0.5)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 2.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates
        [array([1.66666667])]

    References:
        Kingma and Ba, Adam: a method for stochastic optimization, 2015; ``optax.ema``.
    """
    known = static(decay)
    log = math.log(decay) if known and decay else -math.inf

    def rule(g: Tree, state: EmaState, context: Context) -> tuple[Tree, EmaState]:
        dense, count, weights = g.dense(), advanced(g, state.count), shares(g, decay)
        divisor, by, compute = state.divisor, None, g.backend.compute
        if not known:
            total = compute(_weight, divisor, *weights)
            divisor = stored(g, compute(_in_two, total, dtype=g.backend.dtype(divisor)), divisor)
        if debias:
            by = compute(_debiasing_at, count, log) if known else compute(_debiasing, total)
        out, averages = blend(dense, state.ema, "ema: the averages", weights, context, by)
        return out, EmaState(count, averages, divisor)

    return stateful(
        EmaState, rule, lambda fresh: EmaState(fresh.count(), fresh.zeros(), fresh.numbers((2,))), stage="average"
    )


def _weight(xp: Any, weight: Array, new: Array, old: Array) -> Array:
    """Sum of the weights after one more step, in two parts."""
    return old * xp.sum(weight) + new


def _in_two(xp: Any, weight: Array, *, dtype: str) -> Array:
    """Split a number into its nearest value in a dtype and the remainder."""
    near = xp.rounded(weight, dtype)
    return xp.stack([near, weight - near])


def _debiasing(xp: Any, weight: Array) -> Array:
    """The inverse of the sum of the weights."""
    return 1.0 / xp.where(weight > 0.0, weight, 1.0)


def _debiasing_at(xp: Any, count: Array, log: Array) -> Array:
    """The same at a step, where the sum is 1 - d^t, from the logarithm of the decay."""
    return _debiasing(xp, -xp.expm1(count * log))


class TraceState(NamedTuple):
    """State of `trace`: the trace of each gradient, in float32 or float64."""

    trace: Any


@factory(decay=unit_interval)
def trace(decay: Scalar, nesterov: bool = False) -> GradientTransformation:
    r"""Accumulate gradients with momentum.

    The trace becomes ``m = g + decay * m``, and replaces the gradient:

    .. math:: m \leftarrow g_i + d\,m, \quad g_i \leftarrow m

    With `nesterov`, the result is :math:`g_i + d\,m` with the new m. Traces are float32 (float64 for float64
    gradients). A None gradient leaves its trace unchanged.

    Args:
        decay: Share d of the trace kept at each step, from 0 to 1: a number, a 0-d array or a schedule.
        nesterov: Whether to look one step ahead.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size.

    Raises:
        TypeError: `decay` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `decay` is outside [0, 1].

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.trace(0.5)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 2.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates
        [array([2.5])]

    References:
        Polyak, Some methods of speeding up the convergence of iteration methods, 1964;
        Sutskever et al., On the importance of initialization and momentum in deep learning, 2013; ``optax.trace``.
    """

    def rule(g: Tree, state: TraceState, context: Context) -> tuple[Tree, TraceState]:
        dense, now = g.dense(), between(g, decay, 0.0, 1.0)
        ahead = now if nesterov else None
        out, traces = blend(dense, state.trace, "trace: the traces", [None, now], context, multiple=ahead)
        return out, TraceState(traces)

    return stateful(TraceState, rule, lambda fresh: TraceState(fresh.zeros()), stage="average")


class GrokfastState(NamedTuple):
    """State of `grokfast`: number of steps; the moving average of each gradient, in float32 or float64."""

    count: Any
    average: Any


@factory(decay=unit_interval, amplitude=limit)
def grokfast(decay: Scalar = 0.98, amplitude: Scalar = 2.0) -> GradientTransformation:
    r"""Add to each gradient a multiple of its moving average, which amplifies what changes slowly.

    The average becomes ``m = decay * m + (1 - decay) * g`` and includes the current gradient; the result is
    ``g + amplitude * m``:

    .. math:: m \leftarrow d\,m + (1 - d)\,g_i, \quad g_i \leftarrow g_i + a\,m

    The average starts with the first gradient: in the first step, ``m = g``. A gradient that is None in the first step
    starts from zero; None leaves its average unchanged. Averages are float32 (float64 for float64 gradients).

    Args:
        decay: Weight d of the old average, from 0 to 1: a number, a 0-d array or a schedule.
        amplitude: Multiple a of the average, at least 0: a number, a 0-d array or a schedule.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size.

    Raises:
        TypeError: A hyperparameter is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `decay` is outside [0, 1], or `amplitude` is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.grokfast(decay=0.5, amplitude=2.0)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 3.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates  # 3 and twice the average of 1 and 3
        [array([7.])]

    References:
        Lee, Kang, Kim and Lee, Grokfast: accelerated grokking by amplifying slow gradients, 2024 (Grokfast-EMA).
    """

    def rule(g: Tree, state: GrokfastState, context: Context) -> tuple[Tree, GrokfastState]:
        dense, most = g.dense(), between(g, amplitude, 0.0, math.inf)
        weights = g.backend.compute(_weights, state.count, *shares(g, decay))
        out, averages = blend(dense, state.average, "grokfast: the averages", weights, context, multiple=most)
        return out, GrokfastState(advanced(g, state.count), averages)

    return stateful(GrokfastState, rule, lambda fresh: GrokfastState(fresh.count(), fresh.zeros()), stage="average")


def _weights(xp: Any, count: Array, new: Array, old: Array) -> tuple[Array, Array]:
    """The weights of the gradient and of the average, which starts with the first gradient."""
    later = count > 0.0
    return xp.where(later, new, 1.0), xp.where(later, old, 0.0)


class MarsState(NamedTuple):
    """State of `mars`: number of steps; the gradients of the step before, in float32 or float64."""

    count: Any
    previous: Any


@factory(gamma=limit, decay=unit_interval, max_norm=limit)
def mars(gamma: Scalar = 0.025, decay: Scalar = 0.95, *, max_norm: Scalar = 1.0) -> GradientTransformation:
    r"""Add to each gradient a multiple of its change since the step before, and limit the norm of the sum.

    Each gradient g with the one before, h, becomes ``c = g + gamma * decay / (1 - decay) * (g - h)``, then
    ``c * min(1, max_norm / norm)``:

    .. math:: c_i = g_i + \gamma \frac{d}{1 - d} (g_i - h_i), \quad
        g_i \leftarrow c_i \min(1, m / \lVert c_i \rVert), \quad h_i \leftarrow g_i

    Place it before an optimizer whose momentum has the same decay, such as AdamW with betas of 0.95 and 0.99: the
    correction reduces the variance of its average. In the first step there is no change, and ``c = g``, as in the
    paper and in timm; the authors' code starts with ``h = 0``, which multiplies the first gradient by 1.475. A gradient
    that is None in the first step starts from ``h = 0``; None leaves h unchanged. A nonfinite gradient also makes the
    next step NaN, and an infinite one the first step, so skip it with `skip_nonfinite` around. The limit is per
    gradient, as in the authors' code.

    Args:
        gamma: Share :math:`\gamma` of the correction, at least 0: a number, a 0-d array or a schedule.
        decay: Decay d of the optimizer's momentum, below 1: a number, a 0-d array or a schedule.
        max_norm: Limit m of each gradient's norm, in the gradients' units: a number, a 0-d array or a schedule.
            Infinity: no limit.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size.

    Raises:
        TypeError: A hyperparameter is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `gamma` or `max_norm` is negative or NaN, or `decay` is outside [0, 1).

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.mars(gamma=0.5, decay=0.5, max_norm=10.0)
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (1.0, 3.0):
        ...     updates, state = tx.update([np.array([value])], state)
        >>> updates  # 3 and half of the change from 1 to 3
        [array([4.])]

    References:
        Yuan, Liu, Wu, Zhou and Gu, MARS: unleashing the power of variance reduction for training large models, 2024
        (the approximate form, with the gradient of the batch before).
    """
    if static(decay) and decay == 1.0:
        raise ValueError(f"mars: decay must be below 1, got {decay!r}")

    def rule(g: Tree, state: MarsState, context: Context) -> tuple[Tree, MarsState]:
        dense = g.dense()
        old, previous = align.of_state(dense, state.previous, "mars: the gradients before")
        most = between(g, gamma, 0.0, math.inf)
        weight = g.backend.compute(_of_change, state.count, most, *shares(g, decay))
        steps: Steps = [(2, {0: None, 1: -1.0}), (1, {0: None}), (0, {0: None, 2: weight})]
        corrected, new = overwritten(dense, old, steps, context), old
        if corrected is None:
            corrected = dense.given(dense.mapped(_corrected, old, numbers=[weight]))
            new = g.backend.copied(dense.wide(), old if context.owned else None)
        out = corrected.scaled(clip_coefficient(corrected.norms(), max_norm))
        return out, MarsState(advanced(g, state.count), previous.replaced(dense, new))

    return stateful(MarsState, rule, lambda fresh: MarsState(fresh.count(), fresh.zeros()), stage="clip")


def _of_change(xp: Any, count: Array, gamma: Array, share: Array, decay: Array) -> Array:
    """The weight of the change, zero in the first step."""
    return xp.where(count > 0.0, gamma * decay / xp.where(share > 0.0, share, float("nan")), 0.0)


def _corrected(xp: Any, x: Array, previous: Array, weight: Array) -> Array:
    return x + weight * (x - previous)
