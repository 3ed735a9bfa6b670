"""Fast paths for TensorFlow: NumPy reads eager tensors, XLA compiles parts of graphs, bounds are one op."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from gradxform.backend.host import namespace as host
from gradxform.backend.host.kernels import Readable
from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes, Columns, Given, Row, grouped, places_of
from gradxform.numerics import elementwise, formulas, ranking
from gradxform.numerics.elementwise import Formula, weighted
from gradxform.numerics.matrices import Sides
from gradxform_tensorflow import norms, products, running
from gradxform_tensorflow.namespace import Namespace, cast_to, is_read
from gradxform_tensorflow.plain import Plain, number

_DOUBLE = (tf.float64, tf.complex128)
_LARGE = 1 << 16
"""Below so many elements, what XLA saves is less than what it takes to compile, and an op more than its work."""
_PART = 1 << 20
"""The most elements in a stack."""
_CHEAP, _MANY = 1 << 12, 16
"""Graphs on CPUs multiply small matrices as fast in stacks of many, and are built ten times faster; others slower."""


class TensorFlow(Readable, Plain):
    """TensorFlow with as few ops as possible."""

    def view(self, array: Any) -> Any:
        """The memory of a tensor."""
        return array.numpy() if isinstance(array, tf.Variable) else running.view(array)

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """Vector of the leaves' norms."""
        if running.readable(leaves):
            return host.norms(list(map(running.view, leaves)), ord)
        if ord == 2 and not any(leaf.dtype in _DOUBLE for leaf in leaves):
            return norms.norms(leaves)
        return _on_accelerator(super().norms, leaves, ord=ord)

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float, of: Any = None) -> Any:
        """Norms over some axes."""
        if running.readable(leaves):
            return host.norms_over(list(map(running.view, leaves)), axes, ord)
        return _on_accelerator(super().norms_over, leaves, axes=axes, ord=ord, of=of)

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes."""
        return _on_accelerator(super().sum_over, leaf, axes=axes, weights=weights)

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """Compute a formula of each leaf's elements; in graphs by XLA, to keep its parts out of memory."""
        if formula is formulas.same and factors is None:  # computes half precision in float32
            return [elementwise.in_single(Namespace, leaf) for leaf in columns[0]]
        numbers = list(map(number, numbers))

        if formula is weighted and running.has_only_cpus() and not running.readable(columns[0]):
            return products.combined(columns, numbers, factors)

        def kernel(columns: Any, numbers: Any, factors: Any) -> Any:
            way = _way([*itertools.chain(*columns), *numbers, *(factors or ())])
            return way.elementwise(self, formula, columns, numbers, factors, **static)

        return list(running.fused(kernel, columns, numbers, factors))

    def each(self, formula: Callable[..., Any], columns: Columns, numbers: Row, out: Given = None) -> list[Any]:
        """Apply a formula that selects; in graphs by XLA, to keep the parts of a formula out of memory.

        Numbers are conditions: they select whole arrays, which takes no pass at all.
        """

        def kernel(columns: Any, numbers: Any) -> Any:
            return Plain.each(self, formula, columns, numbers)  # TensorFlow's threads are faster than NumPy

        given = columns, list(map(number, numbers))
        return list(running.fused(kernel, *given) if _has_large(columns[0]) and not numbers else kernel(*given))

    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor; unchanged if the factor is known to be one."""
        given = factors if is_read(factors) else tf.cast(number(factors), tf.float64)
        return list(_on_accelerator(products.multiply, leaves, given))

    def multiply_over(self, leaves: Sequence[Any], axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[Any]:
        """One leaf times a float64 array that broadcasts against it."""
        (leaf,) = leaves
        return [_on_accelerator(products.multiply_over, leaf, tf.convert_to_tensor(factors, tf.float64))]

    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """min(max(factor * leaf, low), high)."""
        scaled = leaves
        if factors is not None:
            scaled = self.multiply([elementwise.in_single(Namespace, leaf) for leaf in leaves], factors, inplace)
        numbers = all(isinstance(bound, (int, float)) and bound == bound for bound in (low, high))

        @functools.cache
        def bounds(of: Any, to: Any) -> list[Any]:
            """The bounds in the leaf's dtype, and then in that of its current values."""
            given = [x if x is None else tf.cast(Namespace.float64(x), of) for x in (low, high)]
            return [x if x is None else cast_to(x, to) for x in given]

        pairs = zip(leaves, scaled, strict=True)
        return [_between(numbers, new, *bounds(old.dtype, new.dtype)) for old, new in pairs]

    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's matrices; small leaves of one shape together."""
        out, saves_ops = list(leaves), tf.executing_eagerly() or not running.has_only_cpus()
        least, large = (2, _PART) if saves_ops else (_MANY, _CHEAP)
        kinds = [(tuple(leaf.shape), leaf.dtype, leaf.device, own) for leaf, own in zip(leaves, sides, strict=True)]
        groups = grouped([leaf.shape.num_elements() for leaf in leaves], kinds, large, _PART)
        for places in [own for group in groups for own in ([group] if len(group) >= least else [[i] for i in group])]:
            some, own = [leaves[i] for i in places], sides[places[0]]
            if len(some) > 1:
                some, own = [tf.stack(some)], (tuple(a + 1 for a in own[0]), tuple(a + 1 for a in own[1]))
            (made,) = super().of_matrices(formula, some, [own], dtype, **static)
            for i, new in zip(places, tf.unstack(made) if len(places) > 1 else [made], strict=True):
                out[i] = new
        return out

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf, by counting.

        XLA would sort them, and `top_k` takes long for many elements.
        """
        if running.readable(leaves):
            return super().largest(leaves, counts)
        sizes, out = [ranking.in_order(Namespace, leaf) for leaf in leaves], list(leaves)
        for places in places_of([own.dtype for own in sizes]).values():
            find = _limits_in_eager_code if tf.executing_eagerly() else _limits
            limits = find([sizes[i] for i in places], [tf.cast(counts[i], _kind(sizes[i])) for i in places])
            for i, limit in zip(places, limits, strict=True):
                out[i] = ranking.kept(Namespace, leaves[i], sizes[i], limit)
        return out

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors."""
        return _way(operands).compute(self, formula, *operands, **static)

    def peer_norm(self, function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
        """The norm as TensorFlow's and Keras's own functions compute it."""
        return norms.own(function, leaves, axes)


def _way(operands: Iterable[Any]) -> Any:
    """The kernels for arrays whose values may be read, if those among the operands are, or the plain ones."""
    return Readable if running.readable([x for x in operands if isinstance(x, Plain.types)]) else Plain


def _has_large(leaves: Sequence[Any]) -> bool:
    return any((leaf.shape.num_elements() or 0) > _LARGE for leaf in leaves)


def _on_accelerator(kernel: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    """Run a kernel, in graphs by XLA if there is an accelerator; on the CPU XLA's sums are slower."""
    return running.fused(functools.partial(kernel, **static), *arrays, on_cpus=False)


def _between(numbers: bool, leaf: Any, low: Any, high: Any) -> Any:
    if numbers:  # one pass, which would ignore a bound that is NaN
        return tf.raw_ops.ClipByValue(t=leaf, clip_value_min=low, clip_value_max=high)
    leaf = leaf if low is None else tf.maximum(leaf, low)
    return leaf if high is None else tf.minimum(leaf, high)


def _limits(sizes: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Find the integer of a rank in each array of one dtype."""
    dtype = sizes[0].dtype
    top, one = 8 * dtype.size - 2, tf.constant(1, dtype)

    def reaching(least: Sequence[Any]) -> list[Any]:
        return [tf.reduce_sum(tf.cast(own >= low, _kind(own))) for own, low in zip(sizes, least, strict=True)]

    def step(i: Any, *found: Any) -> tuple[Any, ...]:
        bit = tf.bitwise.left_shift(one, tf.cast(top - i, dtype))
        return (i + 1, *ranking.with_bit(Namespace, bit, found, counts, reaching))

    start = (tf.constant(0), *[tf.zeros([], dtype)] * len(sizes))
    _, *found = tf.while_loop(lambda i, *_: i <= top, step, start, maximum_iterations=top + 1)
    return found


_limits_in_eager_code = tf.function(_limits, autograph=False)
"""An eager loop would read its condition from an accelerator."""


def _kind(sizes: Any) -> Any:
    """The dtype that holds the number of elements."""
    known = sizes.shape.num_elements()
    return tf.int32 if known is not None and known < 2**31 else tf.int64


backend = TensorFlow()
register(backend)
