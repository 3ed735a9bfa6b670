"""The demo's task: data, initial weights and batches, the same for every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

import numpy as np

from gradxform.core.transform import GradientTransformation

Array = Any
"""A NumPy array. `Weights` and `Gradients` hold float32 arrays by path, such as "rnn/recurrent"."""
Weights = Mapping[str, Array]
Gradients = dict[str, Array]

OnStep = Callable[[float, Gradients, Gradients], None]
"""Called after each step with the batch loss, the gradients before the chain, and after it."""

NAMES = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
"""Display names."""

HIDDEN = 64
GAIN = 1.1
LEARNING_RATE = 0.01
MOMENTUM = 0.9
BATCH = 128
CLASSES = 10
_SEED = 0


@dataclass(frozen=True)
class Task:
    """A recurrent network that reads handwritten digits pixel by pixel, and how to train it.

    The network has one hidden vector h, which starts at zero. It reads the 64 pixels x of an image in turn::

        h <- tanh(x * input + h @ recurrent + bias)        for each pixel
        logits = h @ kernel + bias                         after the last pixel

    The loss is the cross-entropy summed over a batch; the optimizer is SGD with momentum.
    """

    weights: Weights
    """Initial weights: "rnn/input" [64], "rnn/recurrent" [64, 64], "rnn/bias" [64], "head/kernel" [64, 10],
    "head/bias" [10]."""
    batches: tuple[tuple[Array, Array], ...]
    """One per step: images [128, 64], float32 from 0 to 1, and labels [128], int32."""
    test_images: Array
    test_labels: Array
    learning_rate: float
    momentum: float


@dataclass
class Run:
    """Measurements of one training run in one framework."""

    framework: str
    """The framework's name, such as "torch"."""
    chained: bool
    losses: list[float] = field(default_factory=list)
    """Mean cross-entropy per image, one number per step."""
    norms: list[float] = field(default_factory=list)
    """Global norm of the gradients before the chain, one number per step."""
    clipped: int = 0
    """Number of steps whose gradients the chain changed."""
    accuracy: float = 0.0
    seconds: float = 0.0

    @property
    def lost(self) -> int | None:
        """The first step with a non-finite loss or gradient, or None."""
        steps = enumerate(zip(self.losses, self.norms, strict=True), 1)
        return next((step for step, pair in steps if not all(map(isfinite, pair))), None)


class Program(Protocol):
    """The interface of `gradxform_<framework>.demo`: the network, trained by the framework's own autodiff."""

    def train(self, task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Array], Any]) -> Array:
        """Train from the initial weights on the batches, and return the logits [n, 10] of the test images.

        `put` converts a NumPy array to the framework, on the requested device.
        """


def digits(steps: int) -> Task:
    """Return the task on scikit-learn's digits, with one batch per step.

    The recurrent matrix starts as 1.1 times an orthogonal one. It lengthens the backward signal at every pixel whose
    unit is not saturated, by up to 1.1 ** 64 = 446, so gradients can explode. tanh bounds the forward pass.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    images, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=_SEED
    )
    rng = np.random.default_rng(_SEED)
    weights = _first_weights(rng)
    rows = (rng.integers(len(train_x), size=BATCH) for _ in range(steps))
    batches = tuple((train_x[row], train_y[row]) for row in rows)
    return Task(weights, batches, test_x, test_y, LEARNING_RATE, MOMENTUM)


def _first_weights(rng: np.random.Generator) -> Weights:
    orthogonal, _ = np.linalg.qr(rng.normal(size=(HIDDEN, HIDDEN)))
    weights = {
        "rnn/input": rng.normal(size=HIDDEN),
        "rnn/recurrent": GAIN * orthogonal,
        "rnn/bias": np.zeros(HIDDEN),
        "head/kernel": rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "head/bias": np.zeros(CLASSES),
    }
    return {path: weight.astype(np.float32) for path, weight in weights.items()}
