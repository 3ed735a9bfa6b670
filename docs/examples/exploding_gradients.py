"""Gradients that explode on their way back through time, and two places to clip them, in JAX.

    python docs/examples/exploding_gradients.py [FOLDER] [SEED ...]

trains, prints what it saw and writes exploding_gradients.png into the folder, docs/pictures if none is given. With
seeds, it trains once more for each of them.

A plain tanh network reads scikit-learn's handwritten digits pixel by pixel, 64 steps deep. Its recurrent matrix starts
as 1.1 times an orthogonal one. SGD with momentum trains it three times, from the same weights on the same batches: as
it is; with the gradients clipped before the optimizer; with what flows back from pixel to pixel clipped on the way.

The explosion makes much of little: a change of 1e-15 in the first weights gives another run within some twenty steps.
So all of it is float64, and the step that is drawn is one of the first.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from drawing import BAD, COLORS, GREY, PICTURES, canvas, save, tidy
from sklearn.datasets import load_digits

import gradxform as gx

STEPS, BATCH, SEED = 150, 64, 2
PIXELS, HIDDEN, TRAIN = 64, 64, 1400
GAIN = 1.1
LEARNING_RATE, MOMENTUM = 0.1, 0.9
NONE = math.inf
# The limit of all gradients together, and, for each example, that of what flows back through a hidden state.
WAYS = {
    "without a clip": (NONE, NONE),
    "gradients clipped": (0.1, NONE),
    "clipped on the way back": (NONE, 0.002),
}
PLAIN, GRADIENTS, BACK = WAYS
STYLES = {PLAIN: (BAD, 1.3), GRADIENTS: (COLORS[0], 2.0), BACK: (COLORS[2], 1.3)}
Array = Any


@dataclass
class Run:
    """What was seen of one training, a step each; step 0 is the first."""

    way: str
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """The global norm of the gradients, before the clip."""
    flowing: list[Array] = field(default_factory=list)
    """The norm of the loss's derivative in the hidden state after each pixel [64]."""
    given: list[Any] = field(default_factory=list)
    """Weights, images and labels."""
    accuracy: float = 0.0
    """Of 397 images that no training sees."""

    @property
    def exploded(self) -> int:
        """The first step whose gradient is ten times that of the first."""
        return int(np.argmax(np.array(self.norms) > 10 * self.norms[0]))


# --- the network -----------------------------------------------------------------------------------------------------


def loss(weights: Any, nudges: Array, images: Array, labels: Array, limit: Array) -> Array:
    """Mean cross-entropy; its derivative in the nudges [64, batch, 64], all zero, is that in the hidden states."""
    back = gx.on_backward(gx.clip_norm(limit, axes=1))

    def read(h: Array, given: Any) -> Any:
        pixel, nudge = given
        h = jnp.tanh(pixel[:, None] * weights["input"] + h @ weights["recurrent"] + weights["bias"])
        return back(h + nudge), None

    h, _ = jax.lax.scan(read, jnp.zeros((len(images), HIDDEN)), (images.T, nudges))
    return optax.softmax_cross_entropy_with_integer_labels(h @ weights["head"], labels).mean()


def accuracy(weights: Any, images: Array, labels: Array) -> float:
    h = np.zeros((len(images), HIDDEN))
    for pixel in images.T:
        h = np.tanh(pixel[:, None] * weights["input"] + h @ weights["recurrent"] + weights["bias"])
    return float(np.mean(np.argmax(h @ weights["head"], axis=1) == labels))


def first_weights(rng: Any) -> Any:
    orthogonal, _ = np.linalg.qr(rng.normal(size=(HIDDEN, HIDDEN)))
    return {
        "input": 0.5 * rng.normal(size=HIDDEN),
        "recurrent": GAIN * orthogonal,
        "bias": np.zeros(HIDDEN),
        "head": rng.normal(size=(HIDDEN, 10)) / np.sqrt(HIDDEN),
    }


# --- training --------------------------------------------------------------------------------------------------------


def optimizer(limit: Any) -> Any:
    return optax.chain(gx.clip_global_norm(limit), optax.sgd(LEARNING_RATE, MOMENTUM))


@jax.jit
def step(weights: Any, state: Any, images: Array, labels: Array, limits: Any) -> Any:
    """The limits are arguments, so that all three ways are one compiled function."""
    before, back = limits
    nudges = jnp.zeros((PIXELS, BATCH, HIDDEN))
    value, (gradients, flowing) = jax.value_and_grad(loss, (0, 1))(weights, nudges, images, labels, back)
    updates, state = optimizer(before).update(gradients, state, weights)
    seen = value, gx.global_norm(gradients), jnp.linalg.norm(flowing, axis=(1, 2))
    return optax.apply_updates(weights, updates), state, seen


