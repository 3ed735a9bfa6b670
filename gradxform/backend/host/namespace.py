"""Evaluate formulas on the host: in NumPy float64 vectors, or in Python floats for single numbers.

For frameworks whose norms and factors can be read at no cost: NumPy, and PyTorch and TensorFlow in eager mode on the
CPU.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import selecting
from gradxform.numerics.namespace import Defaults


class Namespace(Defaults):
    """NumPy functions under the names that formulas use."""

    isfinite = staticmethod(np.isfinite)
    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    sum = staticmethod(np.add.reduce)
    max = staticmethod(np.maximum.reduce)
    any = staticmethod(np.any)
    mask = staticmethod(np.array)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    cos = staticmethod(np.cos)
    sin = staticmethod(np.sin)
    floor = staticmethod(np.floor)
    sort = staticmethod(np.sort)
    reshape = staticmethod(np.reshape)
    zeros_like = staticmethod(np.zeros_like)
    ones_like = staticmethod(np.ones_like)
    shift_left = staticmethod(np.left_shift)
    shift_right = staticmethod(np.right_shift)
    asarray = staticmethod(np.asarray)
    copy = staticmethod(np.copy)
    real = staticmethod(np.real)
    imag = staticmethod(np.imag)
    transpose = staticmethod(np.transpose)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Convert to a dtype."""
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # from which NumPy knows it
        return np.asarray(x).astype(dtype)

    @staticmethod
    def complex(real: Any, imag: Any) -> Any:
        """Combine two parts into complex numbers."""
        found = np.empty(np.shape(real), np.result_type(real.dtype, np.complex64))
        found.real, found.imag = real, imag
        return found

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        """Multiply stacks of matrices, in float32 at least."""
        wide = np.result_type(x.dtype, np.float32)
        return np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False))

    @staticmethod
    def max_over(x: Any, axes: Any) -> Any:
        """Return the maximum over axes with keepdims; NaN if any is NaN; zero without elements."""
        return np.max(x, axis=axes, keepdims=axes is not None, initial=0.0)

    @staticmethod
    def power_of_two(x: Any) -> Any:
        """Round down to a power of two; 1 for zero and nonfinite numbers."""
        return np.where((x > 0.0) & np.isfinite(x), np.ldexp(1.0, np.frexp(x)[1] - 1), 1.0)

    @staticmethod
    def bits(x: Any) -> Any:
        """Return the bits of floating-point numbers as integers."""
        own = np.asarray(x)
        return own.astype(own.dtype.newbyteorder("="), copy=False).view(f"int{8 * own.itemsize}")

    @staticmethod
    def kth_largest(x: Any, count: Any) -> Any:
        """Return the element of a rank, counted from 1, the largest."""
        place = np.size(x) - int(count)
        return np.partition(x, place, axis=None)[place]

    @staticmethod
    def arange(count: int) -> Any:
        """Return the numbers from zero."""
        return np.arange(count, dtype=np.float64)

    @staticmethod
    def int32(x: Any) -> Any:
        """Reduce integers to their lower 32 bits."""
        return np.asarray(x).astype(np.int64).astype(np.int32)

    @staticmethod
    def float64(x: Any) -> Any:
        """Convert to float64."""
        return np.asarray(x).astype(np.float64)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; a single condition needs no array."""
        if isinstance(condition, np.bool_):
            return yes if condition else no
        return selecting.where(condition, yes, no)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return x: NumPy has no gradients."""
        return x

    @staticmethod
    def rounded(x: Any, dtype: str) -> Any:
        """Round to a dtype, in float64; to narrower dtypes through float32, as in arithmetic."""
        wide = np.asarray(x, np.float64)
        near = wide if dtype == "float64" else wide.astype(np.float32)
        return _bfloat16(near) if dtype == "bfloat16" else near.astype(dtype).astype(np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Select numbers of a vector."""
        return vector[list(index) if isinstance(index, tuple) else index]

    @staticmethod
    def stack(numbers: Sequence[Any]) -> Any:
        """Stack numbers into a vector."""
        return np.array(numbers, np.float64)


class Floats:
    """The functions for Python floats, many times faster than 0-d arrays."""

    isfinite = staticmethod(math.isfinite)
    sqrt = staticmethod(math.sqrt)
    abs = staticmethod(abs)
    expm1 = staticmethod(math.expm1)
    log = staticmethod(math.log)

    @staticmethod
    def stop_gradient(x: float) -> float:
        """Return x: a Python float has no gradient."""
        return x

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        """Select one of two numbers."""
        return yes if condition else no

    @staticmethod
    def stack(numbers: Sequence[float]) -> Any:
        """Stack numbers into a vector."""
        return np.array(numbers)

    @staticmethod
    def rounded(x: float, dtype: str) -> float:
        """Round a Python float to a dtype."""
        if dtype in ("float32", "float64"):
            return x if dtype == "float64" else ctypes.c_float(x).value
        return float(Namespace.rounded(x, dtype))


def _bfloat16(near: Any) -> Any:
    """Round float32 to eight significant bits."""
    mantissa, exponent = np.frexp(near)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float64)


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """Evaluate a formula of numbers and vectors; returns a Python float if the result is 0-d."""
    given = [operand if type(operand) is float else _operand(operand) for operand in operands]
    if not static and all([type(operand) is float for operand in given]):
        try:
            return formula(Floats, *given)
        except (OverflowError, ZeroDivisionError, ValueError, AttributeError):  # or a function that floats lack
            pass
    with np.errstate(all="ignore"):
        result = formula(Namespace, *given, **static)
    if type(result) is np.float64:
        return float(result)
    return result if isinstance(result, tuple) or np.ndim(result) else float(result)


def _operand(operand: Any) -> Any:
    """Convert vectors to float64, and numbers to Python floats."""
    if isinstance(operand, np.ndarray) and operand.ndim:
        return operand.astype(np.float64, copy=False)
    if hasattr(operand, "numpy"):  # another framework's array, in a state
        return _operand(operand.numpy())
    return float(operand)
