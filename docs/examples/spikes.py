"""One bad batch stalls Adam for hundreds of steps; clip_spikes before Adam limits it, in JAX.

    python docs/examples/spikes.py [FOLDER] [SEED ...]

trains, prints a table and writes spikes.png into the folder, docs/pictures if none is given. With seeds, it trains once
more for each of them.

A network of one hidden layer reads scikit-learn's handwritten digits, with pixels from 0 to 1. The pixels of the 31st
batch are 65535 times as large, as if they had been stored in 16 bits.
"""

from __future__ import annotations

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

STEPS, BATCH, TRAIN, HIDDEN, SEED = 300, 64, 1400, 64, 0
SPIKE, FACTOR = 30, 65535.0
LEARNING_RATE = 0.001
# What comes before Adam, and whether there is a bad batch.
RUNS = {
    "no bad batch": (gx.identity(), False),
    "bad batch": (gx.identity(), True),
    "`clip_spikes()`": (gx.clip_spikes(), True),
    "`clip_global_norm(1.0)`": (gx.clip_global_norm(1.0), True),
}
STYLES = dict(zip(RUNS, ((GREY, 4.0), (BAD, 1.8), (COLORS[0], 1.8), (COLORS[2], 1.2)), strict=True))
Array = Any


@dataclass
class Run:
    """What was seen of one training, a step each."""

    losses: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    """The norm of Adam's updates."""
    accuracy: float = 0.0

    @property
    def end(self) -> float:
        """The mean loss of the last 20 steps."""
        return float(np.mean(self.losses[-20:]))


def first_weights(rng: Any) -> dict[str, Array]:
    return {
        "hidden": jnp.asarray(rng.normal(size=(64, HIDDEN)) * (2 / 64) ** 0.5, jnp.float32),
        "hidden_bias": jnp.zeros(HIDDEN),
        "out": jnp.asarray(rng.normal(size=(HIDDEN, 10)) * HIDDEN**-0.5, jnp.float32),
        "out_bias": jnp.zeros(10),
    }


def logits(weights: Any, images: Array) -> Array:
    hidden = jax.nn.relu(images @ weights["hidden"] + weights["hidden_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


def loss(weights: Any, images: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(weights, images), labels).mean()


def train(name: str, seed: int) -> Run:
    (images, labels), rng = load_digits(return_X_y=True), np.random.default_rng(seed)
    order = rng.permutation(len(images))
    images, labels = np.float32(images[order] / 16), labels[order]
    before, bad = RUNS[name]
    optimizer = optax.chain(before, optax.adam(LEARNING_RATE))
    weights, run = first_weights(rng), Run()
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, images: Array, labels: Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value, gx.global_norm(updates)

    for at in range(STEPS):
        rows = rng.integers(TRAIN, size=BATCH)
        size = np.float32(FACTOR if bad and at == SPIKE else 1.0)
        weights, state, value, norm = step(weights, state, size * images[rows], labels[rows])
        run.losses.append(float(value))
        run.sizes.append(float(norm))
    found = logits(weights, images[TRAIN:]).argmax(axis=1)
    run.accuracy = float(np.mean(np.asarray(found) == labels[TRAIN:]))
    return run


def train_all(seed: int = SEED) -> dict[str, Run]:
    return {name: train(name, seed) for name in RUNS}


def draw(runs: dict[str, Run], out: Path) -> None:
    figure = canvas(9.6, 4.4)
    left, right = figure.subplots(1, 2)
    steps = range(1, STEPS + 1)
    for name, run in runs.items():
        color, width = STYLES[name]
        label = name.replace("`", "")
        left.plot(steps, run.losses, color=color, linewidth=width, label=f"{label}: {run.accuracy:.0%} right")
        right.plot(steps, run.sizes, color=color, linewidth=width, label=label)
    left.set(ylim=(0, 2.6), xlabel="step", ylabel="loss")
    right.set(ylim=(0, 0.07), xlabel="step", ylabel="norm of Adam's update")
    left.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.axvline(SPIKE + 1, color="#111111", linewidth=0.7, linestyle=":", zorder=0)
    right.annotate("the bad batch", (SPIKE + 1, 1), (6, -12), xycoords=("data", "axes fraction"),
                   textcoords="offset points", fontsize=9)  # fmt: skip
    tidy(left, right)
    save(figure, out, "One bad batch stalls Adam; clip_spikes limits it", ("jax",))


def main(folder: Path = PICTURES, *seeds: int) -> dict[str, Run]:
    runs = train_all()
    for seed in (SEED, *seeds):
        for name, run in (runs if seed == SEED else train_all(seed)).items():
            print(f"seed {seed}, {name:25} loss of the last 20 steps {run.end:.3f}, {run.accuracy:.1%} right")
    draw(runs, folder / "spikes.png")
    return runs


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:2]), *map(int, sys.argv[2:]))
