"""Products and sums of products, in float32 or float64, in as few ops as they can be had.

A factor that float32 does not hold is applied in two steps. On CPUs a branch skips the second one, which most steps of
a run do not need: it would be another pass over memory.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradxform.backend.host import namespace as host
from gradxform.numerics.elementwise import Combination, weights_of
from gradxform.numerics.rescale import LEAST, MOST, in_steps, known_steps
from gradxform_tensorflow import _eager, _graph, _packing, _private
from gradxform_tensorflow._namespace import Namespace, cast_to, is_read

_FAR = 2.0**30
"""Factors beyond this can take a product of several out of float32's range."""


class _Factor(NamedTuple):
    """A float64 tensor, and the two steps in float32 that it takes."""

    whole: Any
    first: Any
    second: Any
    """One where the first step is enough."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; unchanged bit by bit if the factor is one. Small leaves are multiplied together."""
    if is_read(factors):
        return _multiply_known(leaves, np.broadcast_to(np.asarray(factors, np.float64), (len(leaves),)).tolist())
    far, vectors = _steps(factors)
    out, rest, alone = list(leaves), set(range(len(leaves))), factors.shape.rank == 0
    given, by = [], []
    groups = _packing.small(leaves, range(len(leaves))) if not tf.executing_eagerly() else []
    for places in groups:
        some = [leaves[i] for i in places]
        given.append(_packing.pack(some))
        index = np.repeat(places, [leaf.shape.num_elements() for leaf in some])
        by.append(vectors if alone else _Factor(*(tf.gather(vector, index) for vector in vectors)))
        rest.difference_update(places)
    each = [vectors] * len(leaves) if alone else _each(vectors, len(leaves))
    given, by = [*given, *(leaves[i] for i in rest)], [*by, *(each[i] for i in rest)]
    made = [_unless_one(*one) for one in zip(given, by, _rounded(given, by, far), strict=True)]
    for places, whole in zip(groups, made, strict=False):
        for i, leaf in zip(places, _packing.unpack(whole, [leaves[i] for i in places]), strict=True):
            out[i] = leaf
    for i, new in zip(rest, made[len(groups) :], strict=True):
        out[i] = new
    return out


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    far, own = _steps(factor)
    return _unless_one(leaf, own, _rounded([leaf], [own], far)[0])


def _unless_one(leaf: Any, factor: _Factor, new: Any) -> Any:
    """Select the leaf where the factor is one: a product flushes small numbers. The derivative is the product's."""
    one = tf.equal(factor.whole, 1.0)
    if tf.executing_eagerly() or _private.is_recorded([factor.whole]):  # by a tape, which ignores a graph's overrides
        return _selected_on_tape(one, leaf, new)
    with tf.compat.v1.get_default_graph().gradient_override_map({"Select": _GRADIENT, "SelectV2": _GRADIENT}):
        return _selected(one, leaf, new)


_GRADIENT = "GradxformProduct"


@tf.RegisterGradient(_GRADIENT)
def _product_gradient(_: Any, upstream: Any) -> tuple[None, None, Any]:
    return None, None, upstream


def _selected(one: Any, leaf: Any, new: Any) -> Any:
    if one.shape.rank == 0:
        return tf.raw_ops.Select(condition=one, x=leaf, y=new)  # copies neither
    return tf.where(one, leaf, new)


@tf.custom_gradient
def _selected_on_tape(one: Any, leaf: Any, new: Any) -> Any:
    return _selected(one, leaf, new), lambda upstream: _product_gradient(None, upstream)


def combined(
    formula: Combination, columns: Sequence[Sequence[Any]], numbers: Sequence[Any], factors: Sequence[Any] | None
) -> list[Any]:
    """Sums of products of each leaf and the arrays beside it."""
    rows = list(zip(*columns, strict=True))
    given = [None] * len(rows) if factors is None else factors
    known = {id(factor): _weights(formula, numbers, factor) for factor in {id(f): f for f in given}.values()}
    weights = [weight for factor in given for weight in known[id(factor)]]
    tensors = {id(weight): weight for weight in weights if not is_read(weight)}
    far, by = None, {}
    if tensors:
        far, vectors = _steps(tf.stack(list(tensors.values())))
        by = dict(zip(tensors, _each(vectors, len(tensors)), strict=True))
    parts = [_parts(part) for row in rows for part in row]
    terms = iter(_products(parts, [by.get(id(weight), weight) for weight in weights], far))
    found = [[next(terms) for _ in row] for row in rows]
    return [_joined([_sum(each) for each in zip(*row, strict=True)]) for row in found]


def _sum(terms: Sequence[Any]) -> Any:
    """A sum that TensorFlow's optimizer does not merge with the next one, whose terms it would reorder."""
    found = functools.reduce(operator.add, terms)
    return found if tf.executing_eagerly() else tf.ensure_shape(found, found.shape)


