"""Transform gradients in the backward pass; the forward pass is the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradxform.backend import lookup
from gradxform.backend.lookup import opened
from gradxform.backend.protocol import Backend
from gradxform.core import align, arguments
from gradxform.core.align import may_agree
from gradxform.core.arguments import Scalar
from gradxform.core.foreign import as_transformation
from gradxform.core.leaves import INEXACT, put
from gradxform.core.transform import Context, GradientTransformation, split, unconverted
from gradxform.core.tree import Tree
from gradxform.numerics import Array
from gradxform.transforms.combining import chain
from gradxform.transforms.scaling import scale as scale_by

T = TypeVar("T")


@unconverted
def on_backward(tx: GradientTransformation) -> Callable[[T], T]:
    r"""Make an identity function whose backward pass transforms the gradient.

    .. math:: y = x, \qquad \bar x = t(\bar y)

    It works in JAX, TensorFlow and PyTorch, eager and compiled. Norms cover everything that flows back through one
    call: the whole tree, and each example by itself under ``vmap``. JAX's forward mode (``jvp``, ``jacfwd``) has no
    backward pass and raises an error.

    Args:
        tx: A stateless transform. Its limits may be arrays of the framework, including tracers.

    Returns:
        A function that returns its argument, a pytree of arrays of any shapes and dtypes. Leaves that are neither
        floating nor complex have no gradient.

    Raises:
        TypeError: `tx` is stateful. On use: arrays are NumPy arrays, which have no backward pass. In the backward pass:
            a gradient has fewer than 16 bits.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> clip = gx.on_backward(gx.clip_norm(1.0))
        >>> jax.grad(lambda x: jnp.sum(clip(x) * jnp.array([3.0, 4.0])))(jnp.zeros(2))
        Array([0.6, 0.8], dtype=float32)

    References:
        `tf.custom_gradient`, `jax.custom_vjp`, `torch.autograd.Function`.
    """
    lookup.preload()
    tx = as_transformation("on_backward", tx)
    if tx.stateful:
        why = f"since a backward pass cannot keep a state, got {tx!r}"
        advice = "transform the gradients after the backward pass instead"
        raise TypeError(f"on_backward: tx must be stateless, {why}; {advice}")

    @unconverted
    def identity(x: T) -> T:
        backend, (leaves, structure) = opened(x)
        places = [i for i, leaf in enumerate(leaves) if _flows(backend, leaf)]
        if backend is None or not places:
            return x
        numbers, rebuild = split(tx, backend)
        # The backward pass keeps only the tree's structure, no leaves.
        skeleton = backend.unflatten(structure, [None] * len(leaves))
        count, bare = len(leaves), backend.flatten(skeleton)[1]

        def backward(upstream: Sequence[Array], numbers: Sequence[Array]) -> tuple[list[Array], None]:
            slots = put([None] * count, places, upstream)
            view = Tree.of(backend, slots, bare, lambda: backend.paths(skeleton))
            if not view.leaves:
                return list(upstream), None
            results = rebuild(numbers).rule(view, None, Context(None, {}))[0].results()
            return [results[i] for i in places], None

        new = _custom_backward(backend)([leaves[i] for i in places], numbers, backward)
        return backend.unflatten(structure, put(leaves, places, new))

    return identity


@unconverted
def reverse_gradient(x: T, scale: Scalar = 1.0) -> T:
    r"""Return `x`, and reverse its gradient in the backward pass: ``on_backward(scale(-scale))(x)``.

    .. math:: y = x, \qquad \bar x = -a \, \bar y

    Args:
        x: A pytree of JAX, TensorFlow or PyTorch arrays, of any shapes and dtypes.
        scale: Factor a, a number or a 0-d array; it may change from step to step.

    Returns:
        The tree, unchanged.

    Raises:
        TypeError: Arrays are NumPy arrays, which have no backward pass, or `scale` is not a real number.
        ValueError: `scale` is NaN or not 0-d.

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
def stop_gradient(x: T) -> T:
    r"""Return `x`, and let no gradient flow back.

    .. math:: y = x, \qquad \bar x = 0

    Args:
        x: A pytree of JAX, TensorFlow or PyTorch arrays, of any shapes and dtypes.

    Returns:
        The tree, detached from its computation.

    Raises:
        TypeError: Arrays are NumPy arrays, which have no backward pass.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradxform as gx
        >>> jax.grad(lambda x: jnp.sum(x * gx.stop_gradient(x)))(jnp.array([3.0, 3.0]))
        Array([3., 3.], dtype=float32)

    References:
        `jax.lax.stop_gradient`, `tf.stop_gradient`, `torch.Tensor.detach`.
    """
    lookup.preload()
    backend, (leaves, structure) = opened(x)
    return x if backend is None else backend.unflatten(structure, [_stopped(backend, leaf) for leaf in leaves])


