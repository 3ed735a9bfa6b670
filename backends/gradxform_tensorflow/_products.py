"""Products and sums of products, in float32 or float64, in as few ops as they can be had.

A factor that float32 does not hold is applied in two steps. On CPUs a branch skips the second one, which most steps of
a run do not need: it would be another pass over memory. Small leaves are packed: an op costs more than their few
numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradxform.backend.host import namespace as host
from gradxform.numerics.elementwise import Combination, weights_of
from gradxform.numerics.rescale import LEAST, MOST, in_steps, known_steps
from gradxform_tensorflow import _running
from gradxform_tensorflow._namespace import Namespace, cast_to, is_read

_FAR = 2.0**30
"""Factors beyond this can take a product of several out of float32's range."""
_SMALL, _FEW = 1 << 13, 4
"""The most elements of a small tensor, and the least number of tensors to pack."""
_PART = 1 << 20
"""The most elements in a stack."""
_CHEAP, _MANY = 1 << 12, 16
"""Graphs on CPUs multiply small matrices as fast in stacks of many, and are built ten times faster; others slower."""


class _Factor(NamedTuple):
    """A float64 tensor, and the two steps in float32 that it takes."""

    whole: Any
    first: Any
    second: Any
    """One where the first step is enough."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; unchanged bit by bit if the factor is one. Small leaves are multiplied together."""
    out, places, far = list(leaves), range(len(leaves)), None
    each: list[Any]
    if is_read(factors):
        each = np.broadcast_to(np.asarray(factors, np.float64), (len(leaves),)).tolist()
        given = [i for i in places if each[i] != 1.0]
        groups = packs(leaves, {i: str(each[i]) for i in given})  # tells 0.0 from -0.0
        by = [each[group[0]] for group in groups]
    else:
        far, vectors = _steps(factors)
        alone = factors.shape.rank == 0
        each = [vectors] * len(leaves) if alone else _each(vectors, len(leaves))
        groups = packs(leaves, dict.fromkeys(places))
        by = [each[group[0]] if alone or len(group) == 1 else _repeated(vectors, leaves, group) for group in groups]
    whole = [pack([leaves[i] for i in group]) for group in groups]
    for group, made in zip(groups, _scaled(whole, by, far), strict=True):
        for i, new in zip(group, _unpacked(made, [leaves[i] for i in group]), strict=True):
            out[i] = new
    return out


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    far, own = _steps(factor)
    return _scaled([leaf], [own], far)[0]


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
    terms = iter(_products([x for row in rows for x in row], [by.get(id(weight), weight) for weight in weights], far))
    return [_joined([_sum(each) for each in zip(*[next(terms) for _ in row], strict=True)]) for row in rows]


def _sum(terms: Sequence[Any]) -> Any:
    """A sum that TensorFlow's optimizer does not merge with the next one, whose terms it would reorder."""
    found = functools.reduce(operator.add, terms)
    return found if tf.executing_eagerly() else tf.ensure_shape(found, found.shape)


