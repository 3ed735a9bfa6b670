"""A small network in NumPy alone, trained and recorded; optimizers and losses as people write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gradxform as gx

Tree = dict[str, Any]
BATCH, INPUTS, HIDDEN, CLASSES = 32, 20, 24, 10


def sgd(rate: float = 0.1, momentum: float = 0.0, nesterov: bool = False, l2: float = 0.0) -> Any:
    """Return the moves of SGD, PyTorch's way."""
    held: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        g = g + l2 * p
        held[name] = momentum * held.get(name, 0.0) + g
        return rate * (g + momentum * held[name] if nesterov else held[name])

    return moves


def adam(
    rate: float = 1e-2,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    *,
    first: int = 1,
    place: str = "outside",
    decay: float = 0.0,
    l2: float = 0.0,
) -> Any:
    """Return the moves of Adam; `first` is the count of the first step in its bias correction."""
    m: Tree = {}
    v: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        g, count = g + l2 * p, max(step + first, 1)
        m[name] = betas[0] * m.get(name, 0.0) + (1 - betas[0]) * g
        v[name] = betas[1] * v.get(name, 0.0) + (1 - betas[1]) * g**2
        one, two = 1 - betas[0] ** count, 1 - betas[1] ** count
        if place == "hat":  # Keras
            step_of = rate * np.sqrt(two) / one * m[name] / (np.sqrt(v[name]) + epsilon)
        elif place == "inside":
            step_of = rate * m[name] / one / np.sqrt(v[name] / two + epsilon)
        else:
            step_of = rate * m[name] / one / (np.sqrt(v[name] / two) + epsilon)
        return step_of + rate * decay * p

    return moves


def rmsprop(rate: float = 1e-3, beta: float = 0.9, epsilon: float = 1e-7) -> Any:
    """Return the moves of RMSprop."""
    v: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        v[name] = beta * v.get(name, 0.0) + (1 - beta) * g**2
        return rate * g / (np.sqrt(v[name]) + epsilon)

    return moves


def dropping(at: int, make: Callable[[float], Any] = sgd) -> Any:
    """Return the moves of an optimizer whose learning rate is a tenth from a step on."""
    moves_of = make(0.1)
    return lambda step, name, g, p: moves_of(step, name, g, p) * (0.1 if step >= at else 1.0)


def clipped(limit: float) -> Callable[[int, Tree], Tree]:
    """Return a clip of all gradients by their global norm."""

    def change(step: int, gradients: Tree) -> Tree:
        norm = float(np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values())))
        return {name: (g * min(1.0, limit / norm)).astype(np.float32) for name, g in gradients.items()}

    return change


def each(function: Callable[[str, Any], Any]) -> Callable[[int, Tree], Tree]:
    """Return a change of every gradient."""
    return lambda step, gradients: {name: np.float32(function(name, g)) for name, g in gradients.items()}


def softmax(x: Any) -> Any:
    """Return the softmax along the last axis."""
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def begin(seed: int) -> Tree:
    """Return the initial parameters."""
    rng = np.random.default_rng((7, seed))
    shapes = {"hidden.weight": (INPUTS, HIDDEN), "hidden.bias": (HIDDEN,), "mid.weight": (HIDDEN, HIDDEN)}
    shapes |= {"mid.bias": (HIDDEN,), "head.weight": (HIDDEN, CLASSES), "head.bias": (CLASSES,)}
    return {name: np.float32(rng.normal(size=shape) / np.sqrt(shape[0])) for name, shape in shapes.items()}


def batch_of(step: int, data: int) -> tuple[Any, Any]:
    """Return inputs and labels."""
    rng = np.random.default_rng((data, step))
    return np.float32(rng.normal(size=(BATCH, INPUTS))), rng.integers(0, CLASSES, BATCH)


def train(
    folder: Path,
    *,
    optimizer: Any = None,
    steps: int = 6,
    every: int = 1,
    first: int = 0,
    seed: int = 0,
    data: int = 0,
    twin: bool = False,
    reduction: str = "mean",
    smoothing: float = 0.0,
    double: bool = False,
    decay: float = 0.0,
    dropout: int | None = None,
    change: Callable[[int, Tree], Tree] | None = None,
    start: Callable[[Tree], Tree] | None = None,
    report: Callable[[float], float] = float,
    extra: Callable[[int, Any, Any], Tree] | None = None,
    trees: tuple[str, ...] = ("gradients", "parameters", "loss"),
) -> Path:
    """Train and record. With `twin`, sums are taken in another order; from step `dropout` on there is dropout."""
    optimizer = sgd() if optimizer is None else optimizer
    parameters = begin(seed) if start is None else start(begin(seed))
    recorder = gx.record(folder, every=every)
    for step in range(steps):
        x, y = batch_of(step, data)
        if twin:
            x, y = x[::-1].copy(), y[::-1].copy()
        loss, gradients = _gradients(
            parameters, x, y, smoothing, double, step if dropout is not None and step >= dropout else None
        )
        if reduction == "sum":
            loss, gradients = loss * BATCH, {name: g * np.float32(BATCH) for name, g in gradients.items()}
        gradients = {name: g + np.float32(decay) * parameters[name] for name, g in gradients.items()}
        if change is not None:
            gradients = change(step, gradients)
        given = {"gradients": gradients, "parameters": parameters, "loss": np.float32(report(loss))}
        given = {name: given[name] for name in trees} | (extra(step, x, y) if extra is not None else {})
        recorder(step + first, **given)
        moves = {name: optimizer(step, name, g, parameters[name]) for name, g in gradients.items()}
        parameters = {name: p - np.float32(moves.get(name, 0)) for name, p in parameters.items()}
    return folder


def _gradients(p: Tree, x: Any, y: Any, smoothing: float, double: bool, dropout: int | None) -> tuple[Any, Tree]:
    """The loss and its gradients, by hand."""
    h = np.tanh(x @ p["hidden.weight"] + p["hidden.bias"])
    kept = np.float32(1.0)
    if dropout is not None:
        kept = np.float32(np.random.default_rng(dropout).random(h.shape) > 0.3) / np.float32(0.7)
    h = h * kept
    k = np.tanh(h @ p["mid.weight"] + p["mid.bias"])
    logits = k @ p["head.weight"] + p["head.bias"]
    wanted = np.float32(np.eye(CLASSES)[y] * (1 - smoothing) + smoothing / CLASSES)
    inner = softmax(logits) if double else logits
    outer = softmax(inner)
    loss = -(wanted * np.log(outer)).sum() / np.float32(len(x))
    back = (outer - wanted) / np.float32(len(x))
    if double:
        back = inner * (back - (back * inner).sum(-1, keepdims=True))
    gradients = {"head.weight": k.T @ back, "head.bias": back.sum(0)}
    back = (back @ p["head.weight"].T) * (1 - k**2)
    gradients |= {"mid.weight": h.T @ back, "mid.bias": back.sum(0)}
    back = (back @ p["mid.weight"].T) * kept * (1 - np.tanh(x @ p["hidden.weight"] + p["hidden.bias"]) ** 2)
    gradients |= {"hidden.weight": x.T @ back, "hidden.bias": back.sum(0)}
    return loss, {name: gradients[name] for name in p}
