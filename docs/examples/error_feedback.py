"""Signs of gradients with and without error feedback, in NumPy.

    python docs/examples/error_feedback.py [FOLDER]

trains, prints a table and writes error_feedback.png into the folder, docs/pictures if none is given.

Softmax regression reads scikit-learn's handwritten digits, one image per step. SGD gets the gradients; their signs
times 0.03; and the same signs with error feedback.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from drawing import BAD, COLORS, GREY, PICTURES, canvas, save, tidy
from sklearn.datasets import load_digits

import gradxform as gx

STEPS, TRAIN, SEED = 400, 1400, 0
LEARNING_RATE = 0.1
SIGNS = gx.chain(gx.sign(), gx.scale(0.03))
RUNS = {
    "the gradient": gx.identity(),
    "signs": SIGNS,
    "signs with error feedback": gx.error_feedback(SIGNS),
}
STYLES = dict(zip(RUNS, ((GREY, 4.0), (BAD, 1.8), (COLORS[0], 1.4)), strict=True))
Array = Any


@dataclass
class Run:
    """What was seen of one training, a step each."""

    losses: list[float] = field(default_factory=list)
    """Of all training images, after the step."""
    weights: list[Array] = field(default_factory=list)
    accuracy: float = 0.0


def train(tx: gx.GradientTransformation, seed: int) -> Run:
    (images, labels), rng = load_digits(return_X_y=True), np.random.default_rng(seed)
    order = rng.permutation(len(images))
    x = np.concatenate([images[order] / 16, np.ones((len(images), 1))], axis=1)
    y = np.eye(10)[labels[order]]
    weights, run = np.zeros((65, 10)), Run()
    state = tx.init(weights)
    for _ in range(STEPS):
        row = rng.integers(TRAIN)
        gradient = np.outer(x[row], chances(x[row] @ weights) - y[row])
        update, state = tx.update(gradient, state)
        weights = weights - LEARNING_RATE * update
        run.weights.append(weights)
        run.losses.append(-np.mean(np.log(chances(x[:TRAIN] @ weights)[y[:TRAIN] > 0])))
    run.accuracy = float(np.mean((x[TRAIN:] @ weights).argmax(axis=1) == y[TRAIN:].argmax(axis=1)))
    return run


def chances(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def train_all(seed: int = SEED) -> dict[str, Run]:
    return {name: train(tx, seed) for name, tx in RUNS.items()}


def distances(run: Run, other: Run) -> Array:
    """The distance of the weights of two runs, relative to the norm of the other's, after each step."""
    pairs = zip(run.weights, other.weights, strict=True)
    return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])


def draw(runs: dict[str, Run], out: Path) -> None:
    figure = canvas(9.6, 4.4)
    left, right = figure.subplots(1, 2)
    plain, steps = runs["the gradient"], range(1, STEPS + 1)
    for name, run in runs.items():
        color, width = STYLES[name]
        left.plot(steps, run.losses, color=color, linewidth=width, label=f"{name}: {run.accuracy:.0%} right")
        if run is not plain:
            right.plot(steps, distances(run, plain), color=color, linewidth=width, label=name)
    left.set(xlabel="step", ylabel="loss of the training images", ylim=(0, 2.5))
    right.set(xlabel="step", ylabel="distance from SGD with the gradient", ylim=(0, None))
    left.legend(frameon=False, fontsize=9, loc="lower left")
    right.legend(frameon=False, fontsize=9, loc="center right")
    tidy(left, right)
    save(figure, out, "Signs of gradients train with error feedback", ("numpy",))


def main(folder: Path = PICTURES) -> dict[str, Run]:
    runs = train_all()
    plain = runs["the gradient"]
    for name, run in runs.items():
        end = distances(run, plain)[-1]
        print(f"{name:26} loss {run.losses[-1]:.3f}, {run.accuracy:.1%} right, distance {end:.2f}")
    draw(runs, folder / "error_feedback.png")
    return runs


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
