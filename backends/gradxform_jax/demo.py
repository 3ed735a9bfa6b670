"""The network of `gradxform demo` in JAX, trained with optax in one jitted step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradxform import GradientTransformation
from gradxform.cli.demo.task import OnStep, Task


def train(task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]) -> Any:
    """Train by jax.grad, with the chain in front of optax.sgd; the logits of the test images."""
    optimizer = optax.chain(chain, _keep_updates(), optax.sgd(task.learning_rate, task.momentum))

    @jax.jit
    def step(weights: Any, state: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        loss, gradients = jax.value_and_grad(_loss)(weights, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss, gradients

    weights = {path: put(weight) for path, weight in task.weights.items()}
    state = optimizer.init(weights)
    for images, labels in task.batches:
        weights, state, loss, gradients = step(weights, state, put(images), put(labels))
        on_step(float(loss), _numpy(gradients), _numpy(state[1]))
    return np.asarray(_logits(weights, put(task.test_images)))


def _keep_updates() -> optax.GradientTransformation:
    """Changes nothing; its state is what the transformation before it in a chain has made."""
    return optax.GradientTransformation(
        lambda weights: weights, lambda updates, state, weights=None: (updates, updates)
    )


@jax.jit
def _logits(weights: Any, images: Any) -> Any:
    def read(h: Any, pixel: Any) -> tuple[Any, None]:
        return jnp.tanh(
            pixel[:, None] * weights["rnn/input"] + h @ weights["rnn/recurrent"] + weights["rnn/bias"]
        ), None

    start = jnp.zeros((len(images), weights["rnn/bias"].size), weights["rnn/bias"].dtype)
    h, _ = jax.lax.scan(read, start, images.T)
    return h @ weights["head/kernel"] + weights["head/bias"]


def _loss(weights: Any, images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(_logits(weights, images), labels).sum()


def _numpy(tree: Any) -> Any:
    return {path: np.asarray(leaf) for path, leaf in tree.items()}
