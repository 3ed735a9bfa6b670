"""Bring gradients to one norm, sign, mean or direction, or keep those that agree with others."""

from __future__ import annotations

import functools
import operator
from typing import Any

from gradxform.core import align
from gradxform.core.arguments import Scalar, limit
from gradxform.core.factory import factory
from gradxform.core.leaves import REAL, put
from gradxform.core.state import between
from gradxform.core.transform import Context, GradientTransformation, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array, dtype_name, formulas, sums_dtype
from gradxform.numerics.elementwise import weighted
from gradxform.transforms import units


@factory()
def normalize_norm() -> GradientTransformation:
    r"""Divide each gradient by its own norm.

    .. math:: g_i \leftarrow g_i / \lVert g_i \rVert

    A zero gradient stays zero. A gradient with a NaN or infinite element becomes NaN.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.normalize_norm()([np.array([3.0, 4.0]), np.array([0.1]), np.zeros(2)])
        [array([0.6, 0.8]), array([1.]), array([0., 0.])]

    References:
        You, Gitman and Ginsburg, Large batch training of convolutional networks, 2017.
    """
    return stateless(lambda g: g.scaled(g.backend.compute(formulas.inverse, g.norms().value)), stage="clip")


@factory()
def normalize_global_norm() -> GradientTransformation:
    r"""Divide all gradients by their joint norm.

    .. math:: g_i \leftarrow g_i / n, \quad n = \sqrt{\sum_i \lVert g_i \rVert^2}

    If all gradients are zero, they stay zero. One NaN or infinite element makes all gradients NaN.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype.

    Raises:
        TypeError: On use: a gradient is integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.normalize_global_norm()({"w": np.array([3.0]), "b": np.array([4.0])})
        {'w': array([0.6]), 'b': array([0.8])}

    References:
        Nesterov, Minimization methods for nonsmooth convex and quasiconvex functions, 1984;
        ``optax.normalize_by_update_norm`` (adds 1e-6 to the norm).
    """
    return stateless(lambda g: g.scaled(g.backend.compute(formulas.inverse, g.global_norm().value)), stage="clip")


@factory()
def centralize(*, axes: Any = None) -> GradientTransformation:
    r"""Subtract from each gradient its mean over the inputs of each unit.

    Each gradient g becomes ``g - mean(g, axes)``:

    .. math:: g_i \leftarrow g_i - \operatorname{mean}_{\text{axes}}(g_i)

    Gradients with fewer than two axes are unchanged.

    Args:
        axes: Axes of the mean: "torch" (all but the first; PyTorch's outputs come first), "keras" (all but the last;
            Keras, Flax and Haiku), a tuple, a mapping from a path glob to a tuple, or a function of path and leaf.
            Default: all but the first, as in the paper and in optax.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype.

    Raises:
        TypeError: `axes` has an unknown form. On use: a gradient is complex or integer; the message gives its path.
        ValueError: On use: a gradient lacks one of the axes.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.centralize()([np.array([[1.0, 3.0], [2.0, 6.0]]), np.array([5.0])])
        [array([[-1.,  1.],
               [-2.,  2.]]), array([5.])]

    References:
        Yong, Huang, Hua and Zhang, Gradient centralization: a new optimization technique for deep neural networks,
        2020.
    """
    over = units.check("centralize", "torch" if axes is None else axes)

    def centred(g: Tree) -> Tree:
        g.check_real("centralize", "the mean is taken of real numbers")
        found = units.axes("centralize", over, g)
        many = {i for i in g.chosen if len(units.shape_of("centralize", g, i)) > 1}
        some = g.focus([i in many for i in range(len(g.leaves))]).dense()
        if not some.chosen:
            return g
        leaves, own = [some.leaves[i] for i in some.chosen], [i in some.owned for i in some.chosen]
        new = g.backend.centered(leaves, [found[i] for i in some.chosen], own)
        # Factors stay pending: the difference of equal elements is zero.
        return some.given(new, applied=False).widen(g)

    return stateless(centred)


