"""The primitives on TensorFlow tensors: eager, in tf.function, under XLA and in TF1 graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.backend.host import namespace as host
from gradxform.backend.host.longdouble import unpaired
from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate
from gradxform_tensorflow import _backward, _eager, _elements, _multiply, _norms
from gradxform_tensorflow import _casting as casting
from gradxform_tensorflow._scalars import Namespace

name: str = "tensorflow"
types: tuple[type, ...] = (tf.Tensor, tf.IndexedSlices, tf.Variable)
variables: tuple[type, ...] = (tf.Variable,)

Back = Callable[[Any], Any]

_LEAVES = (*types, type(None))
_LIST = object()
"""The structure of a list of leaves."""


class Nest:
    """The structure of a tree: one like it, to be compared as tf.nest compares."""

    def __init__(self, tree: Any) -> None:
        """Takes the tree."""
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        """Whether tf.nest takes both for one structure, TensorFlow's own containers for Python's."""
        if not isinstance(other, Nest):
            return NotImplemented
        try:
            tf.nest.assert_same_structure(self.tree, other.tree)
        except (TypeError, ValueError):
            return False
        return True

    __hash__ = None  # type: ignore[assignment]


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure, by tf.nest, which knows TensorFlow's own containers; None is a leaf."""
    if type(tree) is list and all(issubclass(kind, _LEAVES) for kind in {type(leaf) for leaf in tree}):
        return list(tree), _LIST
    return tf.nest.flatten(tree), Nest(tree)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree again."""
    if structure is _LIST:
        return list(leaves)
    return tf.nest.pack_sequence_as(structure.tree, list(leaves))


def paths(tree: Any) -> list[str]:
    """One path a leaf."""
    return ["/".join(map(str, keys)) for keys in tf.__internal__.nest.yield_flat_paths(tree)]


def adopt(leaf: Any) -> Any:
    """As TensorFlow adopts NumPy arrays and Python numbers."""
    return tf.convert_to_tensor(leaf)


def dtype(leaf: Any) -> str:
    """The name of the dtype."""
    return str(leaf.dtype.base_dtype.name)  # that of what a reference of TF1 refers to


def shape(leaf: Any) -> tuple[int | None, ...] | None:
    """The static shape."""
    return None if leaf.shape.rank is None else tuple(leaf.shape.as_list())


def dense(leaves: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Back | None] | None]:
    """The values of IndexedSlices, those of one index summed, and how to put values back."""
    if not any(isinstance(leaf, (tf.IndexedSlices, tf.Variable)) for leaf in leaves):
        return leaves, None
    values, backs = zip(*map(_dense, leaves), strict=True)
    return values, backs


def _dense(leaf: Any) -> tuple[Any, Back | None]:
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
    return _multiply.multiply(leaves, factors)


def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    return _multiply.multiply_over(leaf, factor)


def divide(function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
    """Each leaf divided by its divisor, in its own dtype."""
    return [_quotient(leaf, by) for leaf, by in zip(leaves, divisors, strict=True)]


def _quotient(leaf: Any, divisor: Any) -> Any:
    if leaf.dtype.is_complex:
        return tf.complex(*(_quotient(part, divisor) for part in (tf.math.real(leaf), tf.math.imag(leaf))))
    return leaf / casting.to(casting.wide(divisor), leaf.dtype)


def peer_norm(function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
    """The norm as TensorFlow's and Keras's own functions compute it."""
    return _norms.own(function, leaves, axes)


def clip(leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
    """min(max(factor * leaf, low), high)."""
    scaled = list(leaves)
    if factors is not None:
        wide = [casting.to(leaf, casting.accumulation(leaf.dtype)) for leaf in leaves]
        scaled = multiply(wide, factors, inplace)
    kinds = {(old.dtype, new.dtype) for old, new in zip(leaves, scaled, strict=True)}
    bounds = {kind: [_bound(bound, *kind) for bound in (low, high)] for kind in kinds}
    numbers = all(isinstance(bound, (int, float)) and bound == bound for bound in (low, high))
    between = _between_numbers if numbers else _between
    return [between(new, *bounds[old.dtype, new.dtype]) for old, new in zip(leaves, scaled, strict=True)]


def _between_numbers(leaf: Any, low: Any, high: Any) -> Any:
    """In one pass, which makes no NaN of a bound that is one."""
    return tf.raw_ops.ClipByValue(t=leaf, clip_value_min=low, clip_value_max=high)


def _between(leaf: Any, low: Any, high: Any) -> Any:
    if low is not None:
        leaf = tf.maximum(leaf, low)
    return leaf if high is None else tf.minimum(leaf, high)


def _bound(bound: Any, of: Any, to: Any) -> Any:
    """A bound in a leaf's dtype and then in that of its values now."""
    if bound is None:
        return None
    given = tf.is_tensor(bound) or isinstance(bound, tf.Variable)
    return casting.to(tf.cast(bound if given else tf.constant(bound, tf.float64), of), to)


