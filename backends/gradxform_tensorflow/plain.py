"""TensorFlow backend: eager, in tf.function, under XLA and in TF1 graphs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform import GradientTransformation
from gradxform.backend.protocol import Backend, Backward
from gradxform_tensorflow import private, replicas
from gradxform_tensorflow.namespace import Namespace

Back = Callable[[Any], Any]


class Nest:
    """Structure of a tree: an equal tree, compared as tf.nest compares."""

    def __init__(self, tree: Any) -> None:
        """Store the tree."""
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        """Whether tf.nest takes both for the same structure; its own containers equal Python's."""
        if not isinstance(other, Nest):
            return NotImplemented
        try:
            tf.nest.assert_same_structure(self.tree, other.tree)
        except (TypeError, ValueError):
            return False
        return True


def _same(first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
    """Return the first tensors; a function computes what flows back to both lists."""
    count, first = len(first), list(map(tf.convert_to_tensor, first))
    kept = list(map(tf.identity, second))  # read here: inside a branch or loop, the backward pass cannot read them

    @tf.custom_gradient
    def identity(*given: Any) -> Any:
        def flowing(*upstream: Any) -> list[Any]:
            found, others = backward(list(upstream), kept)
            return [*(found or [None] * count), *(others or [None] * len(kept))]

        return list(map(tf.identity, given[:count])), flowing

    return list(identity(*first, *map(tf.convert_to_tensor, second)))


class Plain(Backend):
    """TensorFlow without its own kernels."""

    name, title = "tensorflow", "TensorFlow"
    types = (tf.Tensor, tf.IndexedSlices, tf.Variable)
    variables = (tf.Variable,)
    xp = Namespace
    module = tf.experimental.numpy
    devices = replicas

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile with tf.function."""
        return tf.function(function)

    def flatten(self, tree: Any) -> tuple[list[Any], Any]:
        """Leaves and structure, by tf.nest, which knows TensorFlow's containers; None is a leaf."""
        return tf.nest.flatten(tree), Nest(tree)

    def unflatten(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """Rebuild the tree."""
        return tf.nest.pack_sequence_as(structure.tree, list(leaves))

    def paths(self, tree: Any) -> list[str]:
        """One path per leaf."""
        return ["/".join(map(str, keys)) for keys in private.keys_of(tree)]

    def dtype(self, leaf: Any) -> str:
        """The name of the dtype."""
        return str(leaf.dtype.base_dtype.name)  # of the referenced tensor, for TF1 references

    def shape(self, leaf: Any) -> tuple[int | None, ...] | None:
        """The static shape."""
        return None if leaf.shape.rank is None else tuple(leaf.shape.as_list())

    def count(self, leaf: Any, axes: tuple[int, ...] | None) -> Any:
        """The number of elements: a float, or a tensor where it is unknown until run time."""
        shape = self.shape(leaf)
        known: Any = [None] if shape is None else shape if axes is None else [shape[axis] for axis in axes]
        if None not in known:
            return float(np.prod(known))
        is_sparse = isinstance(leaf, tf.IndexedSlices)
        if is_sparse and leaf.dense_shape is None:
            raise ValueError("IndexedSlices without a dense_shape have an unknown number of elements: set it")
        sizes = tf.cast(leaf.dense_shape, tf.int64) if is_sparse else tf.shape(leaf, tf.int64)
        return tf.cast(tf.reduce_prod(sizes if axes is None else tf.gather(sizes, axes)), tf.float64)

    def dense(self, leaves: Sequence[Any], whole: bool = False) -> tuple[Sequence[Any], Sequence[Back | None] | None]:
        """Values of IndexedSlices, duplicates summed, and a function that puts values back; or whole tensors."""
        if not any(isinstance(leaf, (tf.IndexedSlices, tf.Variable)) for leaf in leaves):
            return leaves, None
        values, backs = zip(*[_dense(leaf, whole) for leaf in leaves], strict=True)
        return values, backs

    def copied(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the leaves: TensorFlow's tensors are immutable."""
        return list(leaves)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors."""
        return super().compute(formula, *map(number, operands), **static)

    def from_numpy(self, array: Any, like: Any = None) -> Any:
        """A tensor, on the device of another."""
        with contextlib.nullcontext() if like is None else tf.device(like.device):
            return tf.constant(array)

    def to_numpy(self, leaf: Any) -> Any:
        """A NumPy array; dense for IndexedSlices."""
        return tf.convert_to_tensor(leaf).numpy()

    custom_backward = staticmethod(_same)


def number(given: Any) -> Any:
    """Accept a TF1 placeholder without a shape as a number; norms are float64 already."""
    if not tf.is_tensor(given) or given.shape.rank is not None or given.dtype == tf.float64:
        return given
    return tf.ensure_shape(tf.cast(given, tf.float64), [])


def _dense(leaf: Any, whole: bool) -> tuple[Any, Back | None]:
    if not isinstance(leaf, tf.IndexedSlices):
        return tf.convert_to_tensor(leaf), None
    if whole and leaf.dense_shape is None:
        raise ValueError("IndexedSlices without a dense_shape cannot be made dense, as this transform needs: set it")
    if whole:
        return tf.math.unsorted_segment_sum(leaf.values, leaf.indices, leaf.dense_shape[0]), None
    rows, place = tf.unique(leaf.indices)
    values = tf.math.unsorted_segment_sum(leaf.values, place, tf.size(rows))
    values = tf.ensure_shape(values, [None, *leaf.values.shape[1:]])
    return values, lambda new: tf.IndexedSlices(new, rows, leaf.dense_shape)


@dataclasses.dataclass(frozen=True)
class TracingType(tf.types.experimental.TraceType):
    """Trace type of a transform; equal transforms have equal types."""

    tx: GradientTransformation

    def is_subtype_of(self, other: Any) -> bool:
        """Whether both are equal."""
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """This type, if all are equal."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The transform itself, in the traced function."""
        return self.tx
