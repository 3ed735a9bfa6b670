"""Products and sums of products, in float32 or float64, in as few ops as they can be had.

A factor that float32 does not hold is applied in two steps. On CPUs a branch skips the second one, which most steps of
a run do not need: it would be another pass over memory.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.backend.host import namespace as host
from gradxform.numerics.elementwise import Combination, weights_of
from gradxform.numerics.rescale import LEAST, MOST, in_steps, known_steps
from gradxform_tensorflow import _eager, _graph, _packing
from gradxform_tensorflow._namespace import Namespace, cast_to, is_read

_FAR = 2.0**30
"""Factors beyond this can take a product of several out of float32's range."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; unchanged bit by bit if the factor is one."""
    if is_read(factors):
        return _multiply_known(leaves, np.broadcast_to(np.asarray(factors, np.float64), (len(leaves),)).tolist())
    each = [factors] * len(leaves) if factors.shape.rank == 0 else tf.unstack(factors, len(leaves))
    same = tf.equal(factors, 1.0)
    untouched = [same] * len(leaves) if factors.shape.rank == 0 else tf.unstack(same, len(leaves))
    return [
        tf.raw_ops.Select(condition=as_it_is, x=leaf, y=new)
        for as_it_is, leaf, new in zip(untouched, leaves, _rounded(leaves, each), strict=True)
    ]


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    factor = tf.convert_to_tensor(factor, tf.float64)
    return tf.where(tf.equal(factor, 1.0), leaf, _rounded([leaf], [factor])[0])


def combined(
    formula: Combination, columns: Sequence[Sequence[Any]], numbers: Sequence[Any], factors: Sequence[Any] | None
) -> list[Any]:
    """Sums of products of each leaf and the arrays beside it."""
    rows, weights = list(zip(*columns, strict=True)), []
    if factors is None:
        weights = [_weights(formula, numbers, None)] * len(rows)
    else:
        known = {id(factor): _weights(formula, numbers, factor) for factor in {id(f): f for f in factors}.values()}
        weights = [known[id(factor)] for factor in factors]
    terms = iter(_products([_parts(part) for row in rows for part in row], [w for own in weights for w in own]))
    found = [[next(terms) for _ in row] for row in rows]
    return [_joined([functools.reduce(operator.add, each) for each in zip(*row, strict=True)]) for row in found]


def _weights(formula: Combination, numbers: Sequence[Any], factor: Any) -> list[Any]:
    """The weights of a combination; Python floats, if all numbers are read."""
    read = all(is_read(number) for number in numbers) and (factor is None or is_read(factor))
    found = weights_of(formula, host.Namespace if read else Namespace, numbers, factor)
    return [float(weight) if is_read(weight) else weight for weight in found]


def _multiply_known(leaves: Sequence[Any], factors: Sequence[float]) -> list[Any]:
    """Each leaf times a number; in eager code small leaves with the same factor together."""
    out = list(leaves)
    alike: dict[tuple[float, float], list[int]] = {}
    for i, factor in enumerate(factors):
        if factor != 1:
            alike.setdefault((factor, math.copysign(1.0, factor)), []).append(i)  # tells 0.0 from -0.0
    for (factor, _), places in alike.items():
        rest = set(places)
        for group in _packing.small(leaves, places) if _eager.readable(leaves) else ():
            some = [leaves[i] for i in group]
            (whole,) = _rounded([_packing.pack(some)], [factor])
            for i, leaf in zip(group, _packing.unpack(whole, some), strict=True):
                out[i] = leaf
            rest.difference_update(group)
        for i, new in zip(rest, _rounded([leaves[i] for i in rest], [factor] * len(rest)), strict=True):
            out[i] = new
    return out


def _rounded(leaves: Sequence[Any], factors: Sequence[Any]) -> list[Any]:
    """Products in the leaves' dtypes."""
    made = _products(list(map(_parts, leaves)), factors)
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


def _products(rows: Sequence[Sequence[Any]], factors: Sequence[Any]) -> list[list[Any]]:
    """Multiply each row of real arrays by its factor, a Python number or a float64 tensor."""
    given = {id(factor): factor for factor in factors if not is_read(factor)}
    far, seconds, by = None, {}, {id(factor): _by_number(factor) for factor in factors if is_read(factor)}
    if given:
        whole = next(iter(given.values())) if len(given) == 1 else tf.stack(list(given.values()))
        far, *steps = _steps(whole)
        first, second = ([step] if len(given) == 1 else tf.unstack(step, len(given)) for step in steps)
        seconds = dict(zip(given, second, strict=True))
        by |= {key: _by_tensors(*pair) for key, *pair in zip(given, given.values(), first, strict=True)}
    found = [[by[id(factor)](part) for part in row] for row, factor in zip(rows, factors, strict=True)]
    open_ = [i for i, factor in enumerate(factors) if id(factor) in seconds and rows[i][0].dtype != tf.float64]
    if not open_:
        return found

    def ends(guarded: Callable[[Any], Any]) -> list[list[Any]]:
        return [[tf.raw_ops.Mul(x=guarded(part), y=seconds[id(factors[i])]) for part in found[i]] for i in open_]

    if _eager.has_only_cpus() and not _graph.is_xla():
        rest = _eager.cond(far, lambda: ends(lambda part: part), lambda: [found[i] for i in open_])
    else:
        rest = ends(Namespace.no_reassociation)
    for i, row in zip(open_, rest, strict=True):
        found[i] = row
    return found


def _steps(factors: Any) -> tuple[Any, Any, Any]:
    """Whether any factor needs two steps, and the steps; the second one is one where it is not needed."""
    size, where = tf.abs(factors), Namespace.where
    far = ((size < LEAST) & (size > 0.0)) | ((size > MOST) & (size < math.inf))
    near, rest = in_steps(Namespace, factors)
    first, second = where(far, near, factors), where(far, rest, 1.0)
    return tf.reduce_any(far), tf.cast(first, tf.float32), tf.cast(second, tf.float32)


def _by_tensors(factor: Any, first: Any) -> Callable[[Any], Any]:
    def times(part: Any) -> Any:
        return part * factor if part.dtype == tf.float64 else part * first

    return times


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
