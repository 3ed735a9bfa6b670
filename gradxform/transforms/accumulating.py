"""Accumulate gradients over several steps."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradxform.core import align
from gradxform.core.arguments import places, static
from gradxform.core.factory import factory
from gradxform.core.foreign import as_transformation, inside
from gradxform.core.state import Fresh, applied_if, shown, stored, zero_if
from gradxform.core.transform import Context, GradientTransformation, once_flushed, stateful
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


@factory(tx=inside, every=places)
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
    unit = 0.5 ** (every - 1).bit_length()  # a power of two: nothing is rounded, and no sum overflows

    def rule(g: Tree, state: AccumulateState, context: Context) -> tuple[Tree, AccumulateState]:
        dense, compute = g.dense(), g.backend.compute
        old, rest = align.of_state(dense, state.sum, "accumulate: the sums")
        flushes, count = context.flushes, state.count
        context = once_flushed(context, [tx])
        due = compute(_is_held, count) if flushes else compute(_is_last, count, every=every)
        known = static(due) and not g.groups  # then sums are either returned or kept
        into = old if context.owned and known else None
        total = dense.mapped(_sum, old, numbers=[unit], out=into)

        given: list[Any] = []

        def means() -> Tree:
            mean = shown(
                dense, total, context, compute(_unscaled, count, unit=unit) if flushes else 1.0 / (unit * every)
            )
            given.extend(mean.leaves)
            return mean

        out, new = applied_if(dense, due, tx, means, state.inner, context)
        held = set(map(id, given))
        own = into is not None and not any([id(leaf) in held for leaf in total])
        sums = rest.replaced(dense, zero_if(g, due, total, total if own else None))
        count = stored(g, 0.0 if flushes else compute(_next_place, count, every=every), count)
        return out, AccumulateState(count, sums, stored(g, due, state.due), new)

    def start(fresh: Fresh) -> AccumulateState:
        return AccumulateState(fresh.count(), fresh.zeros(), fresh.flag(False), tx.init(fresh.params))

    return stateful(AccumulateState, rule, start, tx, stage="accumulate", waits=True)


def flush(tx: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
    r"""Apply what an unfinished window of `accumulate` holds, such as the last batches of an epoch.

    With m gradients in the window:

    .. math:: t\Bigl(\tfrac{1}{m} \sum_{s=t-m+1}^{t} g^{(s)}\Bigr)

    The window is empty afterwards. Transforms around `accumulate`, or before it in a chain, see no gradient and keep
    their states; those after it in a chain follow. With an empty window the result is zeros, and `has_updated` is
    false.

    Args:
        tx: A transform with `accumulate` in it.
        state: Its state.
        params: The parameters, a tree like the gradients. The result has their dtypes.
        **extra: As in `GradientTransformation.update`.

    Returns:
        The transformed mean and the new state, as from `GradientTransformation.update`.

    Raises:
        TypeError: `tx` is not a transform, or has no `accumulate`.
        ValueError: One `accumulate` fills another.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx, params = gx.accumulate(gx.identity(), every=4), [np.zeros(2)]
        >>> state = tx.init(params)
        >>> for value in ([2.0, 8.0], [4.0, 0.0], [0.0, 1.0]):
        ...     _, state = tx.update([np.array(value)], state)
        >>> updates, state = gx.flush(tx, state, params)
        >>> print(updates, int(state.count))
        [array([2., 3.])] 0

    References:
        The last step of an epoch under ``gradient_accumulation_steps`` of Hugging Face's Accelerate.
    """
    tx = as_transformation("flush", tx, state, "gx.flush(tx, state, params)")
    check_waits("flush", tx)
    view = Tree.read(params)
    if view is None:
        return params, state
    align.check_state(view, state)
    nothing = view.given(view.backend.zeros([view.leaves[i] for i in view.chosen]))
    view, state = tx.rule(nothing, state, Context(params, extra, flushes=True))
    return view.tree(), state


def check_waits(what: str, tx: GradientTransformation) -> None:
    """Reject a transformation without a window."""
    if not tx.traits.waits:
        raise TypeError(f"{what}: {tx!r} has no accumulate(...), so that no gradients wait to be applied")


_sum = Combination(lambda xp, unit: (unit, 1.0))


def _is_last(xp: Any, count: Array, *, every: int) -> Array:
    return count + 1.0 >= every


def _is_held(xp: Any, count: Array) -> Array:
    return count > 0.0


def _unscaled(xp: Any, count: Array, *, unit: float) -> Array:
    return 1.0 / (unit * xp.where(count > 0.0, count, 1.0))


def _next_place(xp: Any, count: Array, *, every: int) -> Array:
    return xp.where(count + 1.0 >= every, 0.0, count + 1.0)
