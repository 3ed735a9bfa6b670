"""Only w1 learns: a loss that stop_gradient closes towards w2 and w3, in JAX, TensorFlow and PyTorch.

    python docs/examples/stop_gradient.py [FOLDER]

trains and writes stop_gradient.png into the folder, docs/pictures if none is given.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import torch
from drawing import NAMES

import gradxform as gx

STEPS = 150
LEARNING_RATE = 0.08
Array = Any


@dataclass
class Run:
    """One framework's weights [5, 1] of each step; those of step 0 are the first ones."""

    framework: str
    w1: list[Array] = field(default_factory=list)
    w2: list[Array] = field(default_factory=list)
    w3: list[Array] = field(default_factory=list)

    @property
    def distances(self) -> list[float]:
        """How far w1 is from w2 * w3."""
        return [float(np.linalg.norm(w1 - w2 * w3)) for w1, w2, w3 in zip(self.w1, self.w2, self.w3, strict=True)]

    @property
    def still(self) -> bool:
        """Whether w2 and w3 are, bit by bit, what they were."""
        return all(w.tobytes() == kept[0].tobytes() for kept in (self.w2, self.w3) for w in kept)


def start() -> tuple[list[Array], Array]:
    """The first weights, [5, 1] each, and the inputs [64, 5]."""
    rng = np.random.default_rng(292)
    return [np.float32(rng.uniform(-2, 2, (5, 1))) for _ in range(3)], np.float32(rng.normal(size=(64, 5)))


def loss(w1: Any, w2: Any, w3: Any, x: Any) -> Any:
    """The same line for every framework."""
    error = x @ w1 - gx.stop_gradient(x @ (w2 * w3))
    return gx.xp(error).mean(error * error)


def in_jax() -> Run:
    weights, x = start()
    run, weights = Run("jax"), [jnp.asarray(w) for w in weights]
    step = jax.jit(jax.grad(lambda weights: loss(*weights, x)))
    keep(run, weights)
    for _ in range(STEPS):
        weights = [w - LEARNING_RATE * g for w, g in zip(weights, step(weights), strict=True)]
        keep(run, weights)
    return run


def in_tensorflow() -> Run:
    weights, x = start()
    run, weights = Run("tensorflow"), [tf.Variable(w) for w in weights]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss(*weights, x)
        return tape.gradient(value, weights)  # None for w2 and w3

    keep(run, weights)
    for _ in range(STEPS):
        for w, g in zip(weights, step(), strict=True):
            if g is not None:
                w.assign_sub(LEARNING_RATE * g)
        keep(run, weights)
    return run


def in_torch() -> Run:
    weights, x = start()
    run, weights = Run("torch"), [torch.tensor(w, requires_grad=True) for w in weights]
    optimizer = torch.optim.SGD(weights, LEARNING_RATE)
    keep(run, weights)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(*weights, torch.from_numpy(x)).backward()  # leaves the gradients of w2 and w3 None
        optimizer.step()
        keep(run, weights)
    return run


def keep(run: Run, weights: Any) -> None:
    for kept, w in zip((run.w1, run.w2, run.w3), weights, strict=True):
        w = w.detach() if isinstance(w, torch.Tensor) else w
        kept.append(np.array(w if run.framework == "jax" else w.numpy()))


def draw(runs: list[Run], out: Path) -> None:
    run, steps = runs[0], range(STEPS + 1)
    figure = drawing.canvas(9.6, 5.8)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.15, 1))
    learns, still = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    near = figure.add_subplot(grid[1, 1], sharex=still)
    targets = (run.w2[0] * run.w3[0])[:, 0]
    for i, color in enumerate(drawing.COLORS):
        learns.axhline(targets[i], color=color, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.8)
        learns.plot(steps, [w[i, 0] for w in run.w1], color=color, linewidth=2.2, solid_capstyle="round")
        learns.annotate(
            f"$w_{{2,{i + 1}}} w_{{3,{i + 1}}}$",
            (STEPS, targets[i]),
            xytext=(2, 3),
            textcoords="offset points",
            color=color,
            fontsize=8,
            ha="right",
        )
        for kept, style in ((run.w2, "-"), (run.w3, ":")):
            still.plot(steps, [w[i, 0] for w in kept], color=color, linewidth=1.6, linestyle=style)
    for of in runs:
        color, width = drawing.FRAMEWORKS[of.framework]
        near.plot(steps, of.distances, label=NAMES[of.framework], color=color, linewidth=width)
    learns.set_title("the elements of w1 (solid) approach w2 · w3 (dashed)", fontsize=11)
    still.set_title("w2 (solid) and w3 (dotted): unchanged to the bit", fontsize=11)
    near.set_title("distance of w1 from w2 · w3", fontsize=11)
    near.set_yscale("log")
    near.legend(frameon=False, fontsize=9, loc="upper right")
    drawing.tidy(learns, still, near)
    for axes in (learns, near):
        axes.set_xlabel("step")
    still.tick_params(labelbottom=False)
    drawing.save(figure, out, "Only w1 learns: mean((x @ w1 - stop_gradient(x @ (w2 · w3)))²)")


def main(folder: Path = drawing.PICTURES) -> list[Run]:
    runs = [in_jax(), in_tensorflow(), in_torch()]
    for run in runs:
        moved = "bit-identical" if run.still else "changed"
        first, last = run.distances[0], run.distances[-1]
        print(f"{NAMES[run.framework]:10}  w1 - w2 * w3: {first:.2f} -> {last:.1e}  w2, w3: {moved}")
    draw(runs, folder / "stop_gradient.png")
    return runs


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
