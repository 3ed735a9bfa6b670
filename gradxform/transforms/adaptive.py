"""A limit that follows the parameters."""

from __future__ import annotations

import math
from typing import Any

from gradxform.core import arguments, elements
from gradxform.core import state as stateful
from gradxform.core.arguments import Scalar
from gradxform.core.factory import factory
from gradxform.core.flat import Flat, Norm, clip_coefficient
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array
from gradxform.transforms import units


@factory
def clip_adaptive(clipping: Scalar, *, eps: Scalar = 1e-3, axes: Any = None) -> GradientTransformation:
    r"""Limit the norm of each unit of each gradient to a multiple of the norm of the unit's parameters.

    Each unit g, whose parameters are p, becomes ``g * min(1, clipping * max(norm(p), eps) / norm(g))``:

    .. math:: g_{iu} \leftarrow g_{iu} \min(1, \lambda \, s_{iu} / \lVert g_{iu} \rVert),
        \quad s_{iu} = \max(\lVert p_{iu} \rVert, \epsilon)

    A unit is one output of a kernel: all its inputs. Of a gradient of fewer than two axes, all elements are one unit.
    A unit within its limit comes back bit by bit; one with a NaN or an infinite element becomes NaN.

    Args:
        clipping: the multiple :math:`\lambda`, without a unit; a number, a 0-d array or a schedule.
        eps: the least norm of a unit's parameters, so that those that are zero can learn; in the parameters' units.
        axes: the axes over which a unit's inputs lie: "keras" (all but the last, as kernels lie in Keras, Flax and
            Haiku), "torch" (all but the first), a tuple, a mapping from a glob on the path to a tuple, or a function of
            path and leaf. There is no default for gradients of two axes and more, since libraries disagree.

    Returns:
        A stateless transformation of gradients of any shape and floating or complex dtype; its `update` needs the
        parameters.

    Raises:
        TypeError: a multiple that is no number; on use, an integer gradient, named by its path.
        ValueError: a negative or NaN multiple or eps; on use, no parameters, or a gradient whose axes are not said.

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

    def rule(g: Flat, state: Any, context: Context) -> tuple[Flat, Any]:
        params = elements.params(g, context.params, "clip_adaptive")
        found = units.axes("clip_adaptive", over, g)
        each = [found[i] for i in g.chosen]

        def factor(place: int, norm: Norm) -> Array:
            size = g.backend.norm_over(params[place], each[place], 2.0)
            allowed = g.backend.compute(_of_unit, size, c, stateful.between(g, least, 0.0, math.inf))
            return clip_coefficient(norm, allowed)

        return g.scaled_by(each, 2.0, factor), state

    return GradientTransformation(rule)


def _of_unit(xp: Any, norm: Array, clipping: Array, eps: Array) -> Array:
    limit = clipping * xp.where(norm < eps, eps, norm)
    # In pairs, infinity times any number is NaN; it ought to be for zero alone.
    return xp.where(xp.isfinite(norm), limit, xp.where(clipping > 0.0, norm, math.nan))
