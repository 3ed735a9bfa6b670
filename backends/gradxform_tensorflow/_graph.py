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


def is_fusible() -> bool:
    """Whether XLA is to compile parts of what is traced: of a `tf.function`, and for accelerators of TF1's graphs."""
    graph = not tf.executing_eagerly() and not is_xla()
    return graph and (isinstance(ops.get_default_graph(), tf.__internal__.FuncGraph) or not _eager.has_only_cpus())


def is_compiled(arrays: Sequence[Any]) -> bool:
    """Whether XLA compiles what is made of arrays now: all of the graph, or what is `fused` in it."""
    return is_xla() or (is_fusible() and _is_known(arrays))


def _is_known(arguments: Any) -> bool:
    """Whether the shapes are, and there is XLA for the device, as there is not for Apple's GPUs."""
    known = all(array.shape.is_fully_defined() for array in tf.nest.flatten(arguments) if tf.is_tensor(array))
    return known and bool(_eager.has_only_cpus() or tf.test.is_built_with_gpu_support())


def fused(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function as one that XLA compiles, so that no conversion of a tensor is written to memory.

    As it is for shapes that are unknown, which XLA would compile anew for each, and where TensorFlow has no XLA for the
    device, as on Apple's GPUs.
    """
    if _is_known(arguments):
        return tf.function(function, autograph=False, jit_compile=True)
    return function
