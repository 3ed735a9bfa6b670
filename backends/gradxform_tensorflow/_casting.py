"""Numbers and tensors in the dtypes that the primitives count in."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.double_double import Pair


def is_read(value: Any) -> bool:
    """Whether a number or a vector is on the host already."""
    return isinstance(value, (int, float, np.ndarray, np.generic))


def to(x: Any, dtype_: Any) -> Any:
    """A tensor in a dtype; itself if it has it."""
    return x if x.dtype == dtype_ else tf.cast(x, dtype_)


def wide(operand: Any) -> Any:
    """A number or a tensor in float64; a pair of tensors as it is."""
    if isinstance(operand, Pair):
        return operand
    if tf.is_tensor(operand) or isinstance(operand, tf.Variable):
        found = tf.cast(operand, tf.float64)
        # A limit that is a TF1 placeholder without a shape; norms are float64 already.
        return tf.ensure_shape(found, []) if found.shape.rank is None and operand.dtype != tf.float64 else found
    return tf.constant(operand, tf.float64)