@factory()
def sign() -> GradientTransformation:
    r"""Replace each element by its sign.

    .. math:: g_i \leftarrow \operatorname{sign}(g_i)

    Zero and NaN are unchanged. A subnormal number gives 0 where the framework treats subnormals as zero.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype.

    Raises:
        TypeError: On use: a gradient is complex or integer; the message gives its path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.sign()([np.array([-3.0, 0.0, 0.5])])
        [array([-1.,  0.,  1.])]

    References:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, signSGD: compressed optimisation for non-convex problems, 2018.
    """

    def signs(g: Tree) -> Tree:
        g.check_real("sign", "a complex number has no sign")
        leaves = [g.leaves[i] for i in g.chosen]
        if not leaves:
            return g
        if g.factor is None:
            return g.given(g.selected(_sign, leaves))
        units = g._replace(factor=g.backend.compute(_unit, g.factor))  # whose products do not underflow
        return g.given(units.mapped(_sign))

    return stateless(signs)


def _sign(xp: Any, x: Array) -> Array:
    if getattr(xp, "sign_keeps_zero", False):  # then nothing is selected, which XLA may keep in memory
        return xp.sign(x)
    return xp.where(xp.abs(x) > 0.0, xp.sign(x), x * 0.0)  # zero keeps its sign; a subnormal may compare as zero


def _unit(xp: Any, factor: Array) -> Array:
    """The signs of factors; infinity and NaN stay."""
    return xp.where(xp.isfinite(factor), xp.where(factor > 0.0, 1.0, xp.where(factor < 0.0, -1.0, 0.0)), factor)


@factory()
def orthogonal_to_parameters() -> GradientTransformation:
    r"""Drop each gradient's part along its parameters, and keep its norm.

    Each gradient g with parameters p, both read as vectors, becomes

    .. math:: g_i \leftarrow \lVert g_i \rVert \frac{u_i}{\lVert u_i \rVert},
        \quad u_i = g_i - \frac{\langle p_i, g_i \rangle}{\langle p_i, p_i \rangle} \, p_i

    A step along u does not only scale the parameters, and so the logits. Parameters that are all zero leave their
    gradient unchanged. A gradient that points along its parameters, to 3e-5 of its norm, becomes zero: what is left of
    it is rounding. So do gradients of one element; exclude them with `masked`. The authors' code adds 1e-30 to both
    divisors instead, and returns rounding errors of the gradient's norm there. A gradient or parameters with a NaN or
    infinite element give NaN. A sparse gradient becomes dense. In `across`, parts are those of the local slice.

    Returns:
        A stateless transform for gradients of any shape and real floating dtype. Its `update` needs the parameters.

    Raises:
        TypeError: On use: a gradient is complex or integer; the message gives its path.
        ValueError: On use: parameters are missing or have another structure, or a rank is unknown in a graph.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.orthogonal_to_parameters()([np.float32([3.0, 4.0])], params=[np.float32([1.0, 0.0])])
        [array([0., 5.], dtype=float32)]

    References:
        Prieto, Barsbey, Mediano and Birdal, Grokking at the edge of numerical stability, 2025; the norm is kept per
        tensor, as in the authors' code.
    """

    def rule(g: Tree, context: Context) -> Tree:
        g.check_real("orthogonal_to_parameters", "the angle is that of real vectors")
        params = align.beside(g, context.params, "orthogonal_to_parameters", "parameters")
        dense, backend = g.dense(), g.backend
        if not dense.chosen:
            return g
        own = [dense.leaves[i] for i in dense.chosen]
        norms, sizes = (backend.norms(leaves, 2.0) for leaves in (own, params))
        products, short = [], []
        for k, (leaf, param) in enumerate(zip(own, params, strict=True)):
            short.append("float64" not in (backend.dtype(leaf), backend.dtype(param)))
            if not short[k]:  # products may exceed float64's range
                by = (backend.compute(_inverse_of, vector, index=k) for vector in (norms, sizes))
                leaf, param = (backend.multiply([x], y, False)[0] for x, y in zip((leaf, param), by, strict=True))
            axes = range(len(units.shape_of("orthogonal_to_parameters", dense, dense.chosen[k])))
            products.append(backend.sum_over(leaf, tuple(axes), param))
        cosines, along = backend.compute(_projection, norms, sizes, *products, short=tuple(short))
        multiples = [backend.compute(formulas.take, along, index=k) for k in range(len(own))]
        unlike = [k for k, both in enumerate(zip(params, own, strict=True)) if len(set(map(sums_dtype, both))) > 1]
        if unlike:
            wide = backend.elementwise(formulas.same, [[own[k] for k in unlike]], ())
            params = put(params, unlike, backend.cast([params[k] for k in unlike], wide))
        rest = dense.given(backend.elementwise(weighted, [params, own], (None, None), multiples), applied=False)
        place = {i: k for k, i in enumerate(dense.chosen)}
        index = tuple(place.get(i, 0) for i in range(len(dense.leaves)))
        return rest.scaled(backend.compute(_restoring, cosines, index=index))

    return stateless(rule, needs=("params",))


