"""The primitives on TensorFlow tensors: eager, in tf.function, under XLA and in TF1 graphs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradxform._pairs import Pair, evaluate
from gradxform_tensorflow import _eager, _norms
from gradxform_tensorflow._scalars import Vectors

name: str = "tensorflow"
types: tuple[type, ...] = (tf.Tensor, tf.IndexedSlices, tf.Variable)

_LEAST = 2.0**-126
_MOST = 2.0**127


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
            lambda: _eager.cond(
                ordinary, lambda: _times(leaves, factors, False), lambda: _times(leaves, factors, True)
            ),
        )
    )


def _times(leaves: list[Any], factors: Any, wide: bool) -> list[Any]:
    """Each leaf times its factor in float32 at least, or in float64, rounded once; complex leaves by their parts."""
    if factors.shape.rank == 0:
        return [_product(leaf, factors, wide) for leaf in leaves]
    each = zip(leaves, tf.unstack(factors, num=len(leaves)), strict=True)
    return [
        _eager.select(tf.equal(factor, 1.0), leaf, functools.partial(_product, leaf, factor, wide))
        for leaf, factor in each
    ]


def _product(leaf: Any, factor: Any, wide: bool) -> Any:
    if leaf.dtype.is_complex:
        return tf.complex(*(_product(part, factor, wide) for part in (tf.math.real(leaf), tf.math.imag(leaf))))
    dtype_ = tf.float64 if wide else _accumulation(leaf.dtype)
    return _cast(_cast(leaf, dtype_) * _cast(factor, dtype_), leaf.dtype)


def _cast(x: Any, dtype_: Any) -> Any:
    return x if x.dtype == dtype_ else tf.cast(x, dtype_)


def _accumulation(dtype_: Any) -> Any:
    return tf.float32 if dtype_ in (tf.float16, tf.bfloat16) else dtype_


def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    return tf.where(tf.equal(factor, 1.0), leaf, _product(leaf, factor, True))


def divide(function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
    """Each leaf divided by its divisor, in its own dtype."""
    return [_quotient(leaf, by) for leaf, by in zip(leaves, divisors, strict=True)]


def _quotient(leaf: Any, divisor: Any) -> Any:
    if leaf.dtype.is_complex:
        return tf.complex(*(_quotient(part, divisor) for part in (tf.math.real(leaf), tf.math.imag(leaf))))
    return leaf / _cast(divisor, leaf.dtype)


def peer_norm(function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
    """The norm as TensorFlow's and Keras's own functions compute it."""
    return _norms.own(function, leaves, axes)


def clip(leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
    """min(max(factor * leaf, low), high)."""
    scaled = list(leaves)
    if factors is not None:
        wide = [_cast(leaf, _accumulation(leaf.dtype)) for leaf in leaves]
        scaled = multiply(wide, factors, inplace)
    kinds = {(old.dtype, new.dtype) for old, new in zip(leaves, scaled, strict=True)}
    bounds = {kind: [_bound(bound, *kind) for bound in (low, high)] for kind in kinds}
    return [_between(new, *bounds[old.dtype, new.dtype]) for old, new in zip(leaves, scaled, strict=True)]


def _between(leaf: Any, low: Any, high: Any) -> Any:
    if low is not None and high is not None and low.shape.rank == 0 == high.shape.rank:
        return tf.clip_by_value(leaf, low, high)
    if low is not None:
        leaf = tf.maximum(leaf, low)
    return leaf if high is None else tf.minimum(leaf, high)


def _bound(bound: Any, of: Any, to: Any) -> Any:
    """A bound in a leaf's dtype and then in that of its values now."""
    if bound is None:
        return None
    given = tf.is_tensor(bound) or isinstance(bound, tf.Variable)
    return _cast(tf.cast(bound if given else tf.constant(bound, tf.float64), of), to)


def cast(leaf: Any, like: Any) -> Any:
    """A leaf rounded to the dtype of another."""
    return tf.cast(leaf, like.dtype)


def zeros(leaves: Sequence[Any]) -> list[Any]:
    """Fresh zeros."""
    return [tf.zeros_like(leaf) for leaf in leaves]


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula in float64 tensors."""
    return evaluate(formula, Vectors, [_operand(operand) for operand in operands], static)


def _operand(operand: Any) -> Any:
    if isinstance(operand, Pair):
        return operand
    if tf.is_tensor(operand) or isinstance(operand, tf.Variable):
        wide = tf.cast(operand, tf.float64)
        # A limit that is a TF1 placeholder without a shape; norms are float64 already.
        return tf.ensure_shape(wide, []) if wide.shape.rank is None and operand.dtype != tf.float64 else wide
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