def train(way: str, seed: int) -> Run:
    (images, labels), rng = load_digits(return_X_y=True), np.random.default_rng(seed)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    run, limits = Run(way), tuple(map(jnp.asarray, WAYS[way]))
    weights = jax.tree.map(jnp.asarray, first_weights(rng))
    state = optimizer(limits[0]).init(weights)
    for _ in range(STEPS):
        rows = rng.integers(TRAIN, size=BATCH)
        run.given.append((weights, images[rows], labels[rows]))
        weights, state, seen = step(weights, state, images[rows], labels[rows], limits)
        for kept, new in zip((run.losses, run.norms, run.flowing), map(np.asarray, seen), strict=True):
            kept.append(new)
    run.accuracy = accuracy(jax.tree.map(np.asarray, weights), images[TRAIN:], labels[TRAIN:])
    return run


def again(given: Any, way: str) -> Array:
    """What flows back, with the same weights and batch, in another way."""
    weights, images, labels = given
    limits = tuple(map(jnp.asarray, WAYS[way]))
    _, _, (_, _, flowing) = step(weights, optimizer(limits[0]).init(weights), images, labels, limits)
    return np.asarray(flowing)


def train_all(seed: int = SEED) -> tuple[list[Run], dict[str, Array]]:
    """The three runs; of the step at which the first of them explodes, what flows back without and with the clip."""
    with jax.enable_x64(True):  # JAX has 64 bits here and nowhere else
        runs = [train(way, seed) for way in WAYS]
        plain = runs[0]
        return runs, {PLAIN: plain.flowing[plain.exploded], BACK: again(plain.given[plain.exploded], BACK)}


# --- report ----------------------------------------------------------------------------------------------------------


def draw(runs: list[Run], flowing: dict[str, Array], out: Path) -> None:
    figure = canvas(9.6, 5.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.05))
    time, losses = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    norms = figure.add_subplot(grid[1, 1], sharex=losses)
    at, steps = runs[0].exploded, range(1, STEPS + 1)
    for way, values in flowing.items():
        time.plot(range(1, PIXELS + 1), values, color=STYLES[way][0], linewidth=2.4)
        time.annotate(way, (24, values[23:50].max()), **above(12), color=STYLES[way][0])
    for run in runs:
        color, width = STYLES[run.way]
        losses.plot(steps, run.losses, color=color, linewidth=width, label=f"{run.way}: {run.accuracy:.0%} right")
        norms.plot(steps, run.norms, color=color, linewidth=width)
    norms.plot(at + 1, runs[0].norms[at], "o", color=BAD, markersize=7, markerfacecolor="white", markeredgewidth=1.8)
    chance = math.log(10)
    losses.axhline(chance, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    losses.annotate("chance", (1, chance), xycoords=("axes fraction", "data"), **above(-12), color=GREY, ha="right")
    time.set_title(f"step {at + 1} (the ring): norm of ∂loss/∂h after each pixel", fontsize=11)
    time.set_xlabel("pixel (the gradient flows from right to left)")
    losses.set_title("loss", fontsize=11)
    losses.set_ylim(0, 1.7 * max(runs[0].losses))
    losses.legend(frameon=False, fontsize=9, loc="upper right")
    losses.tick_params(labelbottom=False)
    norms.set_title("gradient norm, before the clip", fontsize=11)
    norms.set_xlabel("step")
    for axes in (time, norms):
        axes.set_yscale("log")
    tidy(time, losses, norms)
    save(figure, out, "Exploding gradients of a recurrent network: with a clip, it learns", ("numpy", "jax"))


def above(points: int) -> dict[str, Any]:
    return {"xytext": (0, points), "textcoords": "offset points", "fontsize": 10}


def main(folder: Path = PICTURES, *seeds: int) -> tuple[list[Run], dict[str, Array]]:
    runs, flowing = train_all()
    at = runs[0].exploded
    first, then = (runs[0].norms[i] for i in (0, at))
    print(f"without a clip: norm of the gradients {first:.2g} at step 1, {then:.2g} at step {at + 1}")
    for way, values in flowing.items():
        print(f"step {at + 1}, {way}: norm of dL/dh {values[-1]:.2g} after pixel 64, {values[0]:.2g} after pixel 1")
    for seed in (None, *seeds):
        for run in runs if seed is None else train_all(seed)[0]:
            last = np.mean(run.losses[-20:])
            print(f"seed {SEED if seed is None else seed}, {run.way}: loss {last:.2f}, {run.accuracy:.1%} right")
    draw(runs, flowing, folder / "exploding_gradients.png")
    return runs, flowing


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]), *map(int, sys.argv[2:]))
