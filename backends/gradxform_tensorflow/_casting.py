"""Cast numbers and tensors to the dtypes of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.double_double import Pair


def is_read(value: Any) -> bool:
    """Whether a number or vector is already on the host."""
    return isinstance(value, (int, float, np.ndarray, np.generic))


def to(x: Any, dtype_: Any) -> Any:
    """Cast a tensor; return it if it has the dtype."""
    return x if x.dtype == dtype_ else tf.cast(x, dtype_)


def wide(operand: Any) -> Any:
    """A number or tensor in float64; a pair of tensors is returned as it is."""
    if isinstance(operand, Pair):
        return operand
    if tf.is_tensor(operand) or isinstance(operand, tf.Variable):
        found = tf.cast(operand, tf.float64)
        # A limit may be a TF1 placeholder without a shape; norms are float64 already.
        return tf.ensure_shape(found, []) if found.shape.rank is None and operand.dtype != tf.float64 else found
    return tf.constant(operand, tf.float64)
