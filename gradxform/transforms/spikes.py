"""Skip steps whose norm or loss spikes above its last values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradxform.core.arguments import Scalar, limit, number, places, static
from gradxform.core.factory import factory
from gradxform.core.foreign import inside
from gradxform.core.state import Fresh, between, counted_if, stored
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas
from gradxform.transforms.history import PercentileState, first_rows, one_more, with_norm


class SkipSpikesState(NamedTuple):
    """State of `skip_spikes`.

    Number of recorded norms or losses, and a ring buffer of the last ones; number of skipped steps in a row and in
    total; whether the last step applies; inner state.
    """

    count: Any
    history: Any
    consecutive: Any
    total: Any
    due: Any
    inner: Any


@factory(tx=inside, threshold=limit, window=places)
def skip_spikes(tx: Any, threshold: Scalar = 6.0, window: int = 128, *, of: str = "norm") -> GradientTransformation:
    r"""Apply a transform, but skip steps whose global norm, or loss, is far above its last values.

    With mean and standard deviation of the last `window` values:

    .. math:: g \leftarrow t(g) \text{ if } x \le \mu + z_0 \sigma, \text{ else } 0

    A skipped step returns zeros, keeps the inner state, and does not enter the window; `has_updated` is false. No
    step is skipped before the window holds a quarter of its size, or while all its values are equal; `metrics` has the
    count. After that a nonfinite value is a spike. It never enters. Around `accumulate`, each batch is judged; within
    it, `value` is the loss of the last batch alone.

    A run may drift up, or start anew at a higher level. So after a quarter of the window was skipped in a row, the next
    step is applied, whatever its value, and the window starts again with it.

    Args:
        tx: A transform, or any object with `init` and `update`.
        threshold: Number :math:`z_0` of standard deviations: a number, a 0-d array or a schedule.
        window: Number of recorded values, in float32 (float64 for float64 gradients).
        of: What spikes: "norm", or "loss". `update` takes the loss as ``value=``, as in optax: a number or a 0-d array.
            So do `gx.numpy.apply_`, `gx.torch.apply_`, `GradientProcessor`, ``update`` of `gx.mlx.wrap` and the
            ``optimizer.step`` that `gx.torch.attach` hooks, which takes it from a closure, too. Along axes of `across`,
            pass the mean loss of all devices.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state has the size of the window.

    Raises:
        TypeError: `tx` is not a transform, `threshold` is not a number, or `window` is not an int. On use: the loss is
            not a number.
        ValueError: `threshold` is negative or NaN, `window` is below 1, or `of` is neither of the two. On use: the loss
            is missing.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.skip_spikes(gx.identity(), threshold=6.0, window=8, of="loss")
        >>> state = tx.init([np.zeros(1)])
        >>> for loss in (2.0, 2.1, 1.9, 7.0, 1.8):
        ...     updates, state = tx.update([np.ones(1)], state, value=loss)
        ...     print(loss, updates)
        2.0 [array([1.])]
        2.1 [array([1.])]
        1.9 [array([1.])]
        7.0 [array([0.])]
        1.8 [array([1.])]

    References:
        ``SkipStepOptimizer`` of OLMo-core, with the same defaults; ``SkipStepConfig`` of levanter.
    """
    if of not in ("norm", "loss"):
        raise ValueError(f"skip_spikes: of must be 'norm' or 'loss', got {of!r}")

    def rule(g: Tree, state: SkipSpikesState, context: Context) -> tuple[Tree, SkipSpikesState]:
        if context.flushes:  # there is no gradient to judge
            out, new = tx.rule(g, state.inner, context)
            return out, state._replace(due=stored(g, 1.0, state.due), inner=new)
        compute, dtype = g.backend.compute, g.backend.dtype(state.history)
        value = compute(formulas.stack, g.global_norm().value if of == "norm" else _loss(context))
        given = value, *state[:4], between(g, threshold, 0.0, math.inf)
        due, recorded, begun, *skipped = compute(_judged, *given, window=window, dtype=dtype)
        history = compute(with_norm, begun, state.history, recorded, window=window, dtype=dtype)
        count = compute(one_more, begun, recorded, dtype=dtype)
        return counted_if(g, due, tx, state, context, count, history, *skipped)

    def start(fresh: Fresh) -> SkipSpikesState:
        count, history = first_rows(fresh, PercentileState, False, window)
        numbers = fresh.count(), fresh.count(), fresh.flag(True)
        return SkipSpikesState(count, history, *numbers, tx.init(fresh.params))

    needs = ("value",) if of == "loss" else ()
    return stateful(SkipSpikesState, rule, start, tx, stage="skip", needs=needs)


def _loss(context: Context) -> Any:
    value = context.extra.get("value")
    if value is None:
        raise ValueError(
            "skip_spikes(..., of='loss') needs the loss: write value=loss in tx.update, apply_ and GradientProcessor, "
            "optimizer.step(value=loss) after gx.torch.attach, optimizer.update(model, gradients, value=loss) of "
            "gx.mlx.wrap, optimizer.apply(gradients, variables, value=loss) of gx.keras.wrap (with Model.fit, in a "
            "train_step of the model; a LossScaleOptimizer keeps it back), and gx.jax.as_optax(tx) in optax"
        )
    return float(value) if static(value) else number("skip_spikes", "value", value, hint=False)


def _judged(
    xp: Any,
    value: Array,
    count: Array,
    history: Array,
    consecutive: Array,
    total: Array,
    threshold: Array,
    *,
    window: int,
    dtype: str,
) -> tuple[Array, ...]:
    """Whether a step is due; what is recorded, or NaN; the count before it; the skipped steps in a row and in all."""
    value = xp.stop_gradient(xp.rounded(value, dtype))
    most = _limit(xp, count, history, threshold, window=window)
    within = ((value <= most) & (value > -math.inf)) | (most >= math.inf)
    late = consecutive >= window / 4
    applies = within | late
    recorded, due = xp.where(applies, value, float("nan")), xp.any(applies)
    begun = xp.where(within, count, xp.where(late, 0.0 * count, count))
    in_a_row, in_all = (xp.where(number < 2.0**31 - 1, number + 1.0, number) for number in (consecutive, total))
    return due, recorded, begun, xp.where(due, 0.0, in_a_row), xp.where(due, total, in_all)


def _limit(xp: Any, count: Array, history: Array, threshold: Array, *, window: int) -> Array:
    """The mean plus standard deviations of the recorded values; infinity before the window holds a quarter."""
    filled = xp.where(count < window, count, window)
    there = xp.arange(window) < filled
    unit = xp.power_of_two(xp.max_over(xp.where(there, xp.abs(history), 0.0), None))  # so that squares are in range
    values = xp.where(there, history / unit, 0.0)
    mean = xp.sum(values, axis=-1) / xp.where(filled > 1.0, filled, 1.0)
    rest = xp.where(there, values - mean, 0.0)
    variance = xp.sum(rest * rest, axis=-1) / xp.where(filled > 2.0, filled - 1.0, 1.0)
    varies = variance > 0.0
    most = unit * (mean + threshold * xp.sqrt(xp.where(varies, variance, 1.0)))
    return xp.where(varies & (filled >= window / 4), most, math.inf)
