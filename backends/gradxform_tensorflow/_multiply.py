"""Leaves times factors, in float32 at least, without a branch and without a copy in float64.

A factor that float32 may not hold is applied in two steps, which TensorFlow does in place. A choice between two tensors
by one bool is made in place too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.rescale import by_parts
from gradxform_tensorflow import _casting as casting
from gradxform_tensorflow import _eager, _graph, _packing
from gradxform_tensorflow._namespace import Namespace

_HALVES = ((2.0**-190, 2.0**-126), (2.0**-100, 2.0**-64))
"""Below the first number, a factor is applied in two steps, of which the first is this power of two."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; where that is one, the leaf's own bits."""
    if casting.is_read(factors):
        return _multiplied(leaves, np.asarray(factors, np.float64))
    factors = casting.wide(factors)
    numbers = (tf.equal(factors, 1.0), factors, *_halves(factors))
    each = ([part] * len(leaves) if part.shape.rank == 0 else tf.unstack(part, len(leaves)) for part in numbers)
    return [
        tf.raw_ops.Select(condition=untouched, x=leaf, y=_product(leaf, *by))
        for leaf, untouched, *by in zip(leaves, *each, strict=True)
    ]


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    factor = tf.convert_to_tensor(factor, tf.float64)
    return tf.where(tf.equal(factor, 1.0), leaf, _product(leaf, factor, *_halves(factor)))


def _halves(factor: Any) -> tuple[Any, Any]:
    """Two float32 numbers whose product is a factor that float32 may not hold."""
    size, coarse, where = tf.abs(factor), tf.ones_like(factor), Namespace.where
    for below, power in reversed(_HALVES):
        coarse = where(size < below, power, where(size > 1 / below, 1 / power, coarse))
    return tf.cast(coarse, tf.float32), tf.cast(factor / coarse, tf.float32)


def _product(leaf: Any, factor: Any, coarse: Any, fine: Any, is_constant: bool = False) -> Any:
    """A leaf times a factor, rounded to its dtype once; complex leaves by their parts."""

    def first(part: Any, number: Any) -> Any:
        # Else of two constants TensorFlow's optimizer makes one, which may be zero; and XLA, which sees no order in it.
        if _graph.is_xla() or (is_constant and not tf.executing_eagerly()):
            number = tf.where(part <= part, number, float("nan"))
        return Namespace.no_reassociation(part * number)

    def scaled(part: Any) -> Any:
        if part.dtype == tf.float64:
            return first(part, factor)
        single = casting.to(part, tf.float32)
        return casting.to((single if coarse is None else first(single, coarse)) * fine, part.dtype)

    return by_parts(Namespace, scaled, leaf)


def _multiplied(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor, which is known; those with the factor one as they are."""
    out, each = list(leaves), np.broadcast_to(factors, (len(leaves),)).tolist()
    alike: dict[tuple[float, float], list[int]] = {}
    for i, factor in enumerate(each):
        if factor != 1:
            alike.setdefault((factor, math.copysign(1.0, factor)), []).append(i)  # there are zeros of two signs
    for (factor, _), places in alike.items():
        by = _known(factor)
        rest = set(places)
        for group in _packing.small(leaves, places).values() if _eager.readable(leaves) else ():
            some = [leaves[i] for i in group]
            new = _packing.unpack(_product(_packing.pack(some), *by), some)
            for i, leaf in zip(group, new, strict=True):
                out[i] = leaf
            rest.difference_update(group)
        for i in rest:
            out[i] = _product(leaves[i], *by)
    return out


def _known(factor: float) -> tuple[Any, Any, Any, bool]:
    """A factor as tensors of both dtypes, the first step None where there is none; and that they are constants."""
    size, coarse = abs(factor), 1.0
    for below, power in reversed(_HALVES):
        coarse = power if size < below else 1 / power if size > 1 / below else coarse
    # Of Python numbers, TensorFlow keeps tensors, and takes zeros of two signs for one.
    first = None if coarse == 1 else tf.constant(np.float32(coarse))
    with np.errstate(over="ignore"):
        return tf.constant(np.array(factor)), first, tf.constant(np.float32(factor / coarse)), True
