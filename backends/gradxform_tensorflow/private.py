"""What TensorFlow and Keras do not document and this backend needs, in one place.

Each name has a test in tests/backends/test_private.py that says what breaks when TensorFlow changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_ops, control_flow_util

GRADIENT_OVERRIDE = "_gradient_op_type"
"""Attribute in which a graph's ``gradient_override_map`` stores the name of an op's gradient function."""


def may_record() -> bool:
    """Whether a tape may be watching current operations."""
    return bool(record.could_possibly_record())


def is_recorded(tensors: Iterable[Any]) -> bool:
    """Whether a tape records operations on these tensors."""
    return bool(record.should_record_backprop(list(tensors)))


def maybe_merge_call(function: Callable[..., Any], strategy: Any, *args: Any) -> Any:
    """Call a function that updates variables of a strategy, across replicas where the strategy wants it."""
    return tf.__internal__.distribute.interim.maybe_merge_call(function, strategy, *args)


def has_op(kind: str) -> bool:
    """Whether TensorFlow has a type of op."""
    return op_def_registry.get(kind) is not None


def is_xla(graph: Any) -> bool:
    """Whether XLA compiles the graph, or one that contains it."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def control_flow_of(graph: Any) -> Any:
    """The TensorFlow 1 loop or branch under construction; None if there is none."""
    return graph._get_control_flow_context()


def cond(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two lists of tensors by TensorFlow 1's branches, which are part of the graph.

    `tf.cond` may make functions, which start the eager runtime and cannot have reference variables.
    """
    found = []
    for branch, (pivot, function) in enumerate(
        zip(control_flow_ops.switch(condition, condition), (no, yes), strict=True)
    ):
        context = control_flow_ops.CondContext(tf.identity(condition), tf.identity(pivot), branch=branch)
        context.Enter()
        try:
            _, result = context.BuildCondBranch(function)
            context.ExitResult(result)
        finally:
            context.Exit()
        found.append(result)
    return [control_flow_ops.merge(pair)[0] for pair in zip(*found, strict=True)]


def keys_of(tree: Any) -> list[tuple[Any, ...]]:
    """The keys that lead to each leaf, in the order of `tf.nest.flatten`."""
    return list(tf.__internal__.nest.yield_flat_paths(tree))


def value_of(variable: Any) -> Any:
    """TensorFlow's variable inside a Keras variable; ``value`` would cast it under a dtype policy."""
    return getattr(variable, "_value", variable)
