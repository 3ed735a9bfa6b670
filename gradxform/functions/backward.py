"""Transforms of what flows back: the identity forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradxform.backend.lookup import opened, preload
from gradxform.backend.protocol import Backend
from gradxform.core import arguments, fitting, operands
from gradxform.core.arguments import Scalar
from gradxform.core.autograph import unconverted
from gradxform.core.elements import may_agree
from gradxform.core.flat import Flat, flat_view
from gradxform.core.foreign import as_transformation
from gradxform.core.source import INEXACT
from gradxform.core.transformation import Context, GradientTransformation
from gradxform.numerics import Array
from gradxform.transforms.combining import chain
from gradxform.transforms.scaling import scale as scale_by

Tree = TypeVar("Tree")


@unconverted
def on_backward(tx: GradientTransformation) -> Callable[[Tree], Tree]:
    r"""The identity, whose backward pass transforms the gradient.

    .. math:: y = x, \qquad \bar x = t(\bar y)

    Works in JAX, TensorFlow and PyTorch, eager and compiled. Norms are taken over all that flows back through one call:
    over the tree, if `x` is one, and over each example under ``vmap``. JAX's forward mode (``jvp``, ``jacfwd``) has no
    backward pass, and raises.

    Args:
        tx: a stateless transformation. Its limits may be arrays of the framework, tracers among them.

    Returns:
        A function of a pytree of arrays, of any shapes and dtypes, that returns it as it is. Leaves that are not of
        floating or complex dtype have no gradient, and pass by.

    Raises:
        TypeError: a stateful transformation; on use, NumPy's arrays, which have no backward pass; in the backward pass,
            a gradient of fewer than 16 bits.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> clip = gx.on_backward(gx.clip_norm(1.0))
        >>> jax.grad(lambda x: jnp.sum(clip(x) * jnp.array([3.0, 4.0])))(jnp.zeros(2))
        Array([0.6, 0.8], dtype=float32)

    Source:
        `tf.custom_gradient`, `jax.custom_vjp`, `torch.autograd.Function`.
    """
    preload()
    tx = as_transformation("on_backward", tx)
    if tx.stateful:
        raise TypeError(
            f"on_backward takes a stateless transformation, and {tx!r} keeps a state, which a backward pass has no way "
            "to hand on to the next step; transform the gradients before they are applied instead"
        )

    @unconverted
    def identity(x: Tree) -> Tree:
        backend, (leaves, structure) = opened(x)
        places = [i for i, leaf in enumerate(leaves) if _flows(backend, leaf)]
        if backend is None or not places:
            return x
        numbers, rebuild = operands.split(tx, backend)
        # What the backward pass holds on to: the tree without its leaves.
        skeleton = backend.unflatten(structure, [None] * len(leaves))
        count, bare = len(leaves), backend.flatten(skeleton)[1]

        def backward(upstream: Sequence[Array], numbers: Sequence[Array]) -> list[Array]:
            slots: list[Any] = [None] * count
            for i, gradient in zip(places, upstream, strict=True):
                slots[i] = gradient
            view = Flat.of(backend, slots, bare, lambda: backend.paths(skeleton))
            if view is None:
                return list(upstream)
            results = rebuild(numbers).rule(view, None, Context(None, {}))[0].results()
            return [results[i] for i in places]

        out = list(leaves)
        for i, leaf in zip(places, backend.on_backward([leaves[i] for i in places], numbers, backward), strict=True):
            out[i] = leaf
        return backend.unflatten(structure, out)

    return identity


@unconverted
def reverse_gradient(x: Tree, scale: Scalar = 1.0) -> Tree:
    r"""The identity, whose backward pass reverses the gradient: ``on_backward(scale(-scale))(x)``.

    .. math:: y = x, \qquad \bar x = -a \, \bar y

    Args:
        x: a pytree of arrays of JAX, TensorFlow or PyTorch, of any shapes and dtypes.
        scale: the factor a, a number or a 0-d array, which may change from step to step.

    Returns:
        The tree as it is.

    Raises:
        TypeError: NumPy's arrays, which have no backward pass; a scale that is no real number.
        ValueError: a scale that is NaN or not 0-d.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> jax.grad(lambda x: jnp.sum(3.0 * gx.reverse_gradient(x, 0.5)))(jnp.zeros(2))
        Array([-1.5, -1.5], dtype=float32)

    References:
        Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation, 2015.
    """
    factor = arguments.number("reverse_gradient", "scale", scale)
    return on_backward(chain(scale_by(factor), scale_by(-1.0)))(x)


@unconverted
def stop_gradient(x: Tree) -> Tree:
    r"""The identity, to which nothing flows back.

    .. math:: y = x, \qquad \bar x = 0

    Args:
        x: a pytree of arrays of JAX, TensorFlow or PyTorch, of any shapes and dtypes.

    Returns:
        The tree as it is, cut off from what made it.

    Raises:
        TypeError: NumPy's arrays, which have no backward pass.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> jax.grad(lambda x: jnp.sum(x * gx.stop_gradient(x)))(jnp.array([3.0, 3.0]))
        Array([3., 3.], dtype=float32)

    Source:
        `jax.lax.stop_gradient`, `tf.stop_gradient`, `torch.Tensor.detach`.
    """
    preload()
    backend, (leaves, structure) = opened(x)
    if backend is None:
        return x
    return backend.unflatten(
        structure, [backend.stop_gradient(leaf) if _flows(backend, leaf) else leaf for leaf in leaves]
    )


def _itself(x: Tree) -> Tree:
    return x


def straight_through(
    forward: Callable[[Any], Tree], backward: Callable[[Any], Tree] = _itself
) -> Callable[[Any], Tree]:
    r"""A function that has the values of one function and the derivatives of another.

    .. math:: y = f(x), \qquad \bar x = \Bigl(\frac{\partial b}{\partial x}\Bigr)^{\!\top} \bar y

    The value is that of ``forward(x)`` bit by bit, which ``backward(x) + stop_gradient(forward(x) - backward(x))`` is
    not. Nothing flows back through `forward`.

    Args:
        forward: a function of a pytree of arrays; it need not have derivatives.
        backward: a function of the same tree whose results have the structure, shapes and dtypes of those of `forward`;
            the identity if left out. A transformation is such a function: ``clip_value(1.0)`` lets through what flows
            to elements within its bounds.

    Returns:
        A function of a pytree.

    Raises:
        TypeError: what cannot be called; on use, NumPy's arrays, which have no backward pass, or results of two
            dtypes, named by their path.
        ValueError: on use, results of two structures or shapes, named by their path.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> sign = gx.straight_through(jnp.sign, gx.clip_value(1.0))
        >>> sign(jnp.array([-0.5, 3.0])), jax.grad(lambda x: jnp.sum(sign(x)))(jnp.array([-0.5, 3.0]))
        (Array([-1.,  1.], dtype=float32), Array([1., 0.], dtype=float32))

    References:
        Bengio, Léonard and Courville, Estimating or propagating gradients through stochastic neurons for conditional
        computation, 2013.
    """
    for name, function in (("forward", forward), ("backward", backward)):
        if not callable(function):
            raise TypeError(f"straight_through: {name} must be a function of arrays, got {function!r:.80}")

    @unconverted
    def through(x: Any) -> Tree:
        values, given = forward(stop_gradient(x)), _applied(backward, x)
        backend, (wanted, structure) = opened(values)
        owner, (leaves, _) = opened(given)
        if backend is None:
            return values
        if backend is not owner or backend.paths(values) != backend.paths(given):
            found = fitting.difference(values, given)
            where = f"; they differ at {found.path!r}: {found.one} and {found.other}" if found and found.path else ""
            raise ValueError(
                "straight_through: forward and backward must return trees of one structure and framework; "
                f"got {values!r:.100} and {given!r:.100}{where}"
            )
        places = [i for i, leaf in enumerate(wanted) if _agree(backend, i, leaf, leaves[i], values)]
        out = [backend.stop_gradient(leaf) if _flows(backend, leaf) else leaf for leaf in wanted]
        new = backend.straight_through([wanted[i] for i in places], [leaves[i] for i in places])
        for i, leaf in zip(places, new, strict=True):
            out[i] = leaf
        return backend.unflatten(structure, out)

    return through


def _applied(function: Callable[[Any], Tree], x: Any) -> Any:
    """The function's value; a transformation takes variables beside arrays, which here are all to be transformed."""
    if isinstance(function, GradientTransformation) and not function.stateful and (view := flat_view(x)) is not None:
        return function.rule(view, None, Context(None, {}))[0].tree()
    return function(x)


def _flows(backend: Backend | None, leaf: Any) -> bool:
    """Whether a leaf has a gradient; one of a dtype that no transform takes is refused when it comes."""
    if backend is None or not isinstance(leaf, backend.types):
        return False
    dtype = backend.dtype(leaf)
    return dtype in INEXACT or dtype.startswith(("float8_", "float6_", "float4_"))


def _agree(backend: Backend, i: int, value: Any, leaf: Any, tree: Any) -> bool:
    """Whether a derivative can flow from a value to a leaf; it must, if one can flow to the leaf."""
    if not _flows(backend, leaf):
        return False
    dtypes = [
        backend.dtype(array) if isinstance(array, backend.types) else type(array).__name__ for array in (value, leaf)
    ]
    if dtypes[0] != dtypes[1]:
        raise TypeError(
            f"straight_through: at {backend.paths(tree)[i]!r} forward gives {dtypes[0]} and backward {dtypes[1]}; cast "
            "the result of forward"
        )
    shapes = backend.shape(value), backend.shape(leaf)
    if not may_agree(*shapes):
        raise ValueError(
            f"straight_through: at {backend.paths(tree)[i]!r} forward gives shape {shapes[0]} and backward {shapes[1]}"
        )
    return True
