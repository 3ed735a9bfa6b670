"""Accumulate gradients over several steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradxform.core import align, arguments
from gradxform.core.factory import factory
from gradxform.core.foreign import as_transformation
from gradxform.core.state import Fresh, applied_if, is_known, shown, stored, zero_if
from gradxform.core.transform import Context, GradientTransformation, stateful
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.numerics.elementwise import Combination


class AccumulateState(NamedTuple):
    """State of `accumulate`.

    Number of gradients in the sums; sums, scaled by a power of two; whether the last step applies; inner state.
    """

    count: Any
    sum: Any
    due: Any
    inner: Any


@factory
def accumulate(tx: Any, every: int) -> GradientTransformation:
    r"""Apply a transform to the mean of every ``every`` gradients, and return zeros in between.

    Each k-th step returns ``tx(mean of the last k gradients)``:

    .. math:: g \leftarrow t\Bigl(\tfrac{1}{k} \sum_{s=t-k+1}^{t} g^{(s)}\Bigr)
        \text{ at each k-th step, else } 0

    `has_updated` tells whether the step applies. Sums are float32 (float64 for float64 gradients), and scaled: those of
    finite gradients cannot overflow. A None gradient adds nothing.

    Args:
        tx: A transform, or any object with `init` and `update`. Its state changes only at each k-th step.
        every: Number k of gradients, at least 1.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size.

    Raises:
        TypeError: `tx` is not a transform, or `every` is not an int.
        ValueError: `every` is below 1.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.accumulate(gx.clip_norm(5.0), every=2)
        >>> state = tx.init([np.zeros(2)])
        >>> for value in ([2.0, 8.0], [4.0, 0.0]):
        ...     updates, state = tx.update([np.array(value)], state)
        ...     print(updates)
        [array([0., 0.])]
        [array([3., 4.])]

    References:
        ``optax.MultiSteps``; ``gradient_accumulation_steps`` of Keras optimizers.
    """
    inner, k = as_transformation("accumulate", tx), arguments.integer("accumulate", "every", every, 1)
    unit = 0.5 ** (k - 1).bit_length()  # a power of two: nothing is rounded, and no sum overflows

    def rule(g: Tree, state: AccumulateState, context: Context) -> tuple[Tree, AccumulateState]:
        dense, compute = g.dense(), g.backend.compute
        old, rest = align.of_state(dense, state.sum, "accumulate: the sums")
        due = compute(_is_last, state.count, every=k)
        known = is_known(due) and not g.groups  # then sums are either returned or kept
        into = old if context.owned and known else None
        total = dense.mapped(_sum, old, numbers=[unit], out=into)

        def means() -> Tree:
            return shown(dense, total, context, 1.0 / (unit * k))

        out, new = applied_if(dense, due, inner, means, state.inner, context)
        sums = rest.replaced(dense, zero_if(g, due, total, into))
        count = stored(g, compute(_next_place, state.count, every=k), state.count)
        return out, AccumulateState(count, sums, stored(g, due, state.due), new)

    def start(fresh: Fresh) -> AccumulateState:
        return AccumulateState(fresh.count(), fresh.zeros(), fresh.flag(False), inner.init(fresh.params))

    return stateful(AccumulateState, rule, start, inner, stage="accumulate")


_sum = Combination(lambda xp, unit: (unit, 1.0))


def _is_last(xp: Any, count: Array, *, every: int) -> Array:
    return count + 1.0 >= every


def _next_place(xp: Any, count: Array, *, every: int) -> Array:
    return xp.where(count + 1.0 >= every, 0.0, count + 1.0)
