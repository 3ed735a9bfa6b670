"""Compress gradients, and add what that leaves out to the next one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradxform.core import align, arguments
from gradxform.core.factory import factory
from gradxform.core.foreign import inside
from gradxform.core.transform import Context, GradientTransformation, stateful, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.numerics.elementwise import weighted
from gradxform.transforms.across import check_whole


@factory()
def top_k(fraction: float, *, sparse: bool = False) -> GradientTransformation:
    r"""Keep the elements of the largest size in each gradient; set the others to zero.

    Of a gradient with N elements, k are kept: ``fraction * N``, rounded half up, but at least one. Ties with the k-th
    are kept too, so equal gradients have the same elements kept in every framework:

    .. math:: g_{ij} \leftarrow g_{ij} \text{ where } |g_{ij}| \ge t_i, \text{ else } 0,
        \quad t_i = k\text{-th largest of } |g_{i1}|, \ldots, |g_{iN}|

    Kept numbers keep every bit. NaN counts as the largest size, infinity as the next. Elements are compared before an
    earlier `scale` or clip rounds them. Put it in `error_feedback`, which adds what is left out to the next gradient.

    Args:
        fraction: Share of the elements to keep: a Python number above 0, at most 1.
        sparse: Whether results become sparse COO tensors of the elements that are not zero, for PyTorch's optimizers
            that take them. On a GPU this costs one host sync per gradient. A later transform that needs every element,
            such as `ema`, makes them dense again. Default: sparse gradients stay sparse, dense ones dense.

    Returns:
        A stateless transform for gradients of any shape, in float16, bfloat16, float32 or float64.

    Raises:
        TypeError: `fraction` is not a Python number, or `sparse` is not a bool. On use: a gradient is complex or
            integer, or it cannot become sparse; the message gives the path.
        ValueError: `fraction` is not above 0 and at most 1. On use: the gradient is split by ``across(...,
            split="leaves")``, or is `tf.IndexedSlices` without a dense shape.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.top_k(0.5)([np.array([0.1, -3.0, 2.0, -0.5])])
        [array([ 0., -3.,  2.,  0.])]

    References:
        Aji and Heafield, Sparse communication for distributed gradient descent, 2017; Lin, Han, Mao, Wang and Dally,
        Deep gradient compression: reducing the communication bandwidth for distributed training, 2018.
    """
    if isinstance(fraction, bool) or not arguments.static(fraction):
        raise TypeError(f"top_k: fraction must be a Python number, got {fraction!r}: it is fixed for all steps")
    if not 0 < fraction <= 1:
        must = f"above 0 and at most 1, got {fraction!r}; for k of n elements, write k / n"
        raise ValueError(f"top_k: fraction must be {must}")
    if not isinstance(sparse, bool):
        raise TypeError(f"top_k: sparse must be True or False, got {sparse!r}")

    def rule(g: Tree) -> Tree:
        g.check_real("top_k", "complex numbers would be compared by rounded sizes")
        check_whole(g, "top_k", "and does not know the largest elements of the whole")
        ranks = {i: _rank(g, i, float(fraction)) for i in g.chosen}
        some = [i for i, rank in ranks.items() if rank is not None]
        new = g.backend.largest([g.leaves[i] for i in some], [ranks[i] for i in some])
        kept = g.with_leaves(some, new)
        return kept.sparse("top_k") if sparse else kept

    return stateless(rule)


def _rank(g: Tree, i: int, fraction: float) -> Any:
    """Return how many elements of a gradient are kept; None if it has no more values."""
    held, size = (g.backend.count(leaf, None) for leaf in (g.leaves[i], g.source.given(i)))  # of a sparse one, too
    if not isinstance(size, float):
        return g.backend.compute(_rounded, size, fraction=fraction)
    rank = max(1, math.floor(fraction * size + 0.5))
    return None if isinstance(held, float) and rank >= held else rank


def _rounded(xp: Any, size: Array, *, fraction: float) -> Array:
    near = xp.floor(fraction * size + 0.5)
    return xp.where(near > 1.0, near, 1.0)


class ErrorFeedbackState(NamedTuple):
    """State of `error_feedback`: what was left out of each gradient, in float32 or float64, and the inner state."""

    error: Any
    inner: Any


@factory(tx=inside)
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

    def rule(g: Tree, state: ErrorFeedbackState, context: Context) -> tuple[Tree, ErrorFeedbackState]:
        dense = g.dense()
        old, errors = align.of_state(dense, state.error, "error_feedback: the errors")
        whole = dense.given(dense.mapped(weighted, old, numbers=[None, None])).lent()  # read again below
        out, kept = tx.rule(whole, state.inner, context)
        errors_of = dict(zip(dense.chosen, old, strict=True))
        before, given = [errors_of[i] for i in out.chosen], [whole.leaves[i] for i in out.chosen]
        results, own = [out.leaves[i] for i in out.chosen], g.backend.dtype
        narrow = any(own(new) != own(leaf) for new, leaf in zip(results, given, strict=True))
        wide = out.given(g.backend.cast(results, given), applied=False) if narrow else out
        error = wide.mapped(_rest, given, before, out=before if context.owned else None)
        return out, ErrorFeedbackState(errors.replaced(out, error), kept)

    return stateful(
        ErrorFeedbackState, rule, lambda fresh: ErrorFeedbackState(fresh.zeros(), tx.init(fresh.params)), tx
    )


def _rest(xp: Any, result: Array, given: Array, before: Array) -> Array:
    rest = given - result
    return xp.where(xp.isfinite(rest), rest, before)
