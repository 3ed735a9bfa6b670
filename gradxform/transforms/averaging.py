"""Transforms that average gradients over steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradxform.core import arguments, elements
from gradxform.core import state as stateful
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.flat import Flat
from gradxform.core.keeping import keeping
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array
from gradxform.numerics.elementwise import Combination


class EmaState(NamedTuple):
    """The state of `ema`.

    The number of steps; the average of each gradient, in float32 or float64; and what `debias` divides it by, the sum
    of its weights, in two parts. Only a decay that is an array or a schedule needs the last.
    """

    count: Any
    ema: Any
    divisor: Any


@factory
def ema(decay: Scalar, debias: bool = True) -> GradientTransformation:
    r"""Replace each gradient by the exponential moving average of its values.

    .. math:: m \leftarrow d\,m + (1 - d)\,g_i, \quad g_i \leftarrow m / (1 - d^t)

    at step t, counted from one (where d is a schedule, m over the sum of the weights); without `debias`, the average m
    itself. Averages are kept in float32 (float64 for float64 gradients), and each is rounded once a step. A gradient
    that is None leaves its average as it is.

    Args:
        decay: the share d of the old average, from 0 to 1; a number, a 0-d array or a schedule.
        debias: whether the average is divided by the sum of its weights.

    Returns:
        A transformation of gradients of any shape and floating or complex dtype, with a state of their size.

    Raises:
        TypeError: a decay that is no number; on use, an integer gradient, named by its path.
        ValueError: a decay outside of [0, 1].

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
    d = arguments.unit_interval("ema", "decay", decay)

    def rule(g: Flat, state: EmaState, context: Context) -> tuple[Flat, EmaState]:
        dense, count, now = g.dense(), stateful.advanced(g, state.count), stateful.between(g, d, 0.0, 1.0)
        old = elements.state(dense, state.ema, "ema: the averages")
        new = elements.mapped(dense, _averaged, old, numbers=[now], out=old if context.owned else None)
        g, divisor = stateful.shown(dense, new, context), state.divisor
        if not arguments.static(d):
            total = g.backend.compute(_weight, divisor, now)
            divisor = stateful.stored(g, g.backend.compute(_in_two, total, dtype=g.backend.dtype(divisor)), divisor)
        if debias:
            known = (total,) if not arguments.static(d) else (g.backend.compute(_weight_at, count, now),)
            g = g.scaled(g.backend.compute(_debiasing, *known))
        return g, EmaState(count, elements.replaced_in(dense, state.ema, new), divisor)

    def start(params: Any) -> EmaState:
        fresh = stateful.Fresh(params)
        return EmaState(fresh.count(), fresh.zeros(), fresh.numbers((2,)))

    return keeping("ema", EmaState, rule, start)


_averaged = Combination(lambda xp, decay: (1.0 - decay, decay))


def _weight_at(xp: Any, count: Array, decay: Array) -> Array:
    """The sum of the weights at a step, 1 - d^t, right for a decay near one as well."""
    return -xp.expm1(count * xp.log(decay))


def _weight(xp: Any, weight: Array, decay: Array) -> Array:
    """The sum of the weights after one step more, from two parts."""
    return decay * xp.sum(weight) + (1.0 - decay)


def _in_two(xp: Any, weight: Array, *, dtype: str) -> Array:
    """A number as the nearest one of a dtype, and the rest."""
    near = xp.rounded(weight, dtype)
    return xp.stack([near, weight - near])


def _debiasing(xp: Any, weight: Array) -> Array:
    return 1.0 / xp.where(weight > 0.0, weight, 1.0)


class TraceState(NamedTuple):
    """The state of `trace`: the trace of each gradient, in float32 or float64."""

    trace: Any


@factory
def trace(decay: Scalar, nesterov: bool = False) -> GradientTransformation:
    r"""Add to each gradient what is left of those before it: momentum.

    .. math:: m \leftarrow g_i + d\,m, \quad g_i \leftarrow m

    with `nesterov`, the gradient becomes :math:`g_i + d\,m` with the new m. Traces are kept in float32 (float64 for
    float64 gradients), and each is rounded once a step. A gradient that is None leaves its trace as it is.

    Args:
        decay: the share d that is kept at each step, from 0 to 1; a number, a 0-d array or a schedule.
        nesterov: whether to look one step ahead.

    Returns:
        A transformation of gradients of any shape and floating or complex dtype, with a state of their size.

    Raises:
        TypeError: a decay that is no number; on use, an integer gradient, named by its path.
        ValueError: a decay outside of [0, 1].

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
    d = arguments.unit_interval("trace", "decay", decay)

    def rule(g: Flat, state: TraceState, context: Context) -> tuple[Flat, TraceState]:
        dense = g.dense()
        old = elements.state(dense, state.trace, "trace: the traces")
        now = stateful.between(g, d, 0.0, 1.0)
        ahead = elements.mapped(dense, _ahead, old, numbers=[now]) if nesterov else None
        new = elements.mapped(dense, _traced, old, numbers=[now], out=old if context.owned else None)
        out = stateful.shown(dense, new, context) if ahead is None else dense.given(ahead)
        return out, TraceState(elements.replaced_in(dense, state.trace, new))

    return keeping("trace", TraceState, rule, lambda params: TraceState(stateful.Fresh(params).zeros()))


_traced = Combination(lambda xp, decay: (1.0, decay))


_ahead = Combination(lambda xp, decay: (1.0 + decay, decay * decay))
