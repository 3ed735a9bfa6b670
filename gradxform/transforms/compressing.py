"""Add what a transform leaves out to the next gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradxform.core import elements
from gradxform.core import state as stateful
from gradxform.core.factory import factory
from gradxform.core.flat import Flat
from gradxform.core.foreign import as_transformation
from gradxform.core.keeping import keeping
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array


class ErrorFeedbackState(NamedTuple):
    """State of `error_feedback`: what was left out of each gradient, in float32 or float64, and the inner state."""

    error: Any
    inner: Any


@factory
def error_feedback(tx: Any) -> GradientTransformation:
    r"""Apply a transform, and add what it leaves out to the next gradient.

    The error e is the difference between what the transform `tx` gets and what it returns:

    .. math:: p = g_i + e, \quad g_i \leftarrow t(p), \quad e \leftarrow p - t(p)

    So a compressing transform, such as `sign` or `clip_value`, delays what it drops. Errors start at zero. They are
    float32 (float64 for float64 gradients) and rounded once a step, before a result is rounded to half precision. Where
    the difference is not finite, the error stays as it is; so it does for None, and where `tx` stops a gradient.

    Put `accumulate` outside: inside, each gradient would count twice.

    Args:
        tx: A transform, or any object with `init` and `update`.

    Returns:
        A transform for gradients of any shape and floating or complex dtype. The state has the gradients' size, and the
        state of `tx`.

    Raises:
        TypeError: `tx` is not a transform. On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.error_feedback(gx.clip_value(1.0))
        >>> state = tx.init([np.zeros(1)])
        >>> for value in (2.5, 0.0, 0.0):
        ...     updates, state = tx.update([np.array([value])], state)
        ...     print(updates, state.error)
        [array([1.])] [array([1.5])]
        [array([1.])] [array([0.5])]
        [array([0.5])] [array([0.])]

    References:
        Seide, Fu, Droppo, Li and Yu, 1-bit stochastic gradient descent and its application to data-parallel distributed
        training of speech DNNs, 2014; Karimireddy, Rebjock, Stich and Jaggi, Error feedback fixes SignSGD and other
        gradient compression schemes, 2019.
    """
    inner = as_transformation("error_feedback", tx)

    def rule(g: Flat, state: ErrorFeedbackState, context: Context) -> tuple[Flat, ErrorFeedbackState]:
        dense = g.dense()
        old = elements.state(dense, state.error, "error_feedback: the errors")
        whole = dense.given(elements.mapped(dense, _sum, old)).lent()  # read again below
        out, kept = inner.rule(whole, state.inner, context)
        place = {i: rank for rank, i in enumerate(dense.chosen)}
        before, given = [old[place[i]] for i in out.chosen], [whole.leaves[i] for i in out.chosen]
        error = elements.mapped(out, _rest, given, before, out=before if context.owned else None)
        return out, ErrorFeedbackState(elements.replaced_in(out, state.error, error), kept)

    def start(params: Any) -> ErrorFeedbackState:
        return ErrorFeedbackState(stateful.Fresh(params).zeros(), inner.init(params))

    return keeping("error_feedback", ErrorFeedbackState, rule, start)


def _sum(xp: Any, x: Array, error: Array) -> Array:
    return x + error


def _rest(xp: Any, result: Array, given: Array, before: Array) -> Array:
    rest = given - result
    return xp.where(xp.isfinite(rest), rest, before)
