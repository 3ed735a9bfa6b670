"""The primitives on TensorFlow tensors: eager, in tf.function, under XLA and in TF1 graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform_tensorflow import _eager, _norms
from gradxform_tensorflow._scalars import Vectors

name: str = "tensorflow"
types: tuple[type, ...] = (tf.Tensor, tf.IndexedSlices, tf.Variable)

_LEAST = 2.0**-126
_MOST = 2.0**127
_HALVES = ((2.0**-190, 2.0**-126), (2.0**-100, 2.0**-64))


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure, by tf.nest, which knows TensorFlow's own containers; None is a leaf."""
    return tf.nest.flatten(tree), tree


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree again."""
    return tf.nest.pack_sequence_as(structure, list(leaves))


def paths(tree: Any) -> list[str]:
    """One path a leaf."""
    return ["/".join(map(str, keys)) for keys in tf.__internal__.nest.yield_flat_paths(tree)]


def adopt(leaf: Any) -> Any:
    """As TensorFlow adopts NumPy arrays and Python numbers."""
    return tf.convert_to_tensor(leaf)


def dtype(leaf: Any) -> str:
    """The name of the dtype."""
    return str(leaf.dtype.name)


def shape(leaf: Any) -> tuple[int | None, ...] | None:
    """The static shape."""
    return None if leaf.shape.rank is None else tuple(leaf.shape.as_list())


def dense(leaf: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """The values of IndexedSlices, those of one index summed, and how to put values back."""
    if isinstance(leaf, tf.Variable):
        return tf.convert_to_tensor(leaf), None
    if not isinstance(leaf, tf.IndexedSlices):
        return leaf, None
    rows, place = tf.unique(leaf.indices)
    values = tf.math.unsorted_segment_sum(leaf.values, place, tf.size(rows))
    values = tf.ensure_shape(values, [None, *leaf.values.shape[1:]])
    return values, lambda new: tf.IndexedSlices(new, rows, leaf.dense_shape)


def densify(leaf: Any) -> Any:
    """The dense tensor that IndexedSlices stand for."""
    if leaf.dense_shape is None:
        raise ValueError("IndexedSlices without a dense_shape cannot be made dense, which bounds that exclude 0 need")
    return tf.math.unsorted_segment_sum(leaf.values, leaf.indices, leaf.dense_shape[0])


def norms(leaves: Sequence[Any], ord: float) -> Any:
    """The vector of the leaves' norms."""
    return _norms.norms(leaves, ord)


def norm_over(leaf: Any, axes: tuple[int, ...], ord: float) -> Any:
    """Norms over some axes, in float64, the axes kept as ones."""
    return _norms.reduced(leaf, axes, ord)


def multiply(leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
    """Each leaf times its factor; if all factors are one, the leaves as they are."""
    leaves, factors = list(leaves), _operand(factors)
    size = tf.abs(factors)
    untouched = tf.reduce_all(tf.equal(factors, 1.0))
    ordinary = tf.reduce_all(~((size < _LEAST) & (size > 0.0)) & ~(size > _MOST))
    return list(
        _eager.cond(
            untouched,
            lambda: leaves,
            lambda: _eager.cond(ordinary, lambda: _times(leaves, [factors]), lambda: _times(leaves, _halves(factors))),
        )
    )


def _halves(factors: Any) -> list[Any]:
    """Two factors in the range of float32 for one that is not, the first a power of two."""
    coarse = tf.ones_like(factors)
    for below, power in reversed(_HALVES):
        size = tf.abs(factors)
        coarse = Vectors.where(size < below, power, Vectors.where(size > 1 / below, 1 / power, coarse))
    return [coarse, factors / coarse]


def _times(leaves: list[Any], steps: list[Any]) -> list[Any]:
    """Each leaf times its factors one after the other, in float32 at least, rounded once."""
    out = list(leaves)
    wide = {leaf.dtype: _accumulation(leaf.dtype) for leaf in leaves}
    for step in steps:
        for dtype_ in set(wide.values()):
            each = _each(tf.cast(step, dtype_), len(leaves))
            for i, leaf in enumerate(leaves):
                if wide[leaf.dtype] == dtype_:
                    out[i] = (out[i] if out[i].dtype == dtype_ else tf.cast(out[i], dtype_)) * each[i]
    return [new if new.dtype == leaf.dtype else tf.cast(new, leaf.dtype) for leaf, new in zip(leaves, out, strict=True)]


def _accumulation(dtype_: Any) -> Any:
    return tf.float32 if dtype_ in (tf.float16, tf.bfloat16) else dtype_


def _each(factors: Any, count: int) -> list[Any]:
    return [factors] * count if factors.shape.rank == 0 else tf.unstack(factors, num=count)


def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    wide = tf.complex128 if leaf.dtype.is_complex else tf.float64
    product = tf.cast(tf.cast(leaf, wide) * tf.cast(factor, wide), leaf.dtype)
    return tf.where(tf.equal(factor, 1.0), leaf, product)


def clip(leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
    """min(max(factor * leaf, low), high)."""
    scaled = list(leaves) if factors is None else multiply(leaves, factors, inplace)
    return [_between(leaf, low, high) for leaf in scaled]


def _between(leaf: Any, low: Any, high: Any) -> Any:
    if low is not None and high is not None:
        return tf.clip_by_value(leaf, _bound(low, leaf), _bound(high, leaf))
    return (
        leaf
        if low is high
        else tf.maximum(leaf, _bound(low, leaf))
        if high is None
        else tf.minimum(leaf, _bound(high, leaf))
    )


def _bound(bound: Any, leaf: Any) -> Any:
    return (
        tf.cast(bound, leaf.dtype)
        if tf.is_tensor(bound) or isinstance(bound, tf.Variable)
        else tf.cast(tf.constant(bound, tf.float64), leaf.dtype)
    )


def zeros(leaves: Sequence[Any]) -> list[Any]:
    """Fresh zeros."""
    return [tf.zeros_like(leaf) for leaf in leaves]


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula in float64 tensors."""
    return formula(Vectors, *map(_operand, operands), **static)


def _operand(operand: Any) -> Any:
    if tf.is_tensor(operand) or isinstance(operand, tf.Variable):
        return tf.cast(operand, tf.float64)
    return tf.constant(operand, tf.float64)


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under tf.function."""
    return tf.function(function)


def from_numpy(array: Any) -> Any:
    """A tensor."""
    return tf.constant(array)


def to_numpy(leaf: Any) -> Any:
    """A NumPy array; dense for IndexedSlices."""
    return tf.convert_to_tensor(leaf).numpy()


def _register() -> None:
    from gradxform._backend import register

    register(sys.modules[__name__])


_register()
