"""TensorFlow's namespace for formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from gradxform.numerics.namespace import Defaults, static
from gradxform_tensorflow import private

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
"""Integers of a number of bytes."""


class Namespace(Defaults):
    """TensorFlow functions under the names that formulas use."""

    abs, any, max, sqrt, sum = static(tf.abs, tf.reduce_any, tf.reduce_max, tf.sqrt, tf.reduce_sum)
    cos, expm1, floor, log, log1p = static(tf.cos, tf.math.expm1, tf.floor, tf.math.log, tf.math.log1p)
    sign, sin, stop_gradient = static(tf.sign, tf.sin, tf.stop_gradient)
    complex, imag, real = static(tf.complex, tf.math.imag, tf.math.real)
    asarray, copy, reshape, transpose = static(tf.convert_to_tensor, tf.identity, tf.reshape, tf.transpose)
    matmul, take = static(tf.linalg.matmul, tf.gather)
    shift_left, shift_right = static(tf.bitwise.left_shift, tf.bitwise.right_shift)

    @staticmethod
    def zeros_like(x: Any) -> Any:
        """Zeros; `tf.zeros_like` makes a shape, which XLA may know less well than that of the array."""
        return tf.raw_ops.ZerosLike(x=x)

    @staticmethod
    def ones_like(x: Any) -> Any:
        """Ones."""
        return tf.raw_ops.OnesLike(x=x)

    @staticmethod
    def current_trace() -> Any:
        """The graph under construction, with TensorFlow 1's loop or branch in it; None in eager code."""
        if tf.executing_eagerly():
            return None
        graph = tf.compat.v1.get_default_graph()
        return graph, private.control_flow_of(graph)

    @staticmethod
    def float64(x: Any) -> Any:
        """A number or an array in float64."""
        if tf.is_tensor(x) or isinstance(x, tf.Variable):
            return tf.cast(x, tf.float64)
        return tf.constant(x, tf.float64)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """A tensor in a dtype."""
        return cast_to(x, tf.as_dtype(dtype))

    @staticmethod
    def sum_exactly(x: Any, axes: Any) -> Any:
        """Sum over axes, keeping them; as the last ones, since along others TensorFlow adds one by one."""
        if axes is None:
            return tf.reduce_sum(x)
        if x.shape.rank is None:
            order: Any = tf.argsort(tf.reduce_max(tf.one_hot(np.array(axes) % tf.rank(x), tf.rank(x)), 0), stable=True)
        else:
            order = sorted(range(x.shape.rank), key=lambda axis: axis in axes or axis - x.shape.rank in axes)
        last = tf.reduce_sum(tf.transpose(x, order), axis=range(-len(axes), 0), keepdims=True)
        return tf.transpose(last, tf.math.invert_permutation(order))

    @staticmethod
    def max_over(x: Any, axes: Any) -> Any:
        """Maximum over axes, keeping them; NaN if an element is NaN (XLA may drop it), zero if there are none."""
        keep = axes is not None
        lost = tf.reduce_any(tf.math.is_nan(x), axis=axes, keepdims=keep)
        largest = tf.maximum(tf.reduce_max(x, axis=axes, keepdims=keep), 0.0)
        return tf.where(lost, tf.constant(float("nan"), x.dtype), largest)

    @staticmethod
    def power_of_two(x: Any) -> Any:
        """Largest power of two up to x, from its exponent bits; one for zero and nonfinite x."""
        bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int64), tf.constant(0x7FF0000000000000, tf.int64))
        power = tf.bitcast(bits, tf.float64)
        return tf.where(tf.math.is_finite(x) & (power > 0.0), power, tf.ones_like(x))

    @staticmethod
    def bits(x: Any) -> Any:
        """The bits of floating-point numbers as integers."""
        return tf.bitcast(x, _INTEGERS[x.dtype.size])

    @staticmethod
    def sort(x: Any) -> Any:
        """Sort along the last axis, ascending: `tf.sort` reads the axis on the host in eager code."""
        return -tf.math.top_k(-x, x.shape[-1]).values

    @staticmethod
    def isfinite(x: Any) -> Any:
        """Whether neither NaN nor infinite; for complex numbers, in both parts."""
        if tf.is_tensor(x) and x.dtype.is_complex:
            return tf.math.is_finite(tf.math.real(x)) & tf.math.is_finite(tf.math.imag(x))
        return tf.math.is_finite(x)

    @staticmethod
    def arange(count: int) -> Any:
        """Integers from zero, as floats."""
        return tf.range(count, dtype=tf.float64)

    @staticmethod
    def iota(x: Any) -> Any:
        """Index of each element."""
        return tf.reshape(tf.range(tf.size(x, tf.int64)), tf.shape(x))

    @staticmethod
    def int32(x: Any) -> Any:
        """Integers, keeping the lower 32 bits."""
        return tf.cast(tf.cast(x, tf.int64), tf.int32)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Choose elementwise; a Python number has the dtype of the other side, or float64."""
        dtype = next((x.dtype for x in (yes, no) if tf.is_tensor(x)), tf.float64)
        yes, no = (x if tf.is_tensor(x) else tf.constant(x, dtype) for x in (yes, no))
        if condition.shape.rank == 0 and yes.shape.is_fully_defined() and yes.shape == no.shape:
            return tf.raw_ops.Select(condition=condition, x=yes, y=no)  # copies neither
        return tf.where(condition, yes, no)

    @staticmethod
    def rounded(x: Any, dtype: str) -> Any:
        """Round to a dtype, in float64; narrow dtypes are rounded through float32, as in arithmetic."""
        wide = Namespace.float64(x)
        return wide if dtype == "float64" else tf.cast(tf.cast(tf.cast(wide, tf.float32), dtype), tf.float64)

    @staticmethod
    def no_reassociation(x: Any) -> Any:
        """A product that TensorFlow's optimizer and XLA do not merge with the next one, to x * (a * b)."""
        return x if tf.executing_eagerly() else tf.where(x <= x, x, tf.constant(float("nan"), x.dtype))

    @staticmethod
    def stack(numbers: Any) -> Any:
        """Stack numbers to a vector."""
        return tf.stack(list(map(Namespace.float64, numbers)))

    @staticmethod
    def mask(active: tuple[bool, ...]) -> Any:
        """Bools as a vector."""
        return tf.constant(active, tf.bool)


def is_read(value: Any) -> bool:
    """Whether a number or vector is already on the host."""
    return isinstance(value, (int, float, np.ndarray, np.generic))


def cast_to(x: Any, dtype: Any) -> Any:
    """Cast a tensor; return it if it has the dtype."""
    return x if x.dtype == dtype else tf.cast(x, dtype)