def _itself(x: T) -> T:
    return x


def straight_through(forward: Callable[[Any], T], backward: Callable[[Any], T] = _itself) -> Callable[[Any], T]:
    r"""Make a function with the value of one function and the derivative of another.

    .. math:: y = f(x), \qquad \bar x = \Bigl(\frac{\partial b}{\partial x}\Bigr)^{\!\top} \bar y

    The value equals ``forward(x)`` bit by bit, unlike ``backward(x) + stop_gradient(forward(x) - backward(x))``. No
    gradient flows through `forward`.

    Args:
        forward: Function of a pytree of arrays; it needs no derivative.
        backward: Function of the same tree, with results of the structure, shapes and dtypes of `forward`. Default: the
            identity. Transforms work too: ``clip_value(1.0)`` passes gradients of elements within its bounds.

    Returns:
        A function of a pytree.

    Raises:
        TypeError: An argument is not callable. On use: arrays are NumPy arrays, which have no backward pass, or results
            differ in dtype; the message gives the path.
        ValueError: On use: results differ in structure or shape; the message gives the path.

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
    def through(x: Any) -> T:
        values, given = forward(stop_gradient(x)), _applied(backward, x)
        backend, (wanted, structure) = opened(values)
        owner, (leaves, _) = opened(given)
        if backend is None:
            return values
        paths, others = backend.paths(values), [] if owner is None else owner.paths(given)
        if backend is not owner or paths != others:
            at = "" if paths == others else f"; differ at {align.difference(paths, others, 'forward', 'backward')}"
            both = f"got {values!r:.100} and {given!r:.100}{at}"
            raise ValueError(f"straight_through: forward and backward must return trees of the same structure; {both}")
        places = [i for i, path in enumerate(paths) if _agree(backend, path, wanted[i], leaves[i])]
        out = [_stopped(backend, leaf) for leaf in wanted]
        new = backend.straight_through([wanted[i] for i in places], [leaves[i] for i in places])
        return backend.unflatten(structure, put(out, places, new))

    return through


def _applied(function: Callable[[Any], T], x: Any) -> Any:
    """The function's value; a transform is applied to variables too, not only to arrays."""
    if isinstance(function, GradientTransformation) and not function.stateful and (view := Tree.read(x)) is not None:
        return function.rule(view, None, Context(None, {}))[0].tree()
    return function(x)


def _custom_backward(backend: Backend) -> Callable[..., list[Array]]:
    if backend.custom_backward is None:
        advice = "use JAX, TensorFlow or PyTorch arrays, or transform computed gradients with tx(gradients)"
        raise TypeError(f"{backend.title} arrays have no backward pass; {advice}")
    return backend.custom_backward


def _stopped(backend: Backend, leaf: Any) -> Any:
    """A leaf without a gradient; others are unchanged."""
    if not _flows(backend, leaf):
        return leaf
    _custom_backward(backend)
    return backend.xp.stop_gradient(leaf)


def _flows(backend: Backend | None, leaf: Any) -> bool:
    """Whether a leaf has a gradient; unsupported dtypes are refused when the gradient arrives."""
    if backend is None or not isinstance(leaf, backend.types):
        return False
    dtype = backend.dtype(leaf)
    return dtype in INEXACT or dtype.startswith(("float8_", "float6_", "float4_"))


def _agree(backend: Backend, path: str, value: Any, leaf: Any) -> bool:
    """Whether a derivative flows to a leaf; if so, dtype and shape must match the value's."""
    if not _flows(backend, leaf):
        return False
    both = (value, leaf)
    one, other = [backend.dtype(x) if isinstance(x, backend.types) else type(x).__name__ for x in both]
    at = f"straight_through: at {path!r} forward returns"
    if one != other:
        raise TypeError(f"{at} {one} and backward {other}; cast the result of forward")
    shapes = list(map(backend.shape, both))
    if not may_agree(*shapes):
        raise ValueError(f"{at} shape {shapes[0]} and backward {shapes[1]}; make them equal")
    return True
