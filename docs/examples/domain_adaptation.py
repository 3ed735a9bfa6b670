"""Unsupervised domain adaptation by a reversed gradient, in JAX, TensorFlow and PyTorch.

    python docs/examples/domain_adaptation.py [FOLDER] [SEED ...]

trains, prints a table and writes domain_adaptation.png into the folder, docs/pictures if none is given. With seeds,
PyTorch trains once more for each of them.

The source is scikit-learn's handwritten digits with their labels; the target is other digits of that set, tilted by 25
degrees, whose labels are never looked at in training. A layer of features feeds two heads: one reads the digit off the
source's features, the other tells source from target. Between features and second head the gradient is reversed, so
that the features become such that the domains cannot be told apart (Ganin and Lempitsky, Unsupervised domain
adaptation by backpropagation, 2015).

All of it is float64, and first weights and batches are NumPy's, so that the frameworks' runs stay together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import torch
from drawing import NAMES
from scipy import ndimage
from sklearn.datasets import load_digits

import gradxform as gx
from gradxform.testing import max_ulp

DEGREES = 25.0
STEPS, EVERY = 600, 25
BATCH = 128
LEARNING_RATE, MOMENTUM = 0.1, 0.9
SCALE = 0.5
HIDDEN = 64
Array = Any
Weights = list[Array]
"""Features, label head, hidden layer and output of the domain head: a matrix and a bias each."""


@dataclass
class Task:
    """Data, first weights and batches."""

    train: tuple[Array, Array, Array]
    """Images of the source [700, 64], their labels [700], images of the target [700, 64]."""
    test: dict[str, tuple[Array, Array]]
    """Images [397, 64] and labels [397]: digits that no training sees, as they are and tilted."""
    weights: Weights
    seed: int

    def batches(self) -> Iterator[tuple[float, Array, Array, float]]:
        """The learning rate; images [256, 64], the source's first; the source's labels [128]; the reversal's scale."""
        source, labels, target = self.train
        rng = np.random.default_rng(self.seed + 1)
        for step in range(STEPS):
            here, there = rng.integers(len(source), size=BATCH), rng.integers(len(target), size=BATCH)
            done = step / STEPS
            rate = LEARNING_RATE / (1 + 10 * done) ** 0.75  # this and the next are the paper's
            scale = SCALE * (2 / (1 + np.exp(-10 * done)) - 1)
            yield rate, np.concatenate([source[here], target[there]]), labels[here], scale


def task(seed: int = 0) -> Task:
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    tilted = ndimage.rotate(images.reshape(-1, 8, 8), DEGREES, axes=(1, 2), reshape=False, order=1).reshape(-1, 64)
    weights = []
    for fan_in, fan_out in ((64, HIDDEN), (HIDDEN, 10), (HIDDEN, HIDDEN // 2), (HIDDEN // 2, 1)):
        weights += [rng.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in), np.zeros(fan_out)]
    test = {"source": (images[1400:], labels[1400:]), "target": (tilted[1400:], labels[1400:])}
    return Task((images[:700], labels[:700], tilted[700:1400]), test, weights, seed)


# --- the network, written once ---------------------------------------------------------------------------------------


def features(weights: Weights, images: Any) -> Any:
    return gx.xp(weights[0]).tanh(images @ weights[0] + weights[1])


def read(weights: Weights, images: Any) -> Any:
    """The logits [n, 10] of the digits."""
    return features(weights, images) @ weights[2] + weights[3]


def losses(weights: Weights, images: Any, chosen: Any, scale: Any, reverse: bool) -> Any:
    """The cross-entropy of the digits, and that of the domains.

    `chosen` [128, 10] is one-hot. Without the reversal the domain head looks on: nothing flows back from it.
    """
    x = features(weights, images)
    xp = gx.xp(x)
    logits = x[:BATCH] @ weights[2] + weights[3]
    peak = gx.stop_gradient(xp.amax(logits, 1))[:, None]
    label = xp.log(xp.sum(xp.exp(logits - peak), 1)) - xp.sum((logits - peak) * chosen, 1)
    x = gx.reverse_gradient(x, scale) if reverse else gx.stop_gradient(x)
    score = xp.tanh(x @ weights[4] + weights[5]) @ weights[6] + weights[7]
    # softplus(score) for the source, softplus(-score) for the target
    signed = xp.concatenate((score[:BATCH], -score[BATCH:]))
    domain = xp.log(1.0 + xp.exp(-abs(signed))) + 0.5 * (signed + abs(signed))
    return xp.mean(label) + xp.mean(domain)


# --- its gradients in each framework ---------------------------------------------------------------------------------


def jax_gradients(reverse: bool) -> Callable[..., Weights]:
    return jax.jit(jax.grad(lambda weights, *batch: losses(weights, *batch, reverse)))


def tensorflow_gradients(reverse: bool) -> Callable[..., Weights]:
    @tf.function
    def gradients(weights: Weights, *batch: Any) -> Weights:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = losses(weights, *batch, reverse)
        return tape.gradient(loss, weights)

    return gradients


def torch_gradients(reverse: bool) -> Callable[..., Weights]:
    def gradients(weights: Weights, *batch: Any) -> Weights:
        weights = [w.requires_grad_() for w in weights]
        return torch.autograd.grad(losses(weights, *batch, reverse), weights)

    return gradients


GRADIENTS = {"jax": jax_gradients, "tensorflow": tensorflow_gradients, "torch": torch_gradients}
ARRAY = {"jax": jnp.asarray, "tensorflow": tf.constant, "torch": torch.as_tensor}


# --- training --------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What came of one training."""

    framework: str
    reverse: bool
    weights: Weights = field(default_factory=list)
    accuracy: dict[str, list[float]] = field(default_factory=lambda: {"source": [], "target": []})
    """Of the test images, every `EVERY` steps, the first before any step."""


def train(framework: str, task: Task, reverse: bool) -> Run:
    """SGD with momentum, from the task's first weights on its batches."""
    array, gradients, run = ARRAY[framework], GRADIENTS[framework](reverse), Run(framework, reverse)
    one_hot = np.eye(10)
    weights = [array(w) for w in task.weights]
    velocity = [0.0 * w for w in weights]
    for step, (rate, images, labels, scale) in enumerate(task.batches()):
        if step % EVERY == 0:
            look(run, weights, task)
        found = gradients(weights, *map(array, (images, one_hot[labels], np.float64(scale))))
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, found, strict=True)]
        weights = [_free(w) - rate * v for w, v in zip(weights, velocity, strict=True)]
    look(run, weights, task)
    return run


