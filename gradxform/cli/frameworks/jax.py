"""JAX: its devices, optax beside it, and the demo's network trained in one jitted step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gradxform.cli.frameworks.interface import COEFFICIENTS, Clip, Mode, Task, chosen, each, native
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Place
from gradxform_jax import backend, private

# --- devices ---------------------------------------------------------------------------------------------------------

_PLATFORMS = {
    **{name: (name,) for name in ("cpu", "cuda", "rocm", "tpu")},
    "gpu": ("gpu", "METAL"),
    **dict.fromkeys(("metal", "mps"), ("METAL",)),
}
"""JAX's names; the first that is there is taken."""
_WITHOUT = {"tpu": ("float64", "complex128"), "metal": ("float64", "complex128")}
"""A TPU's float64 is a pair of float32, with float32's range."""


def find(name: str | None = None, index: int = 0) -> Place:
    """Return a device by name and number; by default, JAX's default device.

    Raises:
        Absent: JAX sees no such device.
    """
    device = jax.devices()[0] if name is None else chosen(_devices(), name, index)
    return Place(
        device.platform.lower(),
        _words(device),
        backend.from_numpy,
        functools.partial(jax.default_device, device),
        lambda leaf: leaf.devices() == {device},
        _WITHOUT.get(device.platform.lower(), ()),
        jax.block_until_ready,
    )


def _devices() -> dict[str, list[jax.Device]]:
    found: dict[str, list[jax.Device]] = {}
    for name, platforms in _PLATFORMS.items():
        for platform in platforms:
            with contextlib.suppress(RuntimeError):
                found.setdefault(name, jax.devices(platform))
    return found


def _words(device: jax.Device) -> str:
    if device.platform == "cpu":
        return "cpu" if device.id == 0 else f"cpu:{device.id}"
    return f"{device.device_kind} ({device})"


# --- the benchmark ---------------------------------------------------------------------------------------------------


def _optax(make: Callable[[float], Any]) -> Callable[[Any, float], Any]:
    """One of optax's transformations; those here have no state."""

    def function(grads: Any, value: float) -> Any:
        return make(value).update(grads, optax.EmptyState())[0]

    return function


def _clip_norm(g: Any, limit: float) -> Any:
    """Optax limits the norm of all leaves, or the root mean square of each, but not the norm of each."""
    return g * jnp.minimum(1.0, limit / jnp.linalg.norm(g.ravel()))


def _orthogonalize(grads: Any, steps: float) -> Any:
    iterate, coefficients = private.muon_iteration(), jnp.asarray(COEFFICIENTS)
    return [iterate(g, coefficients, int(steps)) for g in grads]


NATIVE: dict[str, Callable[[Any, float], Any]] = {
    "clip_value": _optax(optax.clip),
    "clip_norm": each(_clip_norm),
    "clip_global_norm": _optax(optax.clip_by_global_norm),
    "scale": _optax(optax.scale),
    "orthogonalize": _orthogonalize,
}
_MUON = {"like": "optax"}
MODES = (
    Mode("eager", "optax", NATIVE, muon=_MUON),
    Mode("jit", "optax under jax.jit", NATIVE, compile=jax.jit, muon=_MUON),
)


# --- the demo --------------------------------------------------------------------------------------------------------


def train(task: Task, chain: Clip, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Train by jax.grad, with the chain in front of optax.sgd."""
    optimizer = optax.sgd(task.learning_rate, task.momentum)

    def loss_of(weights: Any, images: Any, labels: Any) -> Any:
        logits = task.logits(weights, images, reduce=_scan)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()

    @jax.jit
    def step(weights: Any, state: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
        if isinstance(chain, GradientTransformation):
            chained = chain(gradients, weights)
        else:
            chained = dict(zip(gradients, native(MODES[0], chain, list(gradients.values())), strict=True))
        updates, state = optimizer.update(chained, state, weights)
        return optax.apply_updates(weights, updates), state, loss, gradients, chained

    weights = {path: put(weight) for path, weight in task.weights.items()}
    state = optimizer.init(weights)
    for images, labels in task.batches:
        weights, state, *seen = step(weights, state, put(images), put(labels))
        yield *seen, weights


def _scan(step: Callable[[Any, Any], Any], pixels: list[Any], start: Any) -> Any:
    """`functools.reduce`, compiled once for all pixels."""
    return jax.lax.scan(lambda h, pixel: (step(h, pixel), None), start, jnp.stack(pixels))[0]
