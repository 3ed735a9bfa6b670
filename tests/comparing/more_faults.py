"""Faults that no rule was written for, or that look like another: what may be said of each as certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy_runs import adam, each, rmsprop, sgd

Tree = dict[str, Any]


class Fault(NamedTuple):
    """Options of the run that has it, those of both, and the kinds that are right; none if none can be."""

    options: dict[str, Any]
    both: Mapping[str, Any] = MappingProxyType({})
    kinds: tuple[str, ...] = ()


def lion(rate: float = 3e-3) -> Any:
    """Return the moves of Lion."""
    m: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        mean = m.get(name, 0.0)
        m[name] = 0.99 * mean + 0.01 * g
        return rate * np.sign(0.9 * mean + 0.1 * g)

    return moves


def radam(rate: float = 1e-2) -> Any:
    """Return the moves of RAdam, which is not adaptive in its first steps."""
    m: Tree = {}
    v: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        t, longest = step + 1, 2 / (1 - 0.999) - 1
        m[name] = 0.9 * m.get(name, 0.0) + 0.1 * g
        v[name] = 0.999 * v.get(name, 0.0) + 0.001 * g**2
        length = longest - 2 * t * 0.999**t / (1 - 0.999**t)
        mean = m[name] / (1 - 0.9**t)
        if length <= 5:
            return rate * mean
        r = np.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        return rate * r * mean / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-8)

    return moves


def adagrad(rate: float = 0.01, start: float = 0.1) -> Any:
    """Return the moves of Adagrad."""
    v: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        v[name] = v.get(name, start) + g**2
        return rate * g / (np.sqrt(v[name]) + 1e-10)

    return moves


def scheduled(rate_of: Callable[[int], float], make: Callable[[float], Any] = sgd) -> Any:
    """Return the moves of an optimizer whose rate is that of each step."""
    moves = make(1.0)
    return lambda step, name, g, p: rate_of(step) * moves(step, name, g, p)


def accumulating(rate: float = 0.1) -> Any:
    """Return the moves of SGD on each second batch, with the mean of two gradients."""
    held: Tree = {}

    def moves(step: int, name: str, g: Any, p: Any) -> Any:
        held[name] = held.get(name, 0.0) * (step % 2) + g
        return rate * held[name] / 2 if step % 2 else 0.0 * g

    return moves


def centred(rate: float = 0.1) -> Any:
    """Return the moves of SGD with centralized gradients."""
    return lambda step, name, g, p: rate * (g - g.mean(0) if g.ndim > 1 else g)


def clipped_after(limit: float) -> Any:
    """Return the moves of SGD that clips each gradient after it is recorded."""
    return lambda step, name, g, p: 0.1 * g * min(1.0, limit / float(np.linalg.norm(g)))


def sparse_decay(step: int, name: str, g: Any, p: Any) -> Any:
    """Return the moves of SGD that decays matrices alone."""
    return 0.1 * g + (1e-3 * p if p.ndim > 1 else 0.0)


def on(path: str, function: Callable[[int, Any], Any]) -> dict[str, Any]:
    """Change the gradient of one leaf."""

    def change(step: int, gradients: Tree) -> Tree:
        return {name: np.float32(function(step, g)) if name == path else g for name, g in gradients.items()}

    return {"change": change}


def all_by(factor_of: Callable[[int], float]) -> dict[str, Any]:
    """Multiply all gradients by a factor of the step."""
    return {"change": lambda step, gs: {name: np.float32(factor_of(step) * g) for name, g in gs.items()}}


def noise(size: float) -> dict[str, Any]:
    """Add noise to all gradients."""

    def change(step: int, gradients: Tree) -> Tree:
        rng = np.random.default_rng((1, step))
        return {name: np.float32(g + size * g.std() * rng.normal(size=g.shape)) for name, g in gradients.items()}

    return {"change": change}


def halved_largest(step: int, g: Any) -> Any:
    """Halve the largest element."""
    g = g.copy()
    g.ravel()[np.abs(g).argmax()] /= 2
    return g


def first_of(tree: Tree, name: str, function: Callable[[Any], Any]) -> Tree:
    """Change one initial parameter."""
    return tree | {name: np.float32(function(tree[name]))}


STILL = {"optimizer": lambda: sgd(0.0)}
MORE: dict[str, Fault] = {
    "Lion for SGD": Fault({"optimizer": lion}, kinds=("optimizer",)),
    "Lion for Adam": Fault({"optimizer": lion}, {"optimizer": adam}, ("optimizer",)),
    "RAdam for Adam": Fault({"optimizer": radam}, {"optimizer": adam}, ("optimizer",)),
    "RAdam for SGD": Fault({"optimizer": radam}, kinds=("optimizer",)),
    "Adagrad for SGD": Fault({"optimizer": adagrad}, kinds=("optimizer",)),
    "Adagrad for RMSprop": Fault({"optimizer": adagrad}, {"optimizer": rmsprop}, ("optimizer",)),
    "Adam for SGD": Fault({"optimizer": adam}, kinds=("optimizer",)),
    "Adam for SGD, small gradients": Fault(
        {"optimizer": adam}, {"optimizer": lambda: sgd(10.0), "change": each(lambda n, g: 0.01 * g)}, ("optimizer",)
    ),
    "a warm-up from zero": Fault({"optimizer": lambda: scheduled(lambda step: 0.02 * step)}, kinds=("learning_rate",)),
    "a warm-up": Fault({"optimizer": lambda: scheduled(lambda step: 0.02 * (step + 1))}, kinds=("learning_rate",)),
    "a cosine schedule": Fault(
        {"optimizer": lambda: scheduled(lambda step: 0.1 * np.cos(step / 6))}, kinds=("learning_rate",)
    ),
    "a warm-up of Adam": Fault(
        {"optimizer": lambda: scheduled(lambda step: 1e-3 * (step + 1), adam)},
        {"optimizer": lambda: adam(1e-2)},
        ("learning_rate",),
    ),
    "steps on every second batch": Fault({"optimizer": accumulating}, kinds=("optimizer",)),
    "centralized gradients": Fault({"optimizer": centred}, kinds=("optimizer",)),
    "a clip after recording": Fault({"optimizer": lambda: clipped_after(0.05)}, kinds=("optimizer",)),
    "a decay of matrices alone": Fault({"optimizer": lambda: sparse_decay}, kinds=("weight_decay",)),
    "a factor of each batch": Fault(all_by(lambda step: 1 + 0.3 * (step % 3 + 1)), STILL),
    "a factor from step 2 on": Fault(all_by(lambda step: 1.0 if step < 2 else 2.0), STILL),
    "a constant factor": Fault(all_by(lambda step: 3.0), STILL, ("factor",)),
    "half at one step": Fault(all_by(lambda step: 0.5), {}, ("factor",)),
    "noise of 10 %": Fault(noise(0.1)),
    "noise of 0.1 %": Fault(noise(1e-3)),
    "one element halved": Fault(on("mid.weight", halved_largest)),
    "a row that is zero": Fault(on("mid.weight", lambda step, g: g * (np.arange(len(g)) > 0)[:, None])),
    "squares": Fault(on("mid.weight", lambda step, g: g**2)),
    "a matrix that is centred": Fault(on("mid.weight", lambda step, g: g - g.mean())),
    "a bias that is a mean": Fault(on("mid.bias", lambda step, g: g / 32), kinds=("leaf_factor",)),
    "rows in another order": Fault(
        on("mid.weight", lambda step, g: g[np.random.default_rng(0).permutation(len(g))]), kinds=("layout",)
    ),
    "signs of one leaf": Fault(on("mid.weight", lambda step, g: np.sign(g))),
    "soft clips": Fault({"change": each(lambda name, g: 0.02 * np.tanh(g / 0.02))}),
    "gradients that are normalized": Fault(
        {"change": each(lambda name, g: g / np.linalg.norm(g))}, kinds=("clip_norm",)
    ),
    "rows of initial weights in another order": Fault(
        {"start": lambda tree: first_of(tree, "mid.weight", lambda w: w[np.random.default_rng(0).permutation(len(w))])},
        kinds=("initial",),
    ),
}
