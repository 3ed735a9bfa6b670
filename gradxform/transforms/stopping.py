"""Transforms that let no gradient through."""

from __future__ import annotations

from gradxform.core.factory import factory
from gradxform.core.matching import Where
from gradxform.core.transformation import GradientTransformation, stateless
from gradxform.transforms.combining import only


@factory
def stop() -> GradientTransformation:
    r"""Give zeros for each gradient, and mark it as stopped.

    .. math:: g_i \leftarrow 0

    The zeros are fresh, so a NaN does not get through. An adapter that can skip a variable skips it: momentum and
    weight decay would move a variable whose gradient is zero.

    Returns:
        A stateless transformation of gradients of any shape and dtype.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.stop()([np.array([np.nan, 2.0])])
        [array([0., 0.])]

    Source:
        `tf.stop_gradient` and `jax.lax.stop_gradient`, as a transform of gradients.
    """
    return stateless(lambda g: g.stop())


@factory
def freeze(where: Where) -> GradientTransformation:
    r"""Stop the chosen gradients, leave the others untouched: ``masked(stop(), where)``.

    .. math:: g_i \leftarrow 0 \quad\text{where chosen}

    Args:
        where: which gradients, as in `masked`.

    Returns:
        A stateless transformation of gradients of any shape and dtype.

    Raises:
        TypeError: a `where` that is none of the forms `masked` takes.
        ValueError: on `init` or use, a pattern that matches no path; the message lists some paths.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.freeze("embedding/**")({"embedding": {"table": np.ones(2)}, "head": np.ones(1)})
        {'embedding': {'table': array([0., 0.])}, 'head': array([1.])}

    Source:
        The ``var_list`` of TensorFlow's optimizers, the other way round.
    """
    return only("freeze", stop(), where)
