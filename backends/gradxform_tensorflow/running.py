"""Where code runs: in eager mode on memory that can be read, on CPUs, in graphs, and by XLA inside graphs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform_tensorflow import private


def readable(tensors: Iterable[Any]) -> bool:
    """Whether all are CPU tensors with values that no tape may be watching."""
    if not tf.executing_eagerly() or private.may_record():
        return False
    given = list(tensors)
    if not all(hasattr(kind, "numpy") for kind in {type(tensor) for tensor in given}):
        return False
    return has_only_cpus() or all("CPU:" in tensor.device for tensor in given)


def has_only_cpus() -> bool:
    """Whether this process sees no accelerator; in a graph without starting TensorFlow's eager runtime."""
    return _are_cpus(tf.config.list_logical_devices if tf.executing_eagerly() else tf.config.get_visible_devices)


@functools.cache
def _are_cpus(devices: Callable[[], Any]) -> bool:
    return all(device.device_type == "CPU" for device in devices())


def view(tensor: Any) -> Any:
    """A tensor's memory as a read-only NumPy array; bfloat16 is copied to float32."""
    return np.asarray(memoryview(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor))


def cond(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two lists of tensors; what a branch does besides, it must wait for."""
    if tf.executing_eagerly():
        return yes() if bool(condition) else no()
    return (tf.cond if in_function() else private.cond)(condition, yes, no)


def is_xla() -> bool:
    """Whether XLA compiles the current trace: it fuses conversions, and lacks some TensorFlow kernels."""
    return not tf.executing_eagerly() and private.is_xla(tf.compat.v1.get_default_graph())


def fused(function: Callable[..., Any], *arguments: Any, on_cpus: bool = True) -> Any:
    """Call a function; in graphs XLA compiles it, so that no converted tensor is written to memory.

    Not for unknown shapes, for which XLA would compile each time, nor on devices without XLA, such as Apple's GPUs, nor
    in a graph of TensorFlow 1 on CPUs, where a function starts the eager runtime.
    """
    if tf.executing_eagerly() or is_xla() or (has_only_cpus() and not (on_cpus and in_function())):
        return function(*arguments)
    known = all(array.shape.is_fully_defined() for array in tf.nest.flatten(arguments) if tf.is_tensor(array))
    if known and (has_only_cpus() or tf.test.is_built_with_gpu_support()):
        function = tf.function(function, autograph=False, jit_compile=True)
    return function(*arguments)


def in_function() -> bool:
    """Whether the graph under construction is of a function."""
    return bool(tf.compat.v1.get_default_graph().building_function)


def on_cpus(function: Callable[..., Any], for_xla: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function that XLA cannot compile; where XLA compiles, another that computes the same.

    XLA may compile a graph long after its trace. So the graph calls the function for XLA. Where XLA does not compile,
    TensorFlow's optimizer replaces it by the other (Grappler's implementation selector).
    """
    if tf.executing_eagerly():
        return function(*arrays)
    if is_xla():
        return for_xla(*arrays)
    if not in_function():
        return function(*arrays)  # a branch in a function would start TensorFlow's eager runtime
    given = " ".join(f"{array.dtype.name}{array.shape}" for array in arrays)
    name = f"{function.__module__}.{function.__qualname__}.{hashlib.sha256(given.encode()).hexdigest()}"

    def made(function: Callable[..., Any], device: str) -> Any:
        wanted = {"api_implements": name, "api_preferred_device": device}
        return tf.function(function, autograph=False, experimental_attributes=wanted)

    made(function, "CPU").get_concrete_function(*arrays).add_to_graph()
    return made(for_xla, "XLA")(*arrays)
