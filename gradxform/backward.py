"""Transforms of what flows back: the identity forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradxform import _flat
from gradxform import _operands as operands
from gradxform._autograph import unconverted
from gradxform._backend import Array, opened
from gradxform._foreign import as_transformation
from gradxform._source import DOUBLE, SINGLE
from gradxform._transformation import Context, GradientTransformation

Tree = TypeVar("Tree")


def on_backward(tx: GradientTransformation) -> Callable[[Tree], Tree]:
    r"""The identity, whose backward pass transforms the gradient.

    .. math:: y = x, \qquad \bar x = t(\bar y)

    Works in JAX, TensorFlow and PyTorch, eager and compiled. Norms are taken over all that flows back through one call:
    over the tree, if `x` is one.

    Args:
        tx: a stateless transformation. Its limits may be arrays of the framework.

    Returns:
        A function of a pytree of arrays, of any shapes and dtypes, that returns it as it is. Leaves that are not of
        floating or complex dtype have no gradient, and pass by.

    Raises:
        TypeError: a stateful transformation; on use, NumPy's arrays, which have no backward pass.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> clip = gx.on_backward(gx.clip_norm(1.0))
        >>> jax.grad(lambda x: jnp.sum(clip(x) * jnp.array([3.0, 4.0])))(jnp.zeros(2))
        Array([0.6, 0.8], dtype=float32)

    Source:
        `tf.custom_gradient`, `jax.custom_vjp`, `torch.autograd.Function`.
    """
    tx = as_transformation("on_backward", tx)
    if tx.stateful:
        raise TypeError(
            f"on_backward takes a stateless transformation, and {tx!r} keeps a state, which a backward pass has no way "
            "to hand on to the next step; transform the gradients before they are applied instead"
        )

    @unconverted
    def identity(x: Tree) -> Tree:
        backend, (leaves, structure) = opened(x)
        if backend is None:
            return x
        places = [i for i, leaf in enumerate(leaves) if _flows(backend, leaf)]
        if not places:
            return x
        numbers, rebuild = operands.split(tx, backend)

        def backward(upstream: Sequence[Array], numbers: Sequence[Array]) -> list[Array]:
            slots: list[Any] = [None] * len(leaves)
            for i, gradient in zip(places, upstream, strict=True):
                slots[i] = gradient
            view = _flat.from_leaves(backend, slots, structure, lambda: backend.paths(x))
            if view is None:
                return list(upstream)
            results = rebuild(numbers).rule(view, None, Context(None, {}))[0].results()
            return [results[i] for i in places]

        out = list(leaves)
        for i, leaf in zip(places, backend.on_backward([leaves[i] for i in places], numbers, backward), strict=True):
            out[i] = leaf
        return backend.unflatten(structure, out)

    return identity


def _flows(backend: Any, leaf: Any) -> bool:
    return isinstance(leaf, backend.types) and backend.dtype(leaf) in SINGLE | DOUBLE
