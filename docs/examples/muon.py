"""What orthogonalize does to the singular values of a gradient, in NumPy, JAX, TensorFlow and PyTorch.

    python docs/examples/muon.py [FOLDER]

prints a table and writes muon.png into the folder, docs/pictures if none is given.

The gradient is that of the hidden layer of a network on scikit-learn's handwritten digits, of its first step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf
import torch
from drawing import COLORS, GREY, PICTURES, canvas, save, tidy
from sklearn.datasets import load_digits

import gradxform as gx

KINDS = {"jordan": gx.orthogonalize(scale=None), "polar_express": gx.orthogonalize(5, "polar_express", scale=None)}
Array = Any


@dataclass
class Result:
    """The singular values of one result, and its distance from the same iteration in float64."""

    framework: str
    coefficients: str
    values: Array
    distance: float


def gradient() -> Array:
    """Of 64 images, in the second of three layers of 64 tanh units."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    first, second, last = (rng.uniform(-1, 1, (64, units)) / 8 for units in (64, 64, 10))
    x = np.tanh(images[:64] / 16 @ first)
    hidden = np.tanh(x @ second)
    chances = np.exp(hidden @ last)
    chances /= chances.sum(axis=1, keepdims=True)
    upstream = (chances - np.eye(10)[labels[:64]]) @ last.T / 64 * (1 - hidden**2)
    return np.float32(x.T @ upstream)


def values(matrix: Array) -> Array:
    """Singular values, the largest first."""
    return np.linalg.svd(np.float64(matrix), compute_uv=False)


def run(given: Array) -> list[Result]:
    arrays = {"numpy": np.asarray, "jax": jax.numpy.asarray, "tensorflow": tf.constant, "torch": torch.tensor}
    results = []
    for name, tx in KINDS.items():
        (exact,) = tx([np.float64(given)])
        for framework, array in arrays.items():
            found = np.float64(np.asarray(tx([array(given)])[0]))
            distance = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
            results.append(Result(framework, name, values(found), distance))
    return results


def mapped(s: Array, name: str) -> Array:
    """What becomes of singular values: a stack of diagonal matrices of norm one."""
    stack = np.stack([s, np.sqrt(1 - s**2)], axis=-1)[:, :, None] * np.eye(2)
    return gx.orthogonalize(5, name, scale=None, axes=((1,), (2,)))([stack])[0][:, 0, 0]


def draw(given: Array, results: list[Result], out: Path) -> None:
    figure = canvas(9.6, 4.4)
    left, right = figure.subplots(1, 2)
    before = values(given) / np.linalg.norm(given)
    left.plot(before, ".-", color=GREY, label="before, divided by the norm")
    s = np.geomspace(1e-5, 1, 500)
    for name, color in zip(KINDS, COLORS, strict=False):
        own = next(result for result in results if result.coefficients == name)
        left.plot(own.values, ".-", color=color, label=f'"{name}", 5 steps')
        right.plot(s, mapped(s, name), color=color, label=f'"{name}", 5 steps')
    right.plot(s, s, color=GREY, linewidth=1, label="before")
    for axes in (left, right):
        axes.axhline(1, color="#111111", linewidth=0.7)
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=9)
    left.set_ylim(bottom=1e-6)
    right.set_xscale("log")
    left.set_xlabel("index of the singular value")
    left.set_ylabel("singular value")
    right.set_xlabel("singular value before, divided by the norm")
    tidy(left, right)
    save(figure, out, "Orthogonalizing brings singular values near one")


def main(folder: Path = PICTURES) -> tuple[Array, list[Result]]:
    given = gradient()
    results = run(given)
    before = values(given) / np.linalg.norm(given)
    print(f"before: largest {before[0]:.3f}, median {np.median(before):.1e}, above 0.01: {np.sum(before > 0.01)}")
    for one in results:
        band = np.sum((one.values > 0.6) & (one.values < 1.25))
        print(f"{one.coefficients:14} {one.framework:10}  {band} of 64 within 0.6 and 1.25, off {one.distance:.1e}")
    draw(given, results, folder / "muon.png")
    return before, results


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
