"""Count the operations of TensorFlow graphs traced for an accelerator, and the arrays that they write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from devices import update
from tensorflow.python.framework import function_def_to_graph

import gradxform as gx


def tree(count: int, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Gradients by name; every other name ends with an s."""
    rng = np.random.default_rng(0)
    return {f"w{i}" + "s" * (i % 2): tf.constant(rng.standard_normal(shape), dtype) for i in range(count)}


def graphs(step: Any, *given: Any) -> Iterator[Any]:
    """The graph of a function and of its inner functions, except what XLA compiles."""
    graph = tf.function(step, autograph=False).get_concrete_function(*given).graph
    yield graph
    for function in graph.as_graph_def().library.function:
        if not function.attr["_XlaMustCompile"].b:
            yield function_def_to_graph.function_def_to_graph(function)


def operations(tx: gx.GradientTransformation, given: Any) -> list[Any]:
    """The graphs of a step of a transformation."""
    return all_of(lambda grads, state: update(tx, grads, state, grads), given, tx.init(given))


def all_of(step: Any, *given: Any) -> list[Any]:
    """The graphs of a function."""
    return [operation for graph in graphs(step, *given) for operation in graph.get_operations()]


def kinds(found: Any) -> set[str]:
    """The types of operations."""
    return {operation.type for operation in found}


def copies(found: Any, size: int) -> set[str]:
    """The types of operations that create a leaf-sized 64-bit array."""
    return {
        operation.type
        for operation in found
        for output in operation.outputs
        if output.dtype in (tf.float64, tf.complex128, tf.int64) and (output.shape.num_elements() or 0) >= size
    }
