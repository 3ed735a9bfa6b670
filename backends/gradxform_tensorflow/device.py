"""Devices of TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from gradxform.proof.place import Absent, Cost, Place
from gradxform_tensorflow import _private

_KINDS = {"cpu": "CPU", "tpu": "TPU"}
"""The others are "GPU"."""
_NO_WORK = {"Placeholder", "Const", "Identity", "NoOp"}


def find(name: str | None = None, index: int = 0) -> Place:
    """Return a device by name and number; by default, TensorFlow's default device.

    Raises:
        Absent: TensorFlow sees no such device.
    """
    if name is None:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return Place(kind.lower(), kind.lower(), tf.constant, cost=functools.partial(cost, f"{kind}:0"))
    kind = _KINDS.get(name, "GPU")
    if kind == "GPU" and name != "gpu" and name not in (made_for := _made_for()):
        raise Absent(f"which is built for {' and '.join(made_for)} here")
    devices = tf.config.list_logical_devices(kind)
    if index >= len(devices):
        number = f"{name}:{index}" if devices else f"{name} device"
        raise Absent(f"which sees no {number}: tf.config.list_logical_devices({kind!r}) has {len(devices)}")
    device = f"{kind}:{index}"
    return Place(
        kind.lower(),
        _words(kind, index),
        functools.partial(_put, device),
        functools.partial(_on, device),
        lambda leaf: leaf.device.endswith(f":{device}"),
        functools.partial(cost, device),
    )


def _made_for() -> tuple[str, ...]:
    """Kinds of GPU that this TensorFlow build supports."""
    if sys.platform == "darwin":
        return ("metal", "mps")
    return ("rocm",) if tf.test.is_built_with_rocm() else ("cuda",) if tf.test.is_built_with_cuda() else ("cpu",)


def _words(kind: str, index: int) -> str:
    if kind == "CPU":
        return "cpu" if index == 0 else f"cpu:{index}"
    physical = tf.config.list_physical_devices(kind)
    details = tf.config.experimental.get_device_details(physical[index]) if index < len(physical) else {}
    return f"{details.get('device_name', kind)} ({kind}:{index})"


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    with tf.device(device):
        yield


def _put(device: str, array: Any) -> Any:
    with tf.device(device):
        return tf.constant(array)


def cost(device: str, function: Callable[..., Any], *args: Any) -> Cost:
    """Count the ops of a tf.function's graph or of an eager call; on a GPU, also the allocator's memory.

    On the CPU, NumPy does part of an eager call, which is not counted.
    """
    if hasattr(function, "get_concrete_function"):
        graph = function.get_concrete_function(*args).graph.as_graph_def()
        nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
        names = [node.op for node in nodes]
    elif device.startswith("CPU"):
        return Cost()
    else:
        names = _private.names_of_ops(function, *args)
    return Cost(sum(name not in _NO_WORK for name in names), _peak(device, function, *args))


def _peak(device: str, function: Callable[..., Any], *args: Any) -> int | None:
    """Increase of memory in use during a call; the CPU allocator does not report it."""
    if device.startswith("CPU"):
        return None
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    result = function(*args)
    tf.test.experimental.sync_devices()
    peak = tf.config.experimental.get_memory_info(device)["peak"]
    del result
    return int(peak - before)
