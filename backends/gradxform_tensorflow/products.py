"""Products and sums of products, in float32 or float64, in as few ops as they can be had.

A factor that float32 does not hold is applied in three steps; on CPUs in float64, in a branch that most steps of a run
do not need: a step is another pass over memory. Small leaves are packed: an op costs more than their few numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.backend.host.namespace import NUMPY
from gradxform.backend.protocol import places_of
from gradxform.core.leaves import put
from gradxform.numerics import DOUBLE, dtype_name, elementwise
from gradxform.numerics.elementwise import LEAST, MOST, Factor, in_steps, weighted, weights_of
from gradxform_tensorflow import running
from gradxform_tensorflow.namespace import Namespace, is_read

_FAR = 2.0**30
"""Factors beyond this can take a product of several out of float32's range."""
_SMALL, _FEW = 1 << 13, 4
"""The most elements of a small tensor, and the least number of tensors to pack."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; unchanged bit by bit if the factor is one. Small leaves are multiplied together."""
    if is_read(factors):
        each = np.broadcast_to(np.asarray(factors, np.float64), len(leaves)).tolist()
        keys = [str(by) for by in each]  # tells 0.0 from -0.0
        known, far = {key: _known(float(key)) for key in set(keys)}, None
        groups = packs(leaves, [None if key == "1.0" else key for key in keys])
        by = [known[keys[group[0]]] for group in groups]
    else:
        groups, (far, whole) = packs(leaves, [0] * len(leaves)), _split(factors)
        one = factors.shape.rank == 0
        each = [whole] * len(leaves) if one else _unstacked(whole, len(leaves))
        by = [each[group[0]] if one or len(group) == 1 else _repeated(whole, leaves, group) for group in groups]
    rows = [[leaves[i] for i in group] for group in groups]
    made = _scaled(list(map(_joined, rows)), by, far)
    parts = itertools.chain.from_iterable(map(_separated, made, rows))
    return put(leaves, [i for group in groups for i in group], list(parts))


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    far, own = _split(factor)
    return _scaled([leaf], [own], far)[0]


def combined(columns: Sequence[Sequence[Any]], numbers: Sequence[Any], factors: Sequence[Any] | None) -> list[Any]:
    """Sums of products of each leaf and the arrays beside it; each weight is split once, for all leaves."""
    given = [None] * len(columns[0]) if factors is None else factors
    weights = {key: weights_of(Namespace, numbers, by) for key, by in {id(by): by for by in given}.items()}
    traced = {id(x): _split(x) for row in weights.values() for x in row if x is not None and not is_read(x)}
    rows = list(zip(zip(*columns, strict=True), given, strict=True))

    def added(weight: Callable[[Any], Any]) -> list[Any]:
        own = {key: list(map(weight, row)) for key, row in weights.items()}
        return [weighted(Namespace, row, own[id(by)]) for row, by in rows]

    near = functools.partial(added, lambda x: traced[id(x)][1] if id(x) in traced else _weight(x))
    far = [far for far, _ in traced.values()] if _branches() else []
    # Both in branches, as the derivative of the one not taken is zero times a number that may be infinite.
    sums = running.cond(tf.reduce_any(far), lambda: added(_weight), near) if far else near()
    # TensorFlow's optimizer would merge a sum with the next one, and reorder the terms.
    return sums if tf.executing_eagerly() else [tf.ensure_shape(new, new.shape) for new in sums]


# --- factors ---------------------------------------------------------------------------------------------------------


def _scaled(leaves: Sequence[Any], by: Sequence[Factor], far: Any) -> list[Any]:
    """Products in the leaves' dtypes; the leaf itself where a factor is one."""
    made = list(map(_times, leaves, by))
    if far is None:
        return made
    narrow = [i for i, leaf in enumerate(leaves) if dtype_name(leaf) not in DOUBLE]
    if narrow and _branches():
        some = [(leaves[i], by[i].whole) for i in narrow]
        new = running.cond(far, lambda: [_in_double(*pair) for pair in some], lambda: [made[i] for i in narrow])
        made = put(made, narrow, new)
    ones, count = {id(own): tf.equal(own.whole, 1.0) for own in by}, len(leaves)

    @tf.custom_gradient
    def unless(*given: Any) -> Any:
        """Select the leaf where the factor is one: a product flushes small numbers. The derivative is the product's."""
        rows = zip(by, given[:count], given[count:], strict=True)
        found = [Namespace.where(ones[id(own)], leaf, new) for own, leaf, new in rows]
        return found, lambda *upstream: [*[None] * count, *upstream]

    return list(unless(*leaves, *made))


