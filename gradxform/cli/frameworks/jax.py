"""JAX: its devices, optax beside it, and the demo's network trained in one jitted step."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradxform.cli.frameworks.interface import COEFFICIENTS, Array, Mode, OnStep, Side, Step, Task, Tree, transformation
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Absent, Cost, Place
from gradxform_jax import _private, backend

# --- devices ---------------------------------------------------------------------------------------------------------

_PLATFORMS = {"gpu": ("gpu", "METAL"), "metal": ("METAL",), "mps": ("METAL",)}
"""JAX's names where they are others; the first that is there is taken."""
_WITHOUT = {"tpu": ("float64", "complex128"), "metal": ("float64", "complex128")}
"""A TPU's float64 is a pair of float32, with float32's range."""
_NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def find(name: str | None = None, index: int = 0) -> Place:
    """Return a device by name and number; by default, JAX's default device, uncommitted.

    Raises:
        Absent: JAX sees no such device.
    """
    if name is None:
        return Place(jax.default_backend(), _words(jax.devices()[0]), jnp.array, cost=_cost)
    device = _device(name, index)
    return Place(
        device.platform.lower(),
        _words(device),
        functools.partial(_put, device),
        functools.partial(jax.default_device, device),
        lambda leaf: leaf.devices() == {device},
        _cost,
        _WITHOUT.get(device.platform.lower(), ()),
    )


def _device(name: str, index: int) -> jax.Device:
    for platform in _PLATFORMS.get(name, (name,)):
        try:
            found = jax.devices(platform)
        except RuntimeError:
            continue
        if index < len(found):
            return found[index]
        raise Absent(f"which sees no {name}:{index}: jax.devices({platform!r}) has {len(found)}")
    raise Absent(f"which sees no {name} device: jax.devices() is {jax.devices()}")


def _words(device: jax.Device) -> str:
    if device.platform == "cpu":
        return "cpu" if device.id == 0 else f"cpu:{device.id}"
    return f"{device.device_kind} ({device})"


def _put(device: jax.Device, array: Any) -> jax.Array:
    with backend.scope():
        return jax.device_put(array, device)


def _cost(function: Callable[..., Any], *args: Any) -> Cost:
    """XLA's cost of a function under jax.jit; eager code is unknown to it."""
    if not hasattr(function, "lower"):
        return Cost()
    compiled = function.lower(*args).compile()
    found, memory = compiled.cost_analysis(), compiled.memory_analysis()
    accessed = (found[0] if isinstance(found, list) else found or {}).get("bytes accessed")
    peak = None
    if memory is not None:
        peak = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Cost(_operations(compiled.as_text() or ""), peak, None if accessed is None else int(accessed))


def _operations(text: str) -> int | None:
    """Instructions of the entry computation that do work: about one launch each."""
    entry = re.search(r"^ENTRY .*?^}", text, re.DOTALL | re.MULTILINE)
    if entry is None:
        return None
    names = re.findall(r"^ .*? = .*? ([a-z][a-z0-9-]*)\(", entry[0], re.MULTILINE)
    return sum(name not in _NO_WORK for name in names)


# --- the benchmark ---------------------------------------------------------------------------------------------------


def _sides(
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]], steps: Sequence[Step], tree: Tree, place: Place
) -> tuple[Side, Side]:
    grads = {path: place.put(leaf) for path, leaf in tree.items()}
    parts = [NATIVE[name](value) for name, value in steps]

    def side(tx: Any) -> Side:
        state = tx.init(grads)
        update = compiled(lambda updates: tx.update(updates, state)[0])
        return Side(lambda: _wait(update(grads)), _values, cost=lambda: place.cost(update, grads))

    return side(transformation(steps, like="optax")), side(parts[0] if len(parts) == 1 else optax.chain(*parts))


def _wait(result: Any) -> Any:
    return jax.block_until_ready(result)  # type: ignore[no-untyped-call]


def _values(grads: Any) -> list[Array]:
    return [np.asarray(leaf) for leaf in grads.values()]


def _clip_norm(limit: float) -> Any:
    """Optax limits the norm of all leaves, or the root mean square of each, but not the norm of each."""

    def clip(g: Any, _: Any) -> Any:
        return g * jnp.minimum(1.0, limit / jnp.linalg.norm(g.ravel()))

    return optax.stateless_with_tree_map(clip)


def _orthogonalize(steps: float) -> Any:
    iterate, coefficients = _private.muon_iteration(), jnp.asarray(COEFFICIENTS)
    return optax.stateless_with_tree_map(lambda g, _: iterate(g, coefficients, int(steps)))


NATIVE: Mapping[str, Callable[[float], Any]] = {
    "clip_value": optax.clip,
    "clip_norm": _clip_norm,
    "clip_global_norm": optax.clip_by_global_norm,
    "scale": optax.scale,
    "orthogonalize": _orthogonalize,
}

GIVES_MEMORY_BACK = True
MODES = (
    Mode("eager", "optax", functools.partial(_sides, lambda function: function)),
    Mode("jit", "optax under jax.jit", functools.partial(_sides, jax.jit), compiled=True),
)


# --- the demo --------------------------------------------------------------------------------------------------------


def train(task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]) -> Any:
    """Train by jax.grad, with the chain in front of optax.sgd; the logits of the test images."""
    optimizer = optax.chain(chain, _keep_updates(), optax.sgd(task.learning_rate, task.momentum))

    @jax.jit
    def step(weights: Any, state: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        loss, gradients = jax.value_and_grad(_loss)(weights, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss, gradients

    weights = {path: put(weight) for path, weight in task.weights.items()}
    state = optimizer.init(weights)
    for images, labels in task.batches:
        weights, state, loss, gradients = step(weights, state, put(images), put(labels))
        on_step(float(loss), _by_path(gradients), _by_path(state[1]))
    return np.asarray(_logits(weights, put(task.test_images)))


def _keep_updates() -> optax.GradientTransformation:
    """Changes nothing; its state is what the transformation before it in a chain has made."""
    return optax.GradientTransformation(
        lambda weights: weights, lambda updates, state, weights=None: (updates, updates)
    )


@jax.jit
def _logits(weights: Any, images: Any) -> Any:
    def read(h: Any, pixel: Any) -> tuple[Any, None]:
        return jnp.tanh(
            pixel[:, None] * weights["rnn/input"] + h @ weights["rnn/recurrent"] + weights["rnn/bias"]
        ), None

    start = jnp.zeros((len(images), weights["rnn/bias"].size), weights["rnn/bias"].dtype)
    h, _ = jax.lax.scan(read, start, images.T)
    return h @ weights["head/kernel"] + weights["head/bias"]


def _loss(weights: Any, images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(_logits(weights, images), labels).sum()


def _by_path(tree: Any) -> Any:
    return {path: np.asarray(leaf) for path, leaf in tree.items()}
