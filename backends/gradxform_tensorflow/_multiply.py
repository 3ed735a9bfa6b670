"""Multiply leaves in at least float32, without a branch and without a float64 copy.

A factor beyond float32 is applied in steps, which TensorFlow does in place. Choosing between two tensors by one bool
is in place too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.rescale import by_parts, is_extreme
from gradxform_tensorflow import _casting as casting
from gradxform_tensorflow import _eager, _graph, _known
from gradxform_tensorflow._namespace import Namespace

_LEAST, _MOST = 2.0**-126, 2.0**127
"""Range of powers of two in float32 that TensorFlow does not flush to zero."""


def multiply(leaves: Sequence[Any], factors: Any) -> list[Any]:
    """Each leaf times its factor; unchanged bit by bit if the factor is one."""
    if casting.is_read(factors):
        return _known.multiply(leaves, factors, _times_known, packed=_eager.readable(leaves))
    factors = casting.wide(factors)
    numbers = (tf.equal(factors, 1.0), factors, *_halves(factors))
    each = ([part] * len(leaves) if part.shape.rank == 0 else tf.unstack(part, len(leaves)) for part in numbers)
    return [
        tf.raw_ops.Select(condition=untouched, x=leaf, y=_product(leaf, by, steps))
        for leaf, untouched, by, *steps in zip(leaves, *each, strict=True)
    ]


def multiply_over(leaf: Any, factor: Any) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    factor = tf.convert_to_tensor(factor, tf.float64)
    return tf.where(tf.equal(factor, 1.0), leaf, _product(leaf, factor, _halves(factor)))


def _halves(factor: Any) -> tuple[Any, Any]:
    """Split a factor that may exceed float32 into two float32 numbers; the second is one if not needed.

    Infinity stays infinite and zero stays zero: a factor below 2^-252 turns numbers above 2^126 into numbers below
    2^-124, not zero.
    """
    size, where = tf.abs(factor), Namespace.where
    coarse = where(size < _LEAST, _LEAST, where(size > _MOST, _MOST, size))
    coarse = where(factor < 0.0, -coarse, coarse)
    fine = factor / coarse
    fine = where((fine > 0.0) & (fine < _LEAST), _LEAST, where((fine > _MOST) & (fine < math.inf), _MOST, fine))
    return tf.cast(coarse, tf.float32), tf.cast(fine, tf.float32)


def _product(leaf: Any, factor: Any, steps: Sequence[Any], is_constant: bool = False) -> Any:
    """A leaf times a factor or its parts, rounded once to its dtype; complex leaves by parts."""

    def first(part: Any, number: Any) -> Any:
        # TensorFlow's optimizer, and XLA in any order, would fold two constants into one, which may be zero.
        if _graph.is_xla() or (is_constant and not tf.executing_eagerly()):
            number = tf.where(part <= part, number, float("nan"))
        return Namespace.no_reassociation(part * number)

    def scaled(part: Any) -> Any:
        if part.dtype == tf.float64:
            return first(part, factor)
        *coarse, fine = steps
        return casting.to(functools.reduce(first, coarse, casting.to(part, tf.float32)) * fine, part.dtype)

    return by_parts(Namespace, scaled, leaf)


def _times_known(factor: float) -> Callable[[Any], Any]:
    """Product with a number, in as many steps as float32 needs."""
    steps, rest = [], factor
    while is_extreme(rest) and math.isfinite(rest):
        steps.append(_LEAST if abs(rest) < 1 else _MOST)
        rest /= steps[-1]
    # TensorFlow caches tensors of Python numbers, and confuses 0.0 with -0.0.
    constants = [tf.constant(np.float32(step)) for step in (*steps, rest)]
    return functools.partial(_product, factor=tf.constant(np.array(factor)), steps=constants, is_constant=True)