def _inverse_of(xp: Any, norms: Array, *, index: int) -> Array:
    return formulas.inverse(xp, xp.take(norms, index))


def _positive(xp: Any, norms: Array) -> Array:
    return xp.where(norms > 0.0, norms, 1.0)


def _projection(xp: Any, norms: Array, sizes: Array, *products: Array, short: tuple[bool, ...]) -> tuple[Array, Array]:
    """The cosines of the angles between gradients and parameters, zero if one of them is zero; what to add of these."""
    lengths = (formulas.where_active(xp, _positive(xp, vector), active=short) for vector in (norms, sizes))
    cosines = functools.reduce(operator.truediv, lengths, xp.stack([xp.reshape(product, ()) for product in products]))
    return cosines, -cosines * norms / _positive(xp, sizes)


def _restoring(xp: Any, cosines: Array, *, index: tuple[int, ...]) -> Array:
    """The inverse sines, which restore the norms; zero where the sine is rounding."""
    squares = 1.0 - cosines * cosines
    found = xp.where(squares > 1e-9, 1.0 / xp.sqrt(xp.where(squares > 1e-9, squares, 1.0)), 0.0)
    return xp.take(xp.where(xp.isfinite(cosines), found, float("nan")), index)


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
        if isinstance(signs, float) and signs:  # in their own dtype: with factors, 300 leaves take 352 launches
            agreeing = g.backend.each(_agreeing if signs > 0.0 else _agreeing_negated, [own, gradients], ())
        else:
            directions = dense._replace(factor=signs).each_factor(dense.chosen)
            pairs = [  # the formula is symmetric, and computed in the dtype of its first argument
                (update, leaf) if sums_dtype(update) == "float64" else (leaf, update)
                for update, leaf in zip(own, gradients, strict=True)
            ]
            agreeing = g.backend.elementwise(_agreeing, list(zip(*pairs, strict=True)) or [(), ()], (), directions)
        share = dense.given(agreeing).average_norms(1)  # of ones
        kept = dense.given(dense.selected(_kept, own, agreeing), applied=False)
        return kept.scaled(g.backend.compute(_enlarging, share.value, between(g, eps, 0.0, 1.0)))

    return stateless(rule, needs=("gradients",))


def _signs(xp: Any, factor: Array, *, flip: float) -> Array:
    """The signs by which pending factors and the place turn updates."""
    return flip * xp.sign(factor)


def _agreeing(xp: Any, update: Array, gradient: Array) -> Array:
    """One where both have one sign, else zero; NaN if one of those that disagree is not finite."""
    agree = ((update > 0.0) & (gradient > 0.0)) | ((update < 0.0) & (gradient < 0.0))
    known = agree | (xp.isfinite(update) & xp.isfinite(gradient))
    return xp.where(known, xp.cast(agree, dtype_name(update)), float("nan"))


def _agreeing_negated(xp: Any, update: Array, gradient: Array) -> Array:
    return _agreeing(xp, update, -gradient)


def _kept(xp: Any, update: Array, agreeing: Array) -> Array:
    return xp.where(agreeing > 0.0, update, xp.zeros_like(update))


def _enlarging(xp: Any, share: Array, eps: Array) -> Array:
    """The inverse of the share of ones."""
    share = xp.where(share > 1.0 - 2.0**-44, 1.0, share)  # compilers divide by a known count with a rounded inverse
    least = xp.where(share < eps, eps, share)
    return xp.where(formulas.equal(xp, least, 0.0), 1.0, 1.0 / least)
