"""Graphs: who compiles them, and functions that XLA compiles within them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from gradxform_tensorflow import _eager


def is_xla() -> bool:
    """Whether XLA compiles what is traced now: it fuses conversions, and lacks some of TensorFlow's kernels."""
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


def is_function() -> bool:
    """Whether a `tf.function` is traced now, and XLA does not compile all of it."""
    return isinstance(ops.get_default_graph(), tf.__internal__.FuncGraph) and not is_xla()


def fused(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function as one that XLA compiles, so that no conversion of a tensor is written to memory.

    As it is for shapes that are unknown, which XLA would compile anew for each, and where TensorFlow has no XLA for the
    device, as on Apple's GPUs.
    """
    known = all(array.shape.is_fully_defined() for array in tf.nest.flatten(arguments) if tf.is_tensor(array))
    if known and (_eager.has_only_cpus() or tf.test.is_built_with_gpu_support()):
        return tf.function(function, autograph=False, jit_compile=True)
    return function
