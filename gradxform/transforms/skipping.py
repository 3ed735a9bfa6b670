"""Apply a transform at some steps only: skip what is not finite or too large, and accumulate several gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gradxform.backend.errors import short
from gradxform.backend.lookup import unwrapped
from gradxform.backend.protocol import Steps
from gradxform.core import align, holding
from gradxform.core.arguments import Scalar, count, limit, places, static
from gradxform.core.factory import factory
from gradxform.core.foreign import as_transformation, inside
from gradxform.core.norm import clip_coefficient
from gradxform.core.state import Fresh, applied_if, counted_if, overwritten, shown, stored, zero_if
from gradxform.core.transform import (
    Context,
    GradientTransformation,
    ScheduleState,
    once_flushed,
    stateful,
    stateless,
    unconverted,
)
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.numerics.elementwise import weighted
from gradxform.transforms.spikes import SkipSpikesState


@factory()
def zero_nonfinite() -> GradientTransformation:
    r"""Replace each NaN or infinite element by zero.

    .. math:: g_{ij} \leftarrow 0 \quad\text{where not finite}

    A complex element is replaced as a whole. Finite elements keep every bit.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.zero_nonfinite()([np.array([np.nan, 2.0, -np.inf])])
        [array([0., 2., 0.])]

    References:
        ``optax.zero_nans`` (NaN only).
    """

    def zeroed(g: Tree) -> Tree:
        g.check()
        if not g.chosen:
            return g
        leaves, shown = ([view.leaves[i] for i in g.chosen] for view in (g, g.shown()))
        zeroed = g.given(g.selected(_zero_nonfinite, leaves, shown), applied=False)
        if g.factor is None:
            return zeroed
        return zeroed._replace(factor=g.backend.compute(_one_unless_finite, g.factor, active=g.active))

    return stateless(zeroed, stage="zero")


def _zero_nonfinite(xp: Any, x: Array, shown: Array) -> Array:
    return xp.where(xp.isfinite(shown), x, xp.zeros_like(x))


def _one_unless_finite(xp: Any, factor: Array, *, active: tuple[bool, ...]) -> Array:
    return xp.where(xp.mask(active), xp.where(xp.isfinite(factor), factor, 1.0), factor)


class SkipNonfiniteState(NamedTuple):
    """State of `skip_nonfinite`.

    Number of nonfinite steps in a row and in total; whether the last step applies; inner state.
    """

    consecutive: Any
    total: Any
    due: Any
    inner: Any


@factory(tx=inside, max_consecutive=count)
def skip_nonfinite(tx: Any, max_consecutive: int | None = None) -> GradientTransformation:
    r"""Apply a transform, but skip steps with a NaN or infinite gradient.

    .. math:: g \leftarrow t(g) \text{ if all finite, else } 0

    A skipped step returns zeros and keeps the inner state; `has_updated` is false. After `max_consecutive` skipped
    steps in a row, the next step passes, so that a failed run fails visibly.

    Args:
        tx: A transform, or any object with `init` and `update`.
        max_consecutive: Maximum number of skipped steps in a row. Default: unlimited.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state has two counters.

    Raises:
        TypeError: `tx` is not a transform, or `max_consecutive` is not an int.
        ValueError: `max_consecutive` is negative.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.skip_nonfinite(gx.scale(2.0))
        >>> updates, state = tx.update([np.array([np.nan, 1.0])], tx.init([np.zeros(2)]))
        >>> updates, int(state.total), bool(gx.has_updated(state))
        ([array([0., 0.])], 1, False)

    References:
        Micikevicius et al., Mixed precision training, 2018 (skipped steps of loss scaling); ``optax.apply_if_finite``.
    """

    def rule(g: Tree, state: SkipNonfiniteState, context: Context) -> tuple[Tree, SkipNonfiniteState]:
        compute, finite = g.backend.compute, g.shown().is_finite()
        consecutive, total = compute(_in_a_row, state.consecutive, finite), compute(_in_all, state.total, finite)
        due = finite if max_consecutive is None else compute(_or_too_many, finite, consecutive, most=max_consecutive)
        return counted_if(g, due, tx, state, context, consecutive, total)

    def start(fresh: Fresh) -> SkipNonfiniteState:
        return SkipNonfiniteState(fresh.count(), fresh.count(), fresh.flag(True), tx.init(fresh.params))

    return stateful(SkipNonfiniteState, rule, start, tx, stage="skip")


def _in_a_row(xp: Any, count: Array, finite: Array) -> Array:
    return xp.where(finite > 0.0, 0.0, _in_all(xp, count, finite))


def _in_all(xp: Any, count: Array, finite: Array) -> Array:
    return xp.where((finite > 0.0) | (count >= 2.0**31 - 1), count, count + 1.0)


def _or_too_many(xp: Any, finite: Array, consecutive: Array, *, most: int) -> Array:
    return (finite > 0.0) | (consecutive > most)


class SkipLargeState(NamedTuple):
    """State of `skip_large`: number of skipped steps, whether the last step applies, inner state."""

    total: Any
    due: Any
    inner: Any


@factory(tx=inside, max_norm=limit)
def skip_large(tx: Any, max_norm: Scalar) -> GradientTransformation:
    r"""Apply a transform, but skip steps whose global norm exceeds ``max_norm``.

    .. math:: g \leftarrow t(g) \text{ if } n \le c, \text{ else } 0

    A skipped step returns zeros and keeps the inner state; `has_updated` is false. A nonfinite norm exceeds every
    limit.

    Args:
        tx: A transform, or any object with `init` and `update`.
        max_norm: Limit c, in the gradients' units: a number, a 0-d array or a schedule.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. Its state has a counter.

    Raises:
        TypeError: `tx` is not a transform, or `max_norm` is not a number.
        ValueError: `max_norm` is negative or NaN.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.skip_large(gx.scale(2.0), 10.0)
        >>> updates, state = tx.update([np.array([30.0, 40.0])], tx.init([np.zeros(2)]))
        >>> updates, int(state.total)
        ([array([0., 0.])], 1)

    References:
        ``optax.skip_large_updates``.
    """

    def rule(g: Tree, state: SkipLargeState, context: Context) -> tuple[Tree, SkipLargeState]:
        norm, compute = g.global_norm(), g.backend.compute
        due = compute(_is_within, norm.value, clip_coefficient(norm, max_norm))
        return counted_if(g, due, tx, state, context, compute(_in_all, state.total, due))

    def start(fresh: Fresh) -> SkipLargeState:
        return SkipLargeState(fresh.count(), fresh.flag(True), tx.init(fresh.params))

    return stateful(SkipLargeState, rule, start, tx, stage="skip")


def _is_within(xp: Any, norm: Array, factor: Array) -> Array:
    return xp.isfinite(norm) & (factor >= 1.0)


# --- windows of several gradients -------------------------------------------------------------------------------------


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
        due, after = compute(_turn, count, every=every, flushes=flushes)
        known = static(due) and not g.groups  # then sums are either returned or kept
        by = compute(_unscaled, count, unit=unit) if flushes else 1.0 / (unit * every)
        next_count = stored(g, after, count)
        if known and not tx.traits.stops:
            steps: Steps = [(1, {0: unit, 1: None}), *([(0, {1: by}), (1, {})] if due else [(0, {})])]
            here = overwritten(dense, old, steps, context)
            if here is not None:
                out, new = tx.rule(here, state.inner, context) if due else (here, state.inner)
                return out, AccumulateState(next_count, rest.replaced(dense, old), stored(g, due, state.due), new)
        into = old if context.owned and known else None
        total = dense.mapped(weighted, old, numbers=[unit, None], out=into)
        given: list[Any] = []

        def means() -> Tree:
            mean = shown(dense, total, context, by)
            given.extend(mean.leaves)
            return mean

        out, new = applied_if(dense, due, tx, means, state.inner, context)
        own = into is not None and set(map(id, given)).isdisjoint(map(id, total))
        sums = rest.replaced(dense, zero_if(g, due, total, total if own else None))
        return out, AccumulateState(next_count, sums, stored(g, due, state.due), new)

    def start(fresh: Fresh) -> AccumulateState:
        return AccumulateState(fresh.count(), fresh.zeros(), fresh.flag(False), tx.init(fresh.params))

    return stateful(AccumulateState, rule, start, tx, stage="accumulate", waits=True)


def flush(tx: Any, state: Any = None, params: Any = None, **extra: Any) -> tuple[Any, Any]:
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
        TypeError: `tx` is not a transform, or has no `accumulate`; or an adapter, which has its own `flush`.
        ValueError: There are no parameters, or one `accumulate` fills another.

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
    if callable(getattr(tx, "flush", None)):
        raise TypeError(f"flush: {short(tx)} has a method of its own; write .flush(...)")
    tx = as_transformation("flush", tx, state, "gx.flush(tx, state, params)")
    check_waits("flush", tx)
    view = Tree.read(params)
    if view is None:
        raise ValueError(f"flush: there are no parameters in {short(params)}; write gx.flush(tx, state, params)")
    align.check_state(view, state)
    nothing = view.given(view.backend.zeros([view.leaves[i] for i in view.chosen]))
    view, state = tx.rule(nothing, state, Context(params, extra, flushes=True))
    return view.tree(), state


def check_waits(what: str, tx: GradientTransformation) -> None:
    """Reject a transformation without a window."""
    if tx.traits.label:
        why = f"{tx!r} is of another library, which knows no flush"
        raise TypeError(f"{what}: {why}; write gx.accumulate(optax.chain(...), every) around its transforms")
    if not tx.traits.waits:
        raise TypeError(f"{what}: {tx!r} has no accumulate(...), so that no gradients wait to be applied")


def _turn(xp: Any, count: Array, *, every: int, flushes: bool) -> tuple[Any, Any]:
    """Whether the means are returned in this step, and the number of gradients in the sums after it."""
    if flushes:
        return count > 0.0, 0.0
    due = count + 1.0 >= every
    return due, xp.where(due, 0.0, count + 1.0)


def _unscaled(xp: Any, count: Array, *, unit: float) -> Array:
    return 1.0 / (unit * xp.where(count > 0.0, count, 1.0))


# --- whether a step applies -------------------------------------------------------------------------------------------


@unconverted
def has_updated(state: Any) -> Any:
    """Return whether the last update applies: false after a skipped or merely accumulated step.

    Momentum and weight decay move weights on zero gradients too, so skip the optimizer if this is false.

    Args:
        state: State of any transform, nested or not, or an object that holds one, as in `metrics`. What optax itself
            skips, as in ``optax.MultiSteps``, does not count: ask optax.

    Returns:
        True if no transform skipped the step; otherwise a 0-d bool of the state's framework.

    Raises:
        TypeError: `state` holds no state.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.accumulate(gx.identity(), every=2)
        >>> state = tx.init([np.zeros(1)])
        >>> for _ in range(2):
        ...     updates, state = tx.update([np.ones(1)], state)
        ...     print(bool(gx.has_updated(state)))
        False
        True

    References:
        ``optax.MultiSteps.has_updated``.
    """
    holding.check("has_updated", state)
    return due(state)


_SKIPPING = AccumulateState, SkipLargeState, SkipNonfiniteState, SkipSpikesState


def due(state: Any) -> Any:
    """Whether nothing in a state skips the step; True for other objects."""
    return _all([unwrapped(found.due) for found in states_in(state, _SKIPPING)])


def states_in(node: Any, kinds: type | tuple[type, ...]) -> list[Any]:
    """Return the states of some kinds in a state, or in an object that holds one; outer ones first."""
    own = [node] if isinstance(node, kinds) else []
    return own + [found for part in holding.parts(node) or () for found in states_in(part, kinds)]


def is_due(tx: GradientTransformation, state: Any) -> Any:
    """Whether the step with this state applies: True, or a bool of the framework; for adapters.

    Conditions inside a mask concern only the masked variables, and are ignored.
    """
    traits, state = tx.traits, state.inner if isinstance(state, ScheduleState) else state
    if not tx.stateful or (traits.masks is not None and traits.states is None):
        return True
    if traits.states is not None:
        return _all([is_due(part, inner) for part, inner in zip(traits.parts, traits.states(state), strict=True)])
    if isinstance(state, _SKIPPING):
        return _all([unwrapped(state.due), *[is_due(part, state.inner) for part in traits.parts]])
    return due(state)


def _all(conditions: Iterable[Any]) -> Any:
    """Whether all conditions hold; True, or a bool of the framework."""
    found: Any = True
    for condition in conditions:
        found = condition if found is True else found if condition is True else found & condition
    return found