def _weights(formula: Combination, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """The weights of a combination; Python floats, if all numbers are read."""
    read = all(is_read(number) for number in numbers) and (factor is None or is_read(factor))
    found = weights_of(formula, host.NUMPY if read else Namespace, numbers, factor)
    return [float(weight) if is_read(weight) else weight for weight in found]


# --- factors ---------------------------------------------------------------------------------------------------------


def _scaled(leaves: Sequence[Any], by: Sequence[Any], far: Any) -> list[Any]:
    """Products in the leaves' dtypes; the leaf itself where a factor is one."""
    out = []
    for leaf, factor, parts in zip(leaves, by, _products(leaves, by, far), strict=True):
        new = _joined([cast_to(part, leaf.dtype.real_dtype) for part in parts])
        out.append(_unless(tf.equal(factor.whole, 1.0), leaf, new) if isinstance(factor, _Factor) else new)
    return out


@tf.custom_gradient
def _unless(one: Any, leaf: Any, new: Any) -> Any:
    """Select the leaf where the factor is one: a product flushes small numbers. The derivative is the product's."""
    return Namespace.where(one, leaf, new), lambda upstream: (None, None, upstream)


def _products(leaves: Sequence[Any], factors: Sequence[Any], far: Any) -> list[list[Any]]:
    """Multiply each leaf by its factor, a Python number or a `_Factor`; return its parts, in the dtype of its sums.

    `far`: whether one of them needs its second step.
    """

    @functools.cache
    def constant(step: str, dtype: Any) -> Any:  # TensorFlow's own cache confuses 0.0 with -0.0
        return tf.constant(np.array(float(step), dtype.as_numpy_dtype))

    def times(part: Any, factor: Any) -> Any:
        if isinstance(factor, _Factor):
            return part * (factor.whole if part.dtype == tf.float64 else factor.first)
        for step in [factor] if part.dtype == tf.float64 else known_steps(factor):
            if step != 1.0:
                part = tf.raw_ops.Mul(x=part, y=constant(str(step), part.dtype))
                part = part if 1 / _FAR < abs(factor) < _FAR else Namespace.no_reassociation(part)
        return part

    found = [[times(part, by) for part in _parts(leaf)] for leaf, by in zip(leaves, factors, strict=True)]
    places = [i for i, by in enumerate(factors) if isinstance(by, _Factor) and found[i][0].dtype == tf.float32]

    def finished(guarded: Callable[[Any], Any]) -> list[list[Any]]:
        return [[tf.raw_ops.Mul(x=guarded(part), y=factors[i].second) for part in found[i]] for i in places]

    if places and _running.has_only_cpus() and not _running.is_xla():
        rest = _running.cond(far, lambda: finished(lambda part: part), lambda: [found[i] for i in places])
    else:
        rest = finished(Namespace.no_reassociation)
    for i, row in zip(places, rest, strict=True):
        found[i] = row
    return found


def _parts(leaf: Any) -> list[Any]:
    """A leaf's real parts, in the dtype of its sums."""
    parts = [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]
    return [part if part.dtype == tf.float64 else cast_to(part, tf.float32) for part in parts]


def _joined(parts: Sequence[Any]) -> Any:
    return tf.complex(*parts) if len(parts) > 1 else parts[0]


def _steps(factors: Any) -> tuple[Any, _Factor]:
    """Whether any factor needs two steps, and the steps."""
    size, where = tf.abs(factors), Namespace.where
    far = ((size < LEAST) & (size > 0.0)) | ((size > MOST) & (size < math.inf))
    near, rest = in_steps(Namespace, factors)
    first, second = where(far, near, factors), where(far, rest, 1.0)
    return tf.reduce_any(far), _Factor(factors, tf.cast(first, tf.float32), tf.cast(second, tf.float32))


def _each(vectors: _Factor, count: int) -> list[_Factor]:
    return [_Factor(*one) for one in zip(*(tf.unstack(vector, count) for vector in vectors), strict=True)]


def _repeated(vectors: _Factor, leaves: Sequence[Any], group: Sequence[int]) -> _Factor:
    """The factor of each element of packed leaves."""
    index = np.repeat(group, [leaves[i].shape.num_elements() for i in group])
    return _Factor(*(tf.gather(vector, index) for vector in vectors))


# --- packs -----------------------------------------------------------------------------------------------------------


def packs(leaves: Sequence[Any], keys: Mapping[int, Any]) -> list[list[int]]:
    """Group positions: small real tensors on CPUs by dtype and key, in eager mode only vectors; others by themselves.

    In eager mode, flattening is an op too.
    """
    groups: dict[Any, list[int]] = {}
    vectors, on_cpus = tf.executing_eagerly(), _running.has_only_cpus() or _running.readable(leaves)
    for i, key in keys.items():
        shape = leaves[i].shape
        count = shape.num_elements() if on_cpus and (not vectors or shape.rank == 1) else None
        is_small = count is not None and count <= _SMALL and not leaves[i].dtype.is_complex
        groups.setdefault((leaves[i].dtype, key) if is_small else i, []).append(i)
    return [own for group in groups.values() for own in ([group] if len(group) >= _FEW else [[i] for i in group])]


def pack(leaves: Sequence[Any]) -> Any:
    """Concatenate the elements of tensors; return one as it is."""
    if len(leaves) == 1:
        return leaves[0]
    flat = [leaf if leaf.shape.rank == 1 else tf.reshape(leaf, [-1]) for leaf in leaves]
    return tf.raw_ops.ConcatV2(values=flat, axis=0)


def _unpacked(whole: Any, leaves: Sequence[Any]) -> list[Any]:
    """Split a packed tensor into the original shapes."""
    if len(leaves) == 1:
        return [whole]
    sizes = [leaf.shape.num_elements() for leaf in leaves]
    parts = tf.raw_ops.SplitV(value=whole, size_splits=sizes, axis=0, num_split=len(leaves))
    return [
        part if leaf.shape.rank == 1 else tf.reshape(part, leaf.shape) for part, leaf in zip(parts, leaves, strict=True)
    ]


def alike(leaves: Sequence[Any], keys: Sequence[Any], saves_ops: bool) -> list[list[int]]:
    """Group the positions of tensors with the same shape, dtype, device and key, to stack them.

    Their shapes are known. If `saves_ops`, an op costs more than copies of a few tensors; otherwise only many small
    tensors are grouped.
    """
    most, least = (_PART, 2) if saves_ops else (_CHEAP, _MANY)
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    for i, (leaf, key) in enumerate(zip(leaves, keys, strict=True)):
        count = leaf.shape.num_elements()
        if count > most:
            found.append([i])
            continue
        kind = tuple(leaf.shape), leaf.dtype, leaf.device, key
        places = latest.get(kind)
        if places is None or (len(places) + 1) * count > _PART:
            found.append(places := [])
            latest[kind] = places
        places.append(i)
    return [own for places in found for own in ([places] if len(places) >= least else [[i] for i in places])]
