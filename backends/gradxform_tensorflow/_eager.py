"""What can be done where operations run at once: read values where that is free."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record


def readable(tensors: Iterable[Any]) -> bool:
    """Whether these are tensors on the CPU with values, which no tape may be watching."""
    if not tf.executing_eagerly() or record.could_possibly_record():
        return False
    given = list(tensors)
    if not all(hasattr(kind, "numpy") for kind in {type(tensor) for tensor in given}):
        return False
    return has_only_cpus() or all("CPU:" in tensor.device for tensor in given)


@functools.cache
def has_only_cpus() -> bool:
    """Whether this process sees no accelerator."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def view(tensor: Any) -> Any:
    """A tensor's memory as a NumPy array that cannot be written to; bfloat16 is copied to float32."""
    return np.asarray(memoryview(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor))