def _free(w: Any) -> Any:
    return w.detach() if isinstance(w, torch.Tensor) else w


def look(run: Run, weights: Weights, task: Task) -> None:
    run.weights = [np.asarray(_free(w)) for w in weights]
    for domain, (images, labels) in task.test.items():
        run.accuracy[domain].append(float(np.mean(np.argmax(read(run.weights, images), axis=1) == labels)))


def train_all(seed: int = 0, frameworks: Any = tuple(GRADIENTS)) -> list[Run]:
    """Each framework without the reversal and with it. JAX has 64 bits within this function only."""
    threads, given = torch.get_num_threads(), task(seed)
    torch.set_num_threads(1)  # for matrices as small as these, threads would mostly wait for one another
    try:
        with jax.enable_x64(True):
            return [train(framework, given, reverse) for framework in frameworks for reverse in (False, True)]
    finally:
        torch.set_num_threads(threads)


def furthest(runs: list[Run]) -> float:
    """The largest difference between the learnt weights of any two frameworks, in ULP of float32."""
    worst = 0.0
    for one, other in combinations(runs, 2):
        if one.reverse is other.reverse:
            pairs = zip(one.weights, other.weights, strict=True)
            worst = max(worst, *(max_ulp(np.float32(a), np.float32(b)) for a, b in pairs))
    return worst


# --- report ----------------------------------------------------------------------------------------------------------


def table(runs: list[Run]) -> str:
    lines = [
        "| framework | target, without | target, with | largest difference of the weights from JAX |",
        "|---|---|---|---|",
    ]
    first = runs[0].framework
    for framework in dict.fromkeys(run.framework for run in runs):
        own = [run for run in runs if run.framework == framework]
        shown = [f"{run.accuracy['target'][-1]:.1%}".replace("%", " %") for run in own]
        beside = [run for run in runs if run.framework in (first, framework)]
        ulp = "" if framework == first else f"{furthest(beside):g} ULP"
        lines.append(f"| {NAMES[framework]} | {shown[0]} | {shown[1]} | {ulp} |")
    return "\n".join(lines)


def draw(runs: list[Run], out: Path) -> None:
    figure = drawing.canvas(9.6, 5.0)
    steps = range(0, STEPS + 1, EVERY)
    for axes, reverse in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        shown = [run for run in runs if run.reverse is reverse]
        for domain, line in (("source", (0, (3, 1.5))), ("target", "-")):
            for run in shown:
                color, width = drawing.FRAMEWORKS[run.framework]
                label = NAMES[run.framework] if domain == "target" else None
                style = {"color": color, "linewidth": width, "solid_joinstyle": "round"}
                axes.plot(steps, run.accuracy[domain], label=label, linestyle=line, **style)
            end = shown[0].accuracy[domain][-1]
            what = "upright digits" if domain == "source" else f"tilted by {DEGREES:g}°"
            low = min(shown[0].accuracy[domain][len(steps) // 2 :])
            axes.text(STEPS, low - 0.06, f"{what}: {end:.1%}", ha="right", fontsize=10)
        axes.set_title("with gradient reversal" if reverse else "without gradient reversal", fontsize=11)
        axes.set_xlabel("step")
        axes.set_ylim(0, 1.02)
        drawing.tidy(axes)
        if not reverse:
            axes.set_ylabel("test accuracy")
            axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(frameon=False, fontsize=9, loc="lower center", ncols=3)
    drawing.save(figure, out, "Trained with labels of upright digits only: accuracy on tilted digits")


def main(folder: Path = drawing.PICTURES, *seeds: int) -> list[Run]:
    runs = train_all()
    print(table(runs))
    draw(runs, folder / "domain_adaptation.png")
    for seed in seeds:
        print(f"seed {seed}", *(f"{run.accuracy['target'][-1]:.1%}" for run in train_all(seed, ("torch",))))
    return runs


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]), *map(int, sys.argv[2:]))
