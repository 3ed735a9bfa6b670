"""Stop gradients."""

from __future__ import annotations

from gradxform.core.factory import factory
from gradxform.core.transform import GradientTransformation, stateless
from gradxform.core.where import Where
from gradxform.transforms.combining import only


@factory()
def stop() -> GradientTransformation:
    r"""Replace each gradient by zeros, and mark it as stopped.

    .. math:: g_i \leftarrow 0

    NaN does not pass through. Adapters that can skip a stopped variable do, because momentum and weight decay move
    variables on zero gradients.

    Returns:
        A stateless transform for gradients of any shape and dtype.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.stop()([np.array([np.nan, 2.0])])
        [array([0., 0.])]

    References:
        ``optax.set_to_zero``; `tf.stop_gradient` and `jax.lax.stop_gradient`, as transforms.
    """
    return stateless(lambda g: g.stop(), stops=True, stage="freeze")


@factory()
def freeze(where: Where) -> GradientTransformation:
    r"""Stop selected gradients and leave the others unchanged: ``masked(stop(), where)``.

    .. math:: g_i \leftarrow 0 \quad\text{where chosen}

    Args:
        where: Which gradients, as in `masked`.

    Returns:
        A stateless transform for gradients of any shape and dtype.

    Raises:
        TypeError: `where` has an unknown form.
        ValueError: On `init` or use: a pattern matches no path; the message lists paths.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gx.freeze("embedding/**")({"embedding": {"table": np.ones(2)}, "head": np.ones(1)})
        {'embedding': {'table': array([0., 0.])}, 'head': array([1.])}

    References:
        The inverse of ``var_list`` in TensorFlow's optimizers.
    """
    return only("freeze", stop(), where, stage="freeze")
