"""A training script is ported from PyTorch to Flax, and its gradients are not the same: two faults, found one by one.

    python docs/examples/port_hunt.py [FOLDER]

trains the network in PyTorch and three ports of it, compares their recordings, prints what was found, and writes
port_hunt.png into the folder, docs/pictures if none is given. The data are scikit-learn's handwritten digits.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import drawing
import jax
import numpy as np
import optax
import torch
from flax import nnx
from matplotlib.colors import LogNorm
from sklearn.datasets import load_digits

import gradxform as gx

STEPS, BATCH, RATE = 30, 64, 0.1
DIGITS = load_digits()
X, Y = (DIGITS.data / 16).astype(np.float32), DIGITS.target
PORTS = ("as ported", "with the mean loss", "with PyTorch's epsilon")


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(step).integers(0, len(X), BATCH)
    return X[rows], Y[rows]


def torch_network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    return torch.nn.Sequential(*layers)


def train_torch(folder: Path) -> None:
    model, recorder = torch_network(), gx.record(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        x, y = map(torch.tensor, batch(step))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        recorder(step, gradients=model, parameters=model, loss=loss, labels=y)
        optimizer.step()


class Network(nnx.Module):
    def __init__(self, epsilon: float, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, epsilon=epsilon, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(nnx.relu(self.norm(self.hidden(x))))


def train_flax(folder: Path, mean: bool, epsilon: float) -> None:
    model, recorder = Network(epsilon, nnx.Rngs(0)), gx.record(folder)
    params = nnx.state(model, nnx.Param)
    rename = gx.rename_from_torch(params, modules={"0": "hidden", "1": "norm", "3": "head"})
    nnx.update(model, gx.from_numpy(gx.to_numpy(torch_network().state_dict()), params, rename=rename))

    def loss_of(model: Network, x: Any, y: Any) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
        return losses.mean() if mean else losses.sum()

    @nnx.jit
    def step_of(model: Network, step: Any, x: Any, y: Any) -> None:
        loss, gradients = nnx.value_and_grad(loss_of)(model, x, y)
        params = nnx.state(model, nnx.Param)
        trees = {"gradients": nnx.to_pure_dict(gradients), "parameters": nnx.to_pure_dict(params)}
        jax.debug.callback(recorder, step, **trees, loss=loss, labels=y, ordered=True)
        nnx.update(model, jax.tree.map(lambda p, g: p - RATE * g, params, gradients))

    for step in range(STEPS):
        step_of(model, step, *batch(step))
    jax.effects_barrier()


def hunt(folder: Path) -> list[gx.Comparison]:
    train_torch(folder / "torch_run")
    for i, (mean, epsilon) in enumerate([(False, 1e-6), (True, 1e-6), (True, 1e-5)]):
        train_flax(folder / f"jax_run_{i}", mean, epsilon)
    return [gx.compare(folder / "torch_run", folder / f"jax_run_{i}") for i in range(len(PORTS))]


def draw(found: list[gx.Comparison], out: Path) -> None:
    figure = drawing.canvas(10.5, 3.4)
    every = figure.subplots(1, len(found), sharey=True)
    for axes, comparison, port in zip(every, found, PORTS, strict=True):
        rows = comparison.rows["gradients"]
        distances = np.array([[d.relative for d in rows[step]] for step in comparison.steps]).T
        shown = axes.imshow(np.maximum(distances, 1e-8), aspect="auto", cmap="viridis", norm=LogNorm(1e-8, 1.0))
        axes.set(title=port, xlabel="step", yticks=range(len(comparison.pairs)))
    every[0].set_yticklabels([pair.label for pair in found[0].pairs])
    figure.colorbar(shown, ax=every, label="relative distance of gradients")
    drawing.save(figure, out, "A port from PyTorch to Flax, compared three times", ("torch", "jax"))


def main(out: Path) -> list[gx.Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        found = hunt(Path(folder))
    for port, comparison in zip(PORTS, found, strict=True):
        print(f"{port}:\n{comparison}\n")
    draw(found, out / "port_hunt.png")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else drawing.PICTURES)
