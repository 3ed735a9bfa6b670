"""Limits that follow the history of each gradient or element."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradxform.core import align, arguments
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.norm import clip_coefficient
from gradxform.core.state import Fresh, advanced, between, by_row, rows_of, shares, stored_as
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas
from gradxform.transforms.statistics import counted, held


class AdaGCState(NamedTuple):
    """State of `clip_adagc`: number of norms per gradient, and the average of its clipped norms."""

    count: Any
    average: Any


@factory
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
    r, c = arguments.limit("clip_adagc", "ratio", ratio), arguments.limit("clip_adagc", "max_norm", max_norm)
    d = arguments.unit_interval("clip_adagc", "decay", decay)
    first = arguments.integer("clip_adagc", "warmup", warmup, 0)

    def rule(g: Tree, state: AdaGCState, _: Context) -> tuple[Tree, AdaGCState]:
        compute, dtype = g.backend.compute, g.backend.dtype(state.average)
        norms, now = g.norms(), between(g, d, 0.0, 1.0)
        together, rows = clip_coefficient(g.norm_of(norms), c), by_row(g, norms, state.count.shape[0])
        limits = compute(_limits, rows, *state, between(g, r, 0.0, math.inf), warmup=first)
        average = compute(_new_average, rows, limits, together, now, *state, warmup=first, dtype=dtype)
        count = compute(counted, state.count, rows, dtype=dtype)
        most = compute(formulas.take, limits, index=rows_of(g))
        factor = compute(_in_turn, most, together, clip_coefficient(norms, most))
        return g.scaled(factor), stored_as(g, state, count, average)

    def start(fresh: Fresh) -> AdaGCState:
        rows = (fresh.rows(True),)
        return AdaGCState(fresh.numbers(rows, "int32"), fresh.numbers(rows))

    return stateful(AdaGCState, rule, start, stage="clip")


def _limits(xp: Any, norm: Array, count: Array, average: Array, ratio: Array, *, warmup: int) -> Array:
    """The limit: -1 in the warm-up, infinite without an average; zero, which gives NaN, for a nonfinite norm."""
    own = xp.where(average > 0.0, ratio * average, math.inf)
    return xp.where(count >= warmup, xp.where(xp.isfinite(norm), own, 0.0), -1.0)


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
    known = held(xp, norm, dtype) & (clipped > 0.0) & (new >= _LEAST[dtype])  # false for NaN
    return xp.where(known, new, average)


_LEAST = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""Smallest normal number: some frameworks would flush a smaller average to zero, which is no limit."""


class SpikesState(NamedTuple):
    """State of `clip_spikes`.

    Number of steps; the root of the moving average of each element's squares, in float32 or float64.
    """

    count: Any
    rms: Any


@factory
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
    theta = arguments.limit("clip_spikes", "threshold", threshold)
    d = arguments.unit_interval("clip_spikes", "decay", decay)
    first = arguments.integer("clip_spikes", "warmup", warmup, 0)

    def rule(g: Tree, state: SpikesState, context: Context) -> tuple[Tree, SpikesState]:
        dense = g.dense()
        old, averages = align.of_state(dense, state.rms, "clip_spikes: the averages")
        limits = g.backend.compute(_after, between(g, theta, 0.0, math.inf), state.count, warmup=first)
        out = dense.mapped(_limited, old, numbers=[limits])
        new = dense.mapped(_new_rms, old, numbers=[limits, *shares(g, d)], out=old if context.owned else None)
        count = advanced(g, state.count)
        return dense.given(out), SpikesState(count, averages.replaced(dense, new))

    return stateful(SpikesState, rule, lambda fresh: SpikesState(fresh.count(), fresh.zeros()), stage="clip")


def _after(xp: Any, threshold: Array, count: Array, *, warmup: int) -> Array:
    """The threshold, zero during the warm-up."""
    return xp.where(count >= warmup, threshold, 0.0)


def _limited(xp: Any, x: Array, rms: Array, threshold: Array) -> Array:
    some = threshold > 0.0
    limit = rms * xp.sqrt(xp.where(some, threshold, 1.0))
    spike = some & (limit > 0.0) & (xp.abs(x) > limit)
    return xp.where(spike, xp.where(x < 0.0, -limit, limit), x)


def _new_rms(xp: Any, x: Array, rms: Array, threshold: Array, share: Array, decay: Array) -> Array:
    """The root of the average with one more square; squares are relative to the larger, so that they are in range.

    Only the larger is used more than once: a compiler would keep a quotient or a mean in memory.
    """
    size = xp.abs(_limited(xp, x, rms, threshold))
    new = xp.where(xp.isfinite(size), size, rms)
    old, new = xp.where((rms > 0.0) & (decay > 0.0), rms, 0.0), xp.where((new > 0.0) & (share > 0.0), new, 0.0)
    larger = xp.where(new > old, new, old)
    nothing = larger <= 0.0
    unit = xp.where(nothing, 1.0, larger)
    one, other = old / unit, new / unit
    mean = decay * (one * one) + share * (other * other)
    return larger * xp.sqrt(xp.where(nothing, 1.0, mean))
