"""Pictures of what flows back."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradxform as gx
from gallery.frame import AFTER, BAD, BEFORE, note


def gradient_of_one_op(axes: Any) -> None:
    """The derivative of x ** 3, and the same with a clip around x."""
    import jax

    x = np.linspace(-1.5, 1.5, 121, dtype=np.float32)
    clipped = gx.on_backward(gx.clip_value(2.0))
    for function, color, label in (
        (lambda x: x**3, BEFORE, "gradient of x³"),
        (lambda x: clipped(x) ** 3, AFTER, "on_backward(clip_value(2.0))"),
    ):
        axes.plot(x, jax.vmap(jax.grad(function))(x), color=color, linewidth=2.5, label=label)
    axes.set(xlabel="x", ylim=(0, 11), yticks=[0, 2, 4, 6])
    axes.legend(frameon=False, loc="upper center")


def override_a_gradient(axes: Any) -> None:
    """A gradient in a TensorFlow graph: the op's own, and the override."""
    import tensorflow as tf

    x = np.linspace(-1, 1, 81, dtype=np.float32)
    for tx, color, label in (
        (gx.identity(), BEFORE, "gradient of tanh(5x)"),
        (gx.clip_value(2.0), AFTER, "overridden"),
    ):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.constant(x)
            with gx.tensorflow.override_gradients({"Identity": tx}):
                y = tf.tanh(5 * tf.identity(fed))
            axes.plot(x, session.run(tf.gradients(y, fed)[0]), color=color, linewidth=2.5, label=label)
    axes.set(xlabel="x", ylim=(0, 8.8), yticks=[0, 2, 4])
    axes.legend(frameon=False, loc="upper right", handlelength=1, fontsize=10)


def clip_between_layers(axes: Any) -> None:
    """The norm of what flows back, after each of ten layers."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    kernels = [jnp.asarray(0.35 * rng.normal(size=(16, 16)), jnp.float32) for _ in range(10)]
    for tx, color, label in ((gx.identity(), BAD, "unclipped"), (gx.clip_norm(1.0), AFTER, "clipped between layers")):
        layer = gx.on_backward(tx)

        def run(offsets: Any, layer: Any = layer) -> Any:
            x = jnp.ones(16) / 4
            for kernel, offset in zip(kernels, offsets, strict=True):
                x = layer(x @ kernel) + offset
            return x.sum()

        back = jax.grad(run)([jnp.zeros(16)] * 10)
        axes.semilogy(range(1, 11), [float(jnp.linalg.norm(g)) for g in back], "o-", color=color, label=label)
    axes.set(xlabel="layer", ylabel="gradient norm", xticks=[1, 5, 10], ylim=(0.6, 3e3))
    axes.legend(frameon=False, loc="upper right")


def reverse_a_gradient(axes: Any) -> None:
    """One loss: descended, and climbed by what stands before the reversal."""
    import jax
    import jax.numpy as jnp

    for reverse, color, label in (
        (gx.on_backward(gx.identity()), BEFORE, "plain"),
        (gx.reverse_gradient, AFTER, "reversed"),
    ):
        loss = jax.value_and_grad(lambda w, reverse=reverse: jnp.tanh(reverse(w)) ** 2)
        w, losses = jnp.array(0.5), []
        for _ in range(30):
            value, g = loss(w)
            losses.append(float(value))
            w = w - 0.1 * g
        axes.plot(losses, color=color, linewidth=2.5, label=label)
    axes.set(xlabel="step", ylabel="loss", ylim=(0, 1.1))
    axes.legend(frameon=False, loc="center right")


def straight_through(axes: Any) -> None:
    """Rounding forward, and its gradient."""
    import jax
    import jax.numpy as jnp

    x = np.linspace(-2, 2, 401, dtype=np.float32)
    rounded = gx.straight_through(jnp.round)
    axes.plot(x, jnp.round(x), color=BEFORE, linewidth=2.5, label="round(x)")
    axes.plot(x, jax.vmap(jax.grad(rounded))(x), color=AFTER, linewidth=2.5, label="gradient: straight_through")
    axes.plot(x, jax.vmap(jax.grad(jnp.round))(x), color=BAD, linewidth=1.2, label="gradient: plain")
    axes.set(xlabel="x", ylim=(-5, 2.2), yticks=[-2, -1, 0, 1, 2])
    axes.legend(frameon=False, fontsize=9.5, loc="lower right", labelspacing=0.2, handlelength=1)


def adversarial_examples(axes: Any) -> None:
    """Points of two classes, moved along the sign of the loss's gradient."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(6)
    points = jnp.asarray(np.concatenate([rng.normal(-1, 0.5, (12, 2)), rng.normal(1, 0.5, (12, 2))]), jnp.float32)
    signs = jnp.repeat(jnp.array([-1.0, 1.0]), 12)
    loss = jax.grad(lambda points: jnp.log1p(jnp.exp(-signs * points.sum(axis=1))).sum())
    moves = gx.chain(gx.sign(), gx.scale(0.8))(loss(points))
    axes.quiver(*points.T, *moves.T, angles="xy", scale_units="xy", scale=1, color=BEFORE, width=0.008)
    axes.scatter(*points.T, c=[AFTER if sign > 0 else BAD for sign in signs], s=22)
    axes.plot([-2.4, 2.4], [2.4, -2.4], color="black", linewidth=1)
    axes.set(xlim=(-2.6, 2.6), ylim=(-2.4, 2.4), xticks=[], yticks=[])
    note(axes, 0.52, 0.05, "boundary", "black")
