"""Gradients of the demo's first step, by backpropagation through time in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradxform.cli.frameworks.interface import Task


def loss_and_gradients(task: Task, step: int = 0) -> tuple[float, dict[str, Any]]:
    """Return the loss of one batch at the initial weights, and its gradients as float32 arrays by path."""
    images, labels = task.batches[step]
    w = task.weights
    states = [np.zeros((len(images), w["rnn/bias"].size), np.float32)]
    for pixel in images.T[..., None]:
        states.append(np.tanh(pixel * w["rnn/input"] + states[-1] @ w["rnn/recurrent"] + w["rnn/bias"]))
    logits = states[-1] @ w["head/kernel"] + w["head/bias"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(shares[rows, labels]).mean())
    back = shares
    back[rows, labels] -= 1
    back /= np.float32(len(labels))
    grads = {path: np.zeros_like(weight) for path, weight in w.items()}
    grads["head/kernel"] += states[-1].T @ back
    grads["head/bias"] += back.sum(axis=0)
    back = back @ w["head/kernel"].T
    for pixel, before, after in zip(images.T[::-1], states[-2::-1], states[:0:-1], strict=True):
        back = back * (1 - after * after)
        grads["rnn/input"] += pixel @ back
        grads["rnn/recurrent"] += before.T @ back
        grads["rnn/bias"] += back.sum(axis=0)
        back = back @ w["rnn/recurrent"].T
    return loss, grads
