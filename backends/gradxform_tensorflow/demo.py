"""The network of `gradxform demo` in TensorFlow, trained with Keras's SGD in one tf.function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import gradxform_tensorflow
from gradxform import GradientTransformation
from gradxform.cli.demo.task import OnStep, Task


def train(task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]) -> Any:
    """Train with tf.GradientTape and the chain; return the logits of the test images."""
    weights = {path: tf.Variable(put(weight), name=path) for path, weight in task.weights.items()}
    variables = list(weights.values())
    optimizer = keras.optimizers.SGD(task.learning_rate, task.momentum)
    optimizer.build(variables)

    @tf.function
    def step(images: Any, labels: Any) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, _logits(weights, images))
            loss = tf.reduce_sum(losses)
        gradients = list(zip(tape.gradient(loss, variables), variables, strict=True))
        updates = gradxform_tensorflow.apply(chain, gradients)
        optimizer.apply_gradients(updates)
        return loss, _by_path(gradients), _by_path(updates)

    for images, labels in task.batches:
        loss, gradients, updates = step(put(images), put(labels))
        on_step(float(loss), _numpy(gradients), _numpy(updates))
    return _logits(weights, put(task.test_images)).numpy()


def _logits(weights: Any, images: Any) -> Any:
    h = tf.zeros((len(images), weights["rnn/bias"].shape[0]))
    for pixel in tf.unstack(tf.transpose(images), images.shape[1]):
        h = tf.tanh(pixel[:, None] * weights["rnn/input"] + h @ weights["rnn/recurrent"] + weights["rnn/bias"])
    return h @ weights["head/kernel"] + weights["head/bias"]


def _by_path(pairs: Any) -> dict[str, Any]:
    return {variable.name.removesuffix(":0"): gradient for gradient, variable in pairs}


def _numpy(tree: Any) -> Any:
    return {path: leaf.numpy() for path, leaf in tree.items()}