def elementwise(
    formula: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None = None,
    **static: Any,
) -> list[Any]:
    """A formula of each leaf's elements, computed wide and rounded once."""
    each_factor = [None] * len(columns[0]) if factors is None else factors
    return [
        _elements.elementwise(formula, column, numbers, factor, static)
        for factor, *column in zip(each_factor, *columns, strict=True)
    ]


def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[Any]:
    """A formula of each leaf's elements, in its own dtype."""
    given = list(map(casting.wide, numbers))
    return [formula(Namespace, *column, *given) for column in zip(*columns, strict=True)]


def alongside(arrays: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
    """The arrays as they are."""
    return arrays


def sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes, in float64, the axes kept as ones."""
    return _elements.sum_over(leaf, axes, weights)


def count(leaf: Any, axes: tuple[int, ...] | None) -> Any:
    """The number of elements: a float, or a tensor where it is unknown until run time."""
    known = shape(leaf)
    if known is not None:
        sizes_known = known if axes is None else tuple(known[axis] for axis in axes)
        counts = [size for size in sizes_known if size is not None]
        if len(counts) == len(sizes_known):
            return float(np.prod(counts))
    sizes = tf.shape(leaf, tf.int64)
    return tf.cast(tf.reduce_prod(sizes if axes is None else tf.gather(sizes, axes)), tf.float64)


def copied(leaves: Sequence[Any]) -> list[Any]:
    """TensorFlow's tensors are not written to."""
    return list(leaves)


def stored(value: Any, dtype: str, beside: Any) -> Any:
    """A tensor of a dtype."""
    return casting.to(value if tf.is_tensor(value) else tf.convert_to_tensor(np.asarray(value)), tf.as_dtype(dtype))


def namespace() -> ModuleType:
    """TensorFlow's functions under NumPy's names."""
    return tf.experimental.numpy


def cast(leaf: Any, like: Any) -> Any:
    """A leaf rounded to the dtype of another."""
    return tf.cast(leaf, like.dtype)


def zeros(leaves: Sequence[Any]) -> list[Any]:
    """Fresh zeros."""
    return [tf.zeros_like(leaf) for leaf in leaves]


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula on the host where values may be read, else in float64 tensors."""
    tensors = [part for operand in operands for part in _parts(operand) if not casting.is_read(part)]
    if _eager.readable(tensors):
        return host.compute(formula, *map(_on_host, operands), **static)
    return evaluate(formula, Namespace, [casting.wide(operand) for operand in operands], static)


def _parts(operand: Any) -> tuple[Any, ...]:
    return tuple(part for part in operand if part is not None) if isinstance(operand, Pair) else (operand,)


def _on_host(operand: Any) -> Any:
    if isinstance(operand, Pair):
        return unpaired(Pair(*(None if part is None else part.numpy() for part in operand)))
    return operand if casting.is_read(operand) else operand.numpy().astype(np.float64)


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Callable[..., Any]) -> list[Any]:
    """The leaves as they are, with a backward pass of one's own."""
    return _backward.on_backward(leaves, numbers, function)


def stop_gradient(leaf: Any) -> Any:
    """The leaf as it is, to which nothing flows back."""
    return tf.stop_gradient(leaf)


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """The values; what flows back to them flows to the leaves."""
    return _backward.straight_through(values, leaves)


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under tf.function."""
    return tf.function(function)


def from_numpy(array: Any) -> Any:
    """A tensor."""
    return tf.constant(array)


def placed(array: Any, like: Any) -> Any:
    """A tensor on the device of another."""
    with tf.device(like.device):
        return tf.constant(array)


def to_numpy(leaf: Any) -> Any:
    """A NumPy array; dense for IndexedSlices."""
    return tf.convert_to_tensor(leaf).numpy()


def _register() -> None:
    from gradxform.backend.lookup import register

    register(sys.modules[__name__])


_register()
