"""The demo's task: data, initial weights and batches, the same for every framework."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from gradxform.cli.frameworks.interface import Array, Task, Tree
from gradxform.proof.ulp import ulps
from gradxform.transforms.custom import xp

HIDDEN = 64
GAIN = 1.1
LEARNING_RATE = 0.01
MOMENTUM = 0.9
BATCH = 128
CLASSES = 10
_SEED = 0


@dataclass
class Run:
    """Measurements of one training run in one framework."""

    framework: str
    """The framework's name, such as "torch"."""
    clip: str
    """How its gradients are clipped: "gradxform", "native" or "none"."""
    losses: list[float] = field(default_factory=list)
    """Mean cross-entropy per image, one number per step."""
    norms: list[float] = field(default_factory=list)
    """Global norm of the gradients before clipping, one number per step."""
    clipped: int = 0
    """Number of steps whose gradients were changed."""
    accuracy: float = 0.0
    seconds: float = 0.0

    def see(self, loss: float, before: Tree, after: Tree) -> None:
        """Take note of a step: the loss of a batch, the gradients before clipping and after it."""
        self.losses.append(loss / BATCH)
        self.norms.append(float(np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in before.values()))))
        self.clipped += any(not np.array_equal(after[path], g, equal_nan=True) for path, g in before.items())

    @property
    def lost(self) -> int | None:
        """The first step with a non-finite loss or gradient, or None."""
        steps = enumerate(zip(self.losses, self.norms, strict=True), 1)
        return next((step for step, pair in steps if not all(map(isfinite, pair))), None)


def losses_apart(runs: Sequence[Run]) -> Array:
    """Return the largest distance of the losses of any two runs, at each step, in ULP of float32."""
    losses = [np.asarray(run.losses, np.float32) for run in runs]
    return np.max([ulps(one, other) for one, other in itertools.combinations(losses, 2)], axis=0)


def load() -> tuple[Any, Any]:
    """Return scikit-learn's digits: images [1797, 64] from 0 to 1, and labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16).astype(np.float32), found.target.astype(np.int32)


def digits(steps: int) -> Task:
    """Return the task on scikit-learn's digits, with one batch per step.

    The recurrent matrix starts as 1.1 times an orthogonal one. It lengthens the backward signal at every pixel whose
    unit is not saturated, by up to 1.1 ** 64 = 446, so gradients can explode. tanh bounds the forward pass.
    """
    from sklearn.model_selection import train_test_split

    images, labels = load()
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=_SEED
    )
    rng = np.random.default_rng(_SEED)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(HIDDEN, HIDDEN)))
    weights = {
        "rnn/input": rng.normal(size=HIDDEN),
        "rnn/recurrent": GAIN * orthogonal,
        "rnn/bias": np.zeros(HIDDEN),
        "head/kernel": rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "head/bias": np.zeros(CLASSES),
    }
    rows = (rng.integers(len(train_x), size=BATCH) for _ in range(steps))
    batches = tuple((train_x[row], train_y[row]) for row in rows)
    single: Tree = {path: weight.astype(np.float32) for path, weight in weights.items()}
    return Task(single, logits, batches, test_x, test_y, LEARNING_RATE, MOMENTUM)


def logits(weights: Mapping[str, Any], images: Any, reduce: Callable[..., Any] = functools.reduce) -> Any:
    """The network, in the framework of its arrays.

    One hidden vector h starts at zero and reads the pixels x of an image in turn::

        h <- tanh(x * input + h @ recurrent + bias)        for each pixel
        logits = h @ kernel + bias                         after the last pixel
    """
    tanh = xp(images).tanh

    def read(h: Any, pixel: Any) -> Any:
        return tanh(pixel * weights["rnn/input"] + h @ weights["rnn/recurrent"] + weights["rnn/bias"])

    pixels = [images[:, i : i + 1] for i in range(images.shape[1])]
    h = reduce(read, pixels, 0.0 * pixels[0] * weights["rnn/bias"])
    return h @ weights["head/kernel"] + weights["head/bias"]


def gradients_of_digits() -> Tree:
    """The gradients of softmax regression on all digits, from weights of zero."""
    images, labels = load()
    errors = np.float32(1 / CLASSES) - np.eye(CLASSES, dtype=np.float32)[labels]
    return {"kernel": images.T @ errors, "bias": errors.sum(axis=0)}
