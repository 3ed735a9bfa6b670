"""Override gradients of ops in graphs: registered functions and the override map."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.core.foreign import as_transformation
from gradxform.core.transform import Context
from gradxform.core.tree import Tree
from gradxform_tensorflow import private
from gradxform_tensorflow.kernels import backend

_CALLED = "tensorflow.override_gradients"
_numbers = itertools.count()


def gradient_function(tx: GradientTransformation) -> Callable[..., Any]:
    """Make a gradient function for `tf.RegisterGradient` from a transform.

    The op counts as the identity: its input gets the transformed gradient of its output. The op must have one input per
    output, of the same shape and dtype. It works in TF1 graphs and in `tf.function`.

    Args:
        tx: A stateless transform.

    Returns:
        A function of an op and its outputs' gradients, floating or complex tensors. A gradient's path is the op's name,
        with "/" and the output's number if there are several.

    Raises:
        TypeError: `tx` is stateful.
        ValueError: On use: the op's numbers of inputs and outputs differ; the message names it.

    Example:
        >>> import tensorflow as tf
        >>> import gradxform as gx
        >>> clip = tf.RegisterGradient("Clip")(gx.tensorflow.gradient_function(gx.clip_value(0.1)))
        >>> @tf.function
        ... def slope(x):
        ...     with tf.compat.v1.get_default_graph().gradient_override_map({"Identity": "Clip"}):
        ...         y = tf.identity(x)
        ...     return tf.gradients(y, x)[0]
        >>> slope(tf.constant([3.0])).numpy().tolist()
        [0.10000000149011612]

    References:
        `tf.RegisterGradient`.
    """
    tx = as_transformation("tensorflow.gradient_function", tx)
    if tx.stateful:
        advice = "a backward pass cannot keep a state; transform the gradients after it"
        raise TypeError(f"tensorflow.gradient_function: tx must be stateless, got {tx!r}: {advice}")

    @tf.autograph.experimental.do_not_convert
    def gradient(op: Any, *upstream: Any) -> Any:
        if len(op.inputs) != len(upstream):
            wrong = f"has {len(op.inputs)} inputs and {len(upstream)} outputs, but must have one input per output"
            raise ValueError(f"tensorflow.gradient_function: the op {op.name!r} of type {op.type} {wrong}")
        paths = [op.name] if len(upstream) == 1 else [f"{op.name}/{i}" for i in range(len(upstream))]
        view = Tree.of(backend, upstream, list(upstream), lambda: paths)
        results = list(upstream) if not view.leaves else tx.rule(view, None, Context(None, {}))[0].results()
        return results[0] if len(results) == 1 else results

    return gradient


@contextlib.contextmanager
def override_gradients(overrides: Mapping[str, GradientTransformation]) -> Iterator[None]:
    """Transform the gradients of all ops of some types that are created in this context.

    It registers a `gradient_function` for each type and sets the graph's ``gradient_override_map``. Values do not
    change. It works in TF1 graphs and in `tf.function`, for `tf.gradients` or a `tf.GradientTape` around the function
    call. TensorFlow ignores the map in eager execution, for a tape in the same function, and in branches, loops and
    functions built in the context; this context raises an error there.

    Args:
        overrides: Mapping from op type, such as "Identity", to a stateless transform.

    Yields:
        None.

    Raises:
        RuntimeError: Execution is eager, a tape is open in the function, or a branch, loop or other function built in
            the context has an op of the type. Open the context inside that function instead.
        TypeError: A transform is stateful, or an op type is not a string.
        ValueError: An op type does not exist.

    Warns:
        UserWarning: The context creates no op of a type.

    Example:
        >>> import tensorflow as tf
        >>> import gradxform as gx
        >>> @tf.function
        ... def slope(x):
        ...     with gx.tensorflow.override_gradients({"Identity": gx.clip_value(0.1)}):
        ...         y = tf.identity(x)
        ...     return tf.gradients(y, x)[0]
        >>> slope(tf.constant([3.0])).numpy().tolist()
        [0.10000000149011612]

    References:
        `tf.Graph.gradient_override_map`.
    """
    if tf.executing_eagerly():
        advice = "use gx.on_backward(tx)(x), or move the context and its ops into a tf.function"
        raise RuntimeError(f"{_CALLED}: eager execution ignores gradient overrides; {advice}")
    names = {}
    for kind, tx in overrides.items():
        if not isinstance(kind, str):
            raise TypeError(f"{_CALLED}: the type of an op must be a str, got {kind!r}")
        if not private.has_op(kind):
            raise ValueError(f"{_CALLED}: TensorFlow has no op of type {kind!r}; write a type such as 'Identity'")
        names[kind] = _Name(_registered(as_transformation(_CALLED, tx)))
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with graph.gradient_override_map(names):
        yield
    made = graph.get_operations()[before:]
    if private.may_record() and any(op.type in names and private.is_recorded(op.inputs) for op in made):
        _refuse()
    _check_functions(graph, made, names)
    for kind in set(names).difference(op.type for op in made):
        warnings.warn(f"{_CALLED}: no op of type {kind!r} was made in the context", stacklevel=3)


@functools.cache
def _registered(tx: GradientTransformation) -> str:
    """Name under which a transform's gradient function is registered."""
    name = f"gradxform_{next(_numbers)}"
    tf.RegisterGradient(name)(gradient_function(tx))
    return name


def _check_functions(graph: Any, made: list[Any], names: Mapping[str, str]) -> None:
    """Refuse ops of the types in functions built in the context, which do not inherit the map."""
    waiting = [(op.name, name) for op in made for name in _functions(op.node_def)]
    library = {f.signature.name: f.node_def for f in graph.as_graph_def().library.function} if waiting else {}
    for whose, name in waiting:  # which the loop extends
        for node in library.pop(name, ()):
            if node.op in names and private.GRADIENT_OVERRIDE not in node.attr:
                which = f"the branch, loop or function {whose!r} has the op {node.name!r} of type {node.op!r}, but"
                advice = "does not inherit gradient overrides; open the context inside it, or use gx.on_backward(tx)(x)"
                raise RuntimeError(f"{_CALLED}: {which} {advice}")
            waiting += [(whose, inner) for inner in _functions(node)]


def _functions(node: Any) -> list[str]:
    """Names of the functions that a node calls."""
    values = node.attr.values()
    return [f.name for value in values for f in (*value.list.func, *([value.func] if value.HasField("func") else []))]


class _Name(str):
    """A registered name that detects a tape opened later, when TensorFlow writes the name into an op."""

    __slots__ = ("recording",)

    def __init__(self, _: str) -> None:
        self.recording = private.may_record()

    def encode(self, *args: Any) -> bytes:
        if private.may_record() and not self.recording:
            _refuse()
        return super().encode(*args)


def _refuse() -> None:
    advice = "use gx.on_backward(tx)(x) or tf.gradients, or open the tape around the function call"
    raise RuntimeError(f"{_CALLED}: a tf.GradientTape in the same function ignores gradient overrides; {advice}")
