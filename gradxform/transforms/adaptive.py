"""Adaptive clipping: the limit follows the parameters' norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradxform.core import arguments, elements
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.norm import Norm, clip_coefficient
from gradxform.core.state import between
from gradxform.core.transform import Context, GradientTransformation, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.transforms import units


@factory
def clip_adaptive(clipping: Scalar, *, eps: Scalar = 1e-3, axes: Any = None) -> GradientTransformation:
    r"""Limit the norm of each unit's gradient to a multiple of the norm of the unit's parameters.

    Each unit g with parameters p becomes ``g * min(1, clipping * max(norm(p), eps) / norm(g))``:

    .. math:: g_{iu} \leftarrow g_{iu} \min(1, \lambda \, s_{iu} / \lVert g_{iu} \rVert),
        \quad s_{iu} = \max(\lVert p_{iu} \rVert, \epsilon)

    A unit is one output of a kernel, with all its inputs. A gradient with fewer than two axes is one unit. A unit
    within its limit keeps every bit; a unit with a NaN or infinite element becomes NaN.

    Args:
        clipping: Multiple :math:`\lambda`, dimensionless: a number, a 0-d array or a schedule.
        eps: Smallest parameter norm, in the parameters' units, so that zero parameters can learn.
        axes: Input axes of each unit: "keras" (all but the last: Keras, Flax, Haiku), "torch" (all but the first), a
            tuple, a mapping from a path glob to a tuple, or a function of path and leaf. Required for gradients with
            two or more axes, since libraries disagree.

    Returns:
        A stateless transform for gradients of any shape and floating or complex dtype. Its `update` needs the
        parameters.

    Raises:
        TypeError: `clipping` is not a number. On use: a gradient is integer; the message gives its path.
        ValueError: `clipping` or `eps` is negative or NaN. On use: parameters are missing, or a gradient's axes are
            unknown.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.clip_adaptive(0.1, axes="keras")
        >>> tx([np.array([[3.0, 0.03], [4.0, 0.04]])], params=[np.ones((2, 2)) / 2**0.5])
        [array([[0.06, 0.03],
               [0.08, 0.04]])]

    References:
        Brock, De, Smith and Simonyan, High-performance large-scale image recognition without normalization, 2021.
    """
    c, least = arguments.limit("clip_adaptive", "clipping", clipping), arguments.limit("clip_adaptive", "eps", eps)
    over = units.check("clip_adaptive", axes)

    def rule(g: Tree, context: Context) -> Tree:
        params = elements.params(g, context.params, "clip_adaptive")
        found = units.axes("clip_adaptive", over, g)
        each = [found[i] for i in g.chosen]

        def factor(places: Sequence[int], norm: Norm) -> Array:
            sizes = g.backend.norms_over([params[p] for p in places], [each[p] for p in places], 2.0)
            allowed = g.backend.compute(_of_unit, sizes, c, between(g, least, 0.0, math.inf))
            return clip_coefficient(norm, allowed)

        return g.scaled_by(each, 2.0, factor)

    return stateless(rule, needs=("params",), stage="clip")


def _of_unit(xp: Any, norm: Array, clipping: Array, eps: Array) -> Array:
    limit = clipping * xp.where(norm < eps, eps, norm)
    # In double-double, infinity * number is NaN, which is right for zero only.
    return xp.where(xp.isfinite(norm), limit, xp.where(clipping > 0.0, norm, math.nan))
