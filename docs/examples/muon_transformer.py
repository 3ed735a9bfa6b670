"""One small transformer trained with AdamW, and with Muon made of parts, in JAX, TensorFlow and PyTorch.

    python docs/examples/muon_transformer.py [FOLDER]

trains six times, prints what it saw and writes muon_transformer.png into the folder, docs/pictures if none is given.

The transformer reads source code of Python's standard library, character by character. All runs start from the same
weights and read the same batches. Muon is `trace` and `orthogonalize` on the matrices of the blocks, with plain SGD for
the step; AdamW trains the rest. The other runs train all weights with AdamW. A clip comes first everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from drawing import COLORS, FRAMEWORKS, NAMES, PICTURES, canvas, save, tidy

import gradxform as gx

STEPS, BATCH, LENGTH = 150, 16, 64
WIDTH, HEADS, DEPTH = 64, 4, 2
RATES = {"AdamW": 1e-3, "Muon": 0.01}
DECAY, EPSILON = 0.01, 1e-12  # so small that it does not matter where a library adds it
CLIP = gx.clip_global_norm(1.0)
MUON = gx.chain(gx.trace(0.95, nesterov=True), gx.orthogonalize(axes="keras"))
Array = Any
Weights = dict[str, Any]


class Functions(NamedTuple):
    """What the network needs of a framework."""

    constant: Callable[[Array], Any]
    rows: Callable[[Any, Any], Any]
    """The rows of a table at some indices."""
    softmax: Callable[[Any], Any]
    log_softmax: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    sum: Callable[[Any], Any]
    """Over the last axis, which stays."""
    rsqrt: Callable[[Any], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    transpose: Callable[[Any, tuple[int, ...]], Any]


def text() -> Array:
    """Source code of the standard library: indices of characters, below 128."""
    read = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (argparse, json, textwrap))
    return np.frombuffer(read.encode("ascii", "ignore"), np.uint8).astype(np.int32)


def batches() -> Iterator[tuple[Array, Array]]:
    """One per step: characters [16, 64], and the characters that follow them, as rows of zeros and a one."""
    given, rng = text(), np.random.default_rng(0)
    for _ in range(STEPS):
        starts = rng.integers(len(given) - LENGTH - 1, size=BATCH)
        rows = np.stack([given[start : start + LENGTH + 1] for start in starts])
        yield rows[:, :-1], np.eye(128, dtype=np.float32)[rows[:, 1:]]


def first_weights() -> Weights:
    """Float32 arrays by path; matrices are [inputs, outputs]."""
    rng = np.random.default_rng(1)
    shapes = {"embedding": (128, WIDTH), "position": (LENGTH, WIDTH), "head": (WIDTH, 128)}
    for i in range(DEPTH):
        shapes |= {f"block{i}/{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        shapes |= {f"block{i}/up": (WIDTH, 4 * WIDTH), f"block{i}/down": (4 * WIDTH, WIDTH)}
    return {path: (rng.standard_normal(s) / np.sqrt(WIDTH)).astype(np.float32) for path, s in shapes.items()}


def loss(f: Functions, weights: Weights, given: Any, wanted: Any) -> Any:
    """The mean cross-entropy of the next characters."""
    x = f.rows(weights["embedding"], given) + weights["position"]
    for i in range(DEPTH):
        own = {name: weights[f"block{i}/{name}"] for name in ("query", "key", "value", "out", "up", "down")}
        x = x + _attention(f, own, _normalized(f, x))
        x = x + f.relu(_normalized(f, x) @ own["up"]) @ own["down"]
    likely = f.log_softmax(_normalized(f, x) @ weights["head"])
    return -f.sum(f.reshape(likely * wanted, (-1,)))[0] / (BATCH * LENGTH)


def _normalized(f: Functions, x: Any) -> Any:
    return x * f.rsqrt(f.sum(x * x) / WIDTH + 1e-6)


def _attention(f: Functions, weights: Weights, x: Any) -> Any:
    size = WIDTH // HEADS

    def heads(name: str) -> Any:
        return f.transpose(f.reshape(x @ weights[name], (BATCH, LENGTH, HEADS, size)), (0, 2, 1, 3))

    later = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    scores = heads("query") @ f.transpose(heads("key"), (0, 1, 3, 2)) * size**-0.5 + f.constant(later)
    mixed = f.softmax(scores) @ heads("value")
    return f.reshape(f.transpose(mixed, (0, 2, 1, 3)), (BATCH, LENGTH, WIDTH)) @ weights["out"]


# --- the three frameworks --------------------------------------------------------------------------------------------


def train_jax(optimizer: str) -> list[float]:
    """The loss of each step, in JAX with optax."""
    import jax
    import jax.numpy as jnp
    import optax

    f = Functions(
        jnp.asarray,
        lambda table, rows: table[rows],
        jax.nn.softmax,
        jax.nn.log_softmax,
        jax.nn.relu,
        lambda x: jnp.sum(x, -1, keepdims=True),
        jax.lax.rsqrt,
        jnp.reshape,
        jnp.transpose,
    )
    weights = {path: jnp.asarray(weight) for path, weight in first_weights().items()}
    adam = optax.adamw(RATES["AdamW"], eps=EPSILON, weight_decay=DECAY)
    parts = {"muon": optax.chain(MUON, optax.sgd(RATES["Muon"])), "adam": adam}
    labels = {path: "muon" if optimizer == "Muon" and is_matrix(path) else "adam" for path in weights}
    tx = optax.chain(CLIP, optax.partition(parts, labels))

    @jax.jit
    def step(weights: Weights, state: Any, given: Any, wanted: Any) -> Any:
        found, gradients = jax.value_and_grad(lambda weights: loss(f, weights, given, wanted))(weights)
        updates, state = tx.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, found

    state, losses = tx.init(weights), []
    for given, wanted in batches():
        weights, state, found = step(weights, state, given, wanted)
        losses.append(float(found))
    return losses


def train_torch(optimizer: str) -> list[float]:
    """The loss of each step, in PyTorch."""
    import torch

    f = Functions(
        torch.from_numpy,
        lambda table, rows: table[rows],
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        torch.relu,
        lambda x: x.sum(-1, keepdim=True),
        torch.rsqrt,
        torch.reshape,
        torch.permute,
    )
    weights = {path: torch.nn.Parameter(torch.from_numpy(weight)) for path, weight in first_weights().items()}
    adam = [weight for path, weight in weights.items() if optimizer == "AdamW" or not is_matrix(path)]
    optimizers: list[Any] = [torch.optim.AdamW(adam, RATES["AdamW"], eps=EPSILON, weight_decay=DECAY)]
    if optimizer == "Muon":
        muon = torch.optim.SGD([weight for path, weight in weights.items() if is_matrix(path)], RATES["Muon"])
        gx.torch.attach(muon, MUON)
        optimizers.append(muon)
    losses = []
    for given, wanted in batches():
        found = loss(f, weights, torch.from_numpy(given).long(), torch.from_numpy(wanted))
        found.backward()
        gx.torch.apply_(CLIP, weights)
        for each in optimizers:
            each.step()
            each.zero_grad()
        losses.append(found.item())
    return losses


def train_tensorflow(optimizer: str) -> list[float]:
    """The loss of each step, in TensorFlow with Keras's optimizers."""
    import keras
    import tensorflow as tf

    f = Functions(
        tf.constant,
        tf.gather,
        tf.nn.softmax,
        tf.nn.log_softmax,
        tf.nn.relu,
        lambda x: tf.reduce_sum(x, -1, keepdims=True),
        tf.math.rsqrt,
        tf.reshape,
        tf.transpose,
    )
    weights = {path: tf.Variable(weight, name=path) for path, weight in first_weights().items()}
    chosen = {path for path in weights if optimizer == "Muon" and is_matrix(path)}
    adam = keras.optimizers.AdamW(RATES["AdamW"], weight_decay=DECAY, epsilon=EPSILON)
    adam.build([weight for path, weight in weights.items() if path not in chosen])
    muon = gx.keras.wrap(keras.optimizers.SGD(RATES["Muon"]), MUON)
    if chosen:
        muon.build([weights[path] for path in weights if path in chosen])

    @tf.function
    def step(given: Any, wanted: Any) -> Any:
        with tf.GradientTape() as tape:
            found = loss(f, weights, given, wanted)
        gradients = tape.gradient(found, list(weights.values()))
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # the embedding's is sparse
        pairs = gx.tensorflow.apply(CLIP, zip(gradients, weights.values(), strict=True))
        for each, mine in ((adam, False), (muon, True)):
            some = [pair for path, pair in zip(weights, pairs, strict=True) if (path in chosen) is mine]
            if some:
                each.apply_gradients(some)
        return found

    return [float(step(tf.constant(given), tf.constant(wanted))) for given, wanted in batches()]