def _weights(formula: Combination, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """The weights of a combination; Python floats, if all numbers are read."""
    read = all(is_read(number) for number in numbers) and (factor is None or is_read(factor))
    found = weights_of(formula, host.Namespace if read else Namespace, numbers, factor)
    return [float(weight) if is_read(weight) else weight for weight in found]


def _multiply_known(leaves: Sequence[Any], factors: Sequence[float]) -> list[Any]:
    """Each leaf times a number; small leaves with the same factor together."""
    out = list(leaves)
    alike: dict[tuple[float, float], list[int]] = {}
    for i, factor in enumerate(factors):
        if factor != 1:
            alike.setdefault((factor, math.copysign(1.0, factor)), []).append(i)  # tells 0.0 from -0.0
    for (factor, _), places in alike.items():
        rest = set(places)
        for group in _packing.small(leaves, places):
            some = [leaves[i] for i in group]
            (whole,) = _rounded([_packing.pack(some)], [factor])
            for i, leaf in zip(group, _packing.unpack(whole, some), strict=True):
                out[i] = leaf
            rest.difference_update(group)
        for i, new in zip(rest, _rounded([leaves[i] for i in rest], [factor] * len(rest)), strict=True):
            out[i] = new
    return out


def _rounded(leaves: Sequence[Any], factors: Sequence[Any], far: Any = None) -> list[Any]:
    """Products in the leaves' dtypes."""
    made = _products(list(map(_parts, leaves)), factors, far)
    return [
        _joined([cast_to(part, leaf.dtype.real_dtype) for part in parts])
        for leaf, parts in zip(leaves, made, strict=True)
    ]


def _parts(leaf: Any) -> list[Any]:
    """A leaf's real parts, in the dtype of its sums."""
    parts = [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]
    return [part if part.dtype == tf.float64 else cast_to(part, tf.float32) for part in parts]


def _joined(parts: Sequence[Any]) -> Any:
    return tf.complex(*parts) if len(parts) > 1 else parts[0]


def _products(rows: Sequence[Sequence[Any]], factors: Sequence[Any], far: Any) -> list[list[Any]]:
    """Multiply each row of real arrays by its factor, a Python number or a `_Factor`.

    `far`: whether one of them needs its second step.
    """
    numbers = {str(factor): _by_number(factor) for factor in factors if not isinstance(factor, _Factor)}
    found = [
        [_by_tensor(part, factor) if isinstance(factor, _Factor) else numbers[str(factor)](part) for part in row]
        for row, factor in zip(rows, factors, strict=True)
    ]
    unfinished = [
        i for i, factor in enumerate(factors) if isinstance(factor, _Factor) and rows[i][0].dtype == tf.float32
    ]
    if not unfinished:
        return found

    def finished(guarded: Callable[[Any], Any]) -> list[list[Any]]:
        return [[tf.raw_ops.Mul(x=guarded(part), y=factors[i].second) for part in found[i]] for i in unfinished]

    if _eager.has_only_cpus() and not _graph.is_xla():
        rest = _eager.cond(far, lambda: finished(lambda part: part), lambda: [found[i] for i in unfinished])
    else:
        rest = finished(Namespace.no_reassociation)
    for i, row in zip(unfinished, rest, strict=True):
        found[i] = row
    return found


def _by_tensor(part: Any, factor: _Factor) -> Any:
    return part * (factor.whole if part.dtype == tf.float64 else factor.first)


def _steps(factors: Any) -> tuple[Any, _Factor]:
    """Whether any factor needs two steps, and the steps."""
    size, where = tf.abs(factors), Namespace.where
    far = ((size < LEAST) & (size > 0.0)) | ((size > MOST) & (size < math.inf))
    near, rest = in_steps(Namespace, factors)
    first, second = where(far, near, factors), where(far, rest, 1.0)
    return tf.reduce_any(far), _Factor(factors, tf.cast(first, tf.float32), tf.cast(second, tf.float32))


def _each(vectors: _Factor, count: int) -> list[_Factor]:
    return [_Factor(*one) for one in zip(*(tf.unstack(vector, count) for vector in vectors), strict=True)]


def _by_number(factor: float) -> Callable[[Any], Any]:
    """Multiply by a number; cached as one tensor per dtype."""
    numbers: dict[Any, list[Any]] = {}
    far = not 1 / _FAR < abs(factor) < _FAR

    def times(part: Any) -> Any:
        if factor == 1.0:
            return part
        if part.dtype not in numbers:
            steps = known_steps(factor) if part.dtype == tf.float32 else [factor]
            # TensorFlow caches tensors of Python numbers, and confuses 0.0 with -0.0.
            numbers[part.dtype] = [tf.constant(np.array(step, part.dtype.as_numpy_dtype)) for step in steps]
        for step in numbers[part.dtype]:
            part = tf.raw_ops.Mul(x=part, y=step)
            part = Namespace.no_reassociation(part) if far else part
        return part

    return times
