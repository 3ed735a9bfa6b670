"""Keep only the updates that agree with the gradients."""

from __future__ import annotations

from typing import Any

from gradxform.core import align
from gradxform.core.arguments import Scalar, limit
from gradxform.core.factory import factory
from gradxform.core.leaves import REAL
from gradxform.core.state import between
from gradxform.core.transform import Context, GradientTransformation, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas, sums_dtype


@factory(eps=limit)
def cautious(*, eps: Scalar = 1e-3, negated: bool | None = None) -> GradientTransformation:
    r"""Set updates whose sign disagrees with the gradient to zero, and enlarge the others.

    An element u of an update with gradient g is kept if ``u * g > 0``. Those that are kept are divided by their share m
    of the update's elements, so that the mean size stays:

    .. math:: u_i \leftarrow \frac{u_i \, [u_i g_i > 0]}{\max(m, \epsilon)}, \quad m = \frac{1}{d} \sum_i [u_i g_i > 0]

    Place it after the optimizer's own transform and before ``scale(-learning_rate)``, where an update has the sign of
    the gradients that it averages. After that, updates point against the gradients: ``negated=True``. An update whose
    elements all agree keeps every bit. An element that disagrees and is not finite turns its update into NaN. When an
    adapter flushes a window of `accumulate` around it, there is no gradient, and the update stays as it is.

    Args:
        eps: Smallest share to divide by, dimensionless: a number, a 0-d array or a schedule.
        negated: Whether updates have the minus sign already, so that they are added to the parameters. Default: True in
            an adapter with ``on="updates"``, else False.

    Returns:
        A stateless transform for updates of any shape and real floating dtype. Its `update` needs the gradients:
        ``tx.update(updates, state, params, gradients=gradients)``. Adapters with ``on="updates"`` pass them.

    Raises:
        TypeError: `eps` is not a number. On use: an update is complex or integer; the message gives its path.
        ValueError: `eps` is negative or NaN, or `negated` is neither a bool nor None. On use: gradients are missing.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gradients = [np.array([1.0, -2.0, 3.0, 4.0])]
        >>> updates, _ = gx.cautious().update([np.array([0.3, 0.5, 0.6, -0.1])], gradients=gradients)
        >>> updates
        [array([0.6, 0. , 1.2, 0. ])]

    References:
        Liang, Chen, Liu and Liu, Cautious optimizers: improving training with one line of code, 2024; the lower bound
        on the share is the one of the authors' C-Optim and of timm.
    """
    if negated is not None and not isinstance(negated, bool):
        raise ValueError(f"cautious: negated must be True, False or None, got {negated!r}")

    def rule(g: Tree, context: Context) -> Tree:
        g.check_real("cautious", "a complex number has no sign")
        if context.extra.get("gradients", ...) is None:  # an adapter flushes a window, so there is no gradient
            return g
        gradients = align.beside(g, context.extra.get("gradients"), "cautious", "gradients")
        for i, leaf in zip(g.chosen, gradients, strict=True):
            if (kind := g.backend.dtype(leaf)) not in REAL:
                what = f"the gradient beside the update at {g.source.path(i)!r} has dtype {kind}, not a real one"
                raise TypeError(f"cautious: {what}")
        flip = -1.0 if (context.added if negated is None else negated) else 1.0
        dense = g.dense()
        own = [dense.leaves[i] for i in dense.chosen]
        signs = flip if g.factor is None else g.backend.compute(_signs, g.factor, flip=flip)
        if isinstance(signs, float):  # in their own dtype: with factors, 300 leaves take 352 launches; 80 are allowed
            agreeing = g.backend.each(_agreeing if signs > 0.0 else _agreeing_negated, [own, gradients], ())
        else:
            directions = dense._replace(factor=signs).each_factor(dense.chosen)
            pairs = [  # the formula is symmetric, and computed in the dtype of its first argument
                (update, leaf) if sums_dtype(update) == "float64" else (leaf, update)
                for update, leaf in zip(own, gradients, strict=True)
            ]
            agreeing = g.backend.elementwise(_agreeing, list(zip(*pairs, strict=True)), (), directions)
        share = dense.given(agreeing).average_norms(1)  # of ones
        kept = dense.given(dense.selected(_kept, own, agreeing), applied=False)
        return kept.scaled(g.compute(_enlarging, share, between(g, eps, 0.0, 1.0)))

    return stateless(rule, needs=("gradients",))


def _signs(xp: Any, factor: Array, *, flip: float) -> Array:
    """The signs by which pending factors and the place turn updates."""
    return xp.where(factor < 0.0, -flip, flip)


def _agreeing(xp: Any, update: Array, gradient: Array) -> Array:
    """One where both have one sign, else zero; NaN if one of those that disagree is not finite."""
    agree = ((update > 0.0) & (gradient > 0.0)) | ((update < 0.0) & (gradient < 0.0))
    finite = xp.isfinite(update) & xp.isfinite(gradient)
    return xp.where(agree, 1.0, xp.where(finite, xp.zeros_like(update), float("nan")))  # in the update's dtype


def _agreeing_negated(xp: Any, update: Array, gradient: Array) -> Array:
    return _agreeing(xp, update, -gradient)


def _kept(xp: Any, update: Array, agreeing: Array) -> Array:
    return xp.where(agreeing > 0.0, update, xp.zeros_like(update))


def _enlarging(xp: Any, share: Array, eps: Array) -> Array:
    """The inverse of the share of ones."""
    share = xp.where(share > 1.0 - 2.0**-44, 1.0, share)  # compilers divide by a known count with a rounded inverse
    least = xp.where(share < eps, eps, share)
    return xp.where(formulas.equal(least, 0.0), 1.0, 1.0 / least)