def is_matrix(path: str) -> bool:
    """Whether Muon trains a weight: the matrices of the blocks."""
    return path.startswith("block")


TRAIN = {"jax": train_jax, "tensorflow": train_tensorflow, "torch": train_torch}


def main(out: Path) -> dict[str, dict[str, list[float]]]:
    """Train, print and draw; return the losses by optimizer and framework."""
    runs = {optimizer: {name: train(optimizer) for name, train in TRAIN.items()} for optimizer in RATES}
    for optimizer, losses in runs.items():
        apart = max(np.ptp([losses[name][step] for name in losses]) for step in range(STEPS))
        ends = ", ".join(f"{NAMES[name]} {np.mean(found[-10:]):.4f}" for name, found in losses.items())
        print(f"{optimizer}: mean loss of the last ten steps {ends}; at most {apart:.1e} apart in any step")
    draw(runs, out / "muon_transformer.png")
    return runs


def draw(runs: dict[str, dict[str, list[float]]], out: Path) -> None:
    """Losses of all runs, and how far the frameworks are apart."""
    figure = canvas()
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for optimizer, losses in runs.items():
        for name, (color, width) in FRAMEWORKS.items():
            left.plot(losses[name], color=color, linewidth=width, label=NAMES[name] if optimizer == "Muon" else None)
        left.annotate(optimizer, (STEPS - 1, losses["jax"][-1]), (4, 0), textcoords="offset points", va="center")
    left.set(xlabel="step", ylabel="cross-entropy per character, nats", title="Loss")
    left.legend(frameon=False)
    for color, (optimizer, losses) in zip(COLORS, runs.items(), strict=False):
        apart = np.ptp(list(losses.values()), axis=0)
        right.semilogy(np.maximum(apart, 1e-9), color=color, linewidth=1.3, label=optimizer)
    right.set(xlabel="step", title="Largest difference of two frameworks")
    right.legend(frameon=False)
    tidy(left, right)
    save(figure, out, "One transformer, two optimizers, three frameworks", tuple(FRAMEWORKS))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