def _times(leaf: Any, factor: Factor) -> Any:
    """A product; with a known factor, not merged with the next one, to one with a constant out of range."""
    if isinstance(factor.whole, np.ndarray) and factor.whole == 1.0:
        return leaf
    single = len(factor.steps) == 1 and leaf.dtype == tf.float32
    # The operator takes three times as long as the op.
    new = tf.raw_ops.Mul(x=leaf, y=factor.steps[0]) if single else elementwise.times(Namespace, leaf, factor)
    near = not isinstance(factor.whole, np.ndarray) or 1 / _FAR < abs(factor.whole) < _FAR
    return new if near else elementwise.by_parts(Namespace, Namespace.no_reassociation, new)


def _in_double(leaf: Any, factor: Any) -> Any:
    """A product in float64, rounded once."""
    raw = tf.raw_ops  # their wrappers take a sixth of the time of a trace

    def real(part: Any) -> Any:
        return raw.Cast(x=raw.Mul(x=raw.Cast(x=part, DstT=tf.float64), y=factor), DstT=part.dtype)

    return elementwise.by_parts(Namespace, real, leaf)


def _branches() -> bool:
    """Whether a branch takes less time than the steps that it skips."""
    return running.has_only_cpus() and not running.is_xla()


def _known(value: float) -> Factor:
    """A number on the host and its steps."""
    steps = [tf.constant(np.array(step, np.float32)) for step in in_steps(NUMPY, value)]
    return Factor(np.array(value), steps)  # of a Python float, TensorFlow takes 0.0 for -0.0


def _weight(number: Any) -> Factor | None:
    return number if number is None else _known(number) if is_read(number) else elementwise.split(Namespace, number)


def _split(factors: Any) -> tuple[Any, Factor]:
    """Whether float32 does not hold one of the factors; their steps, or one where a branch has them."""
    size = tf.abs(factors)
    far = ((size < LEAST) & (size > 0.0)) | ((size > MOST) & (size < math.inf))
    steps = (factors,) if _branches() else in_steps(Namespace, factors)
    return tf.reduce_any(far), Factor(factors, [tf.cast(step, tf.float32) for step in steps])


def _unstacked(vectors: Factor, count: int) -> list[Factor]:
    columns = zip(*(tf.unstack(vector, count) for vector in (vectors.whole, *vectors.steps)), strict=True)
    return [Factor(whole, steps) for whole, *steps in columns]


def _repeated(vectors: Factor, leaves: Sequence[Any], group: Sequence[int]) -> Factor:
    """The factor of each element of packed leaves."""
    index = np.repeat(group, [leaves[i].shape.num_elements() for i in group])
    return Factor(tf.gather(vectors.whole, index), [tf.gather(step, index) for step in vectors.steps])


# --- packs -----------------------------------------------------------------------------------------------------------


def packs(leaves: Sequence[Any], keys: Sequence[Any]) -> list[list[int]]:
    """Group positions: small real tensors on CPUs by dtype and key, in eager mode only vectors; others by themselves.

    In eager mode, flattening is an op too. Those with the key None are by themselves.
    """
    vectors, on_cpus = tf.executing_eagerly(), running.has_only_cpus() or running.readable(leaves)

    def kind(leaf: Any, key: Any) -> Any:
        fits = on_cpus and key is not None and (not vectors or leaf.shape.rank == 1) and not leaf.dtype.is_complex
        count = leaf.shape.num_elements() if fits else None
        return None if count is None or count > _SMALL else (leaf.dtype, key)

    kinds = places_of([i if own is None else own for i, own in enumerate(map(kind, leaves, keys))])
    return [own for group in kinds.values() for own in ([group] if len(group) >= _FEW else [[i] for i in group])]


def _joined(leaves: Sequence[Any]) -> Any:
    """The elements of several tensors in a vector; one tensor as it is."""
    if len(leaves) == 1:
        return leaves[0]
    flat = [leaf if leaf.shape.rank == 1 else tf.reshape(leaf, [-1]) for leaf in leaves]
    return tf.raw_ops.ConcatV2(values=flat, axis=0)


def _separated(whole: Any, leaves: Sequence[Any]) -> list[Any]:
    """The elements of each tensor, in its shape."""
    if len(leaves) == 1:
        return [whole]
    parts = zip(tf.split(whole, [leaf.shape.num_elements() for leaf in leaves]), leaves, strict=True)
    return [part if leaf.shape.rank == 1 else tf.reshape(part, leaf.shape) for part, leaf in parts]
