"""Adapters to optax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.core.leaves import put
from gradxform.core.tree import Tree
from gradxform.core.where import Where, check, chosen

if TYPE_CHECKING:
    import optax


def as_optax(tx: GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Convert a transform to optax's own type.

    Every optax combinator accepts transforms as they are. Use this for code that checks isinstance, and for chains that
    receive extra arguments.

    Args:
        tx: A transform.

    Returns:
        An `optax.GradientTransformationExtraArgs` with the same `init` and `update`.

    Raises:
        TypeError: `tx` lacks `init` or `update`.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradxform as gx
        >>> tx = gx.jax.as_optax(gx.clip_norm(1.0))
        >>> tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0]
        Array([0.6, 0.8], dtype=float32)

    References:
        `optax.GradientTransformationExtraArgs`.
    """
    import optax

    given = as_transformation("as_optax", tx)
    return optax.GradientTransformationExtraArgs(given.init, given.update)


def freeze(optimizer: optax.GradientTransformation, where: Where) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer so that selected parameters keep every bit.

    Zero gradients do not freeze parameters under momentum or weight decay. This function sets the *updates* of the
    selected parameters to zero, for any optimizer. Outside `jax.jit`, XLA flushes subnormal parameters to zero in any
    sum, including `optax.apply_updates`.

    Args:
        optimizer: Any optax optimizer without a line search or Hessian over all parameters.
        where: Which parameters, as in `gradxform.masked`.

    Returns:
        An optax optimizer; the inner one never sees the selected parameters.

    Raises:
        ValueError: On init: a pattern matches no path; the message lists paths.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> import gradxform as gx
        >>> params = {"embedding": jnp.ones(1), "head": jnp.ones(1)}
        >>> optimizer = gx.jax.freeze(optax.adamw(0.1, weight_decay=0.1), "embedding")
        >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
        >>> updates["embedding"], bool(updates["head"] < 0)
        (Array([-0.], dtype=float32), True)

    References:
        `optax.partition` with `optax.set_to_zero`.
    """
    import optax

    as_transformation("jax.freeze", optimizer, where, "gx.jax.freeze(optimizer, where)")
    where = check("freeze", where)

    def labels(tree: Any) -> Any:
        view = Tree.read(tree)
        if view is None:
            return tree
        names = ["frozen" if mask else "free" for mask in chosen("freeze", where, view)]
        slots = put(["free"] * len(view.source.slots), view.source.kept, names)
        return jax.tree_util.tree_unflatten(view.source.structure, slots)

    # Minus zero is what can be added to any number, zero of either sign included, without changing a bit.
    still = optax.stateless(lambda updates, _: jax.tree.map(lambda g: jax.numpy.full_like(g, -0.0), updates))
    inner = optax.partition({"frozen": still, "free": optimizer}, labels)
    return optax.GradientTransformationExtraArgs(inner.init, inner.update)
