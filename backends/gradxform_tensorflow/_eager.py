"""Fast paths in eager mode: read values where that is free, and branch on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform_tensorflow import _private


def readable(tensors: Iterable[Any]) -> bool:
    """Whether all are CPU tensors with values that no tape may be watching."""
    if not tf.executing_eagerly() or _private.may_record():
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
    """One of two results; branches must have no side effects."""
    if tf.executing_eagerly():
        return yes() if bool(condition) else no()
    return tf.cond(condition, yes, no)
