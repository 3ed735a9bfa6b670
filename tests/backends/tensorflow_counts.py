"""What TensorFlow's graphs hold where an accelerator is seen: operations, and the arrays that they write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

import gradxform as gx


def tree(count: int, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """Gradients by names, of which every other one ends with an s."""
    rng = np.random.default_rng(0)
    return {f"w{i}" + "s" * (i % 2): tf.constant(rng.standard_normal(shape), dtype) for i in range(count)}


def graphs(step: Any, *given: Any) -> Iterator[Any]:
    """The graph of a function, and those of the functions in it but for what XLA compiles."""
    graph = tf.function(step, autograph=False).get_concrete_function(*given).graph
    yield graph
    for function in graph.as_graph_def().library.function:
        if not function.attr["_XlaMustCompile"].b:
            yield function_def_to_graph.function_def_to_graph(function)


def operations(tx: gx.GradientTransformation, given: Any) -> list[Any]:
    """Those of a step of a transformation."""
    return all_of(lambda grads, state: tx.update(grads, state, grads), given, tx.init(given))


def all_of(step: Any, *given: Any) -> list[Any]:
    """Those of a function."""
    return [operation for graph in graphs(step, *given) for operation in graph.get_operations()]


def kinds(found: Any) -> set[str]:
    """The types of operations."""
    return {operation.type for operation in found}


def copies(found: Any, size: int) -> set[str]:
    """The types of those that make as many numbers of 64 bits as a leaf has."""
    return {
        operation.type
        for operation in found
        for output in operation.outputs
        if output.dtype in (tf.float64, tf.complex128, tf.int64) and (output.shape.num_elements() or 0) >= size
    }
