"""Devices of JAX."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.proof.place import Absent, Cost, Place
from gradxform_jax import backend

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
        return Place(jax.default_backend(), _words(jax.devices()[0]), jnp.array, cost=cost)
    device = _device(name, index)
    return Place(
        device.platform.lower(),
        _words(device),
        functools.partial(_put, device),
        functools.partial(jax.default_device, device),
        lambda leaf: leaf.devices() == {device},
        cost,
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


def cost(function: Callable[..., Any], *args: Any) -> Cost:
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
