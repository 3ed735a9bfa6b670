"""Formulas computed on the host: in NumPy's float64 vectors, or in Python floats where no vector is needed.

For frameworks whose vectors of norms and factors can be read at no cost: NumPy itself, and PyTorch and TensorFlow in
eager code on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import longdouble
from gradxform.numerics.double_double import Pair
from gradxform.numerics.namespace import Defaults
from gradxform.numerics.ranged import evaluate


class Portable(Defaults):
    """NumPy's functions under the names that formulas use."""

    isfinite = staticmethod(np.isfinite)
    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    sum = staticmethod(np.add.reduce)
    max = staticmethod(np.maximum.reduce)
    any = staticmethod(np.any)
    mask = staticmethod(np.array)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
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

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """An array in a dtype."""
        return np.asarray(x).astype(dtype)

    @staticmethod
    def complex(real: Any, imag: Any) -> Any:
        """Complex numbers of two parts."""
        found = np.empty(np.shape(real), np.result_type(real.dtype, np.complex64))
        found.real, found.imag = real, imag
        return found

    @staticmethod
    def max_over(x: Any, axes: Any) -> Any:
        """The largest over axes, kept as ones; NaN if one is; of no elements zero."""
        return np.max(x, axis=axes, keepdims=axes is not None, initial=0.0)

    @staticmethod
    def power_of_two(x: Any) -> Any:
        """The largest power of two that is no larger; one for zero and what is not finite."""
        return np.where((x > 0.0) & np.isfinite(x), np.ldexp(1.0, np.frexp(x)[1] - 1), 1.0)

    @staticmethod
    def arange(count: int) -> Any:
        """The numbers from zero."""
        return np.arange(count, dtype=np.float64)

    @staticmethod
    def int32(x: Any) -> Any:
        """Whole numbers with the lower 32 bits alone."""
        return np.asarray(x).astype(np.int64).astype(np.int32)

    @staticmethod
    def float64(x: Any) -> Any:
        """A number or an array in float64."""
        return np.asarray(x).astype(np.float64)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        """Elementwise choice; of a single condition without an array."""
        return (yes if condition else no) if isinstance(condition, np.bool_) else np.where(condition, yes, no)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """NumPy has no gradients."""
        return x

    @staticmethod
    def rounded(x: Any, dtype: str) -> Any:
        """To the nearest number of a dtype, in float64; by way of float32 to narrower ones, as in arithmetic."""
        wide = np.asarray(x, np.float64)
        near = wide if dtype == "float64" else wide.astype(np.float32)
        return _bfloat16(near) if dtype == "bfloat16" else near.astype(dtype).astype(np.float64)

    @staticmethod
    def high_half(x: Any) -> Any:
        """The number without the lower half of its bits."""
        return (np.asarray(x).view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Some numbers of a vector."""
        return vector[list(index) if isinstance(index, tuple) else index]

    @staticmethod
    def stack(numbers: Sequence[Any]) -> Any:
        """Numbers as a vector."""
        return np.array(numbers, np.result_type(np.float64, *map(np.asarray, numbers)))


class Namespace(Portable):
    """The same with NumPy's longdouble, where the platform has one that is wider."""

    @classmethod
    def extended(cls, x: Any) -> Any:
        """A number with an exponent of more bits."""
        return np.asarray(x, np.longdouble)[()] if longdouble.WIDER else super().extended(x)


class Floats:
    """The same functions of Python floats, many times faster than 0-d arrays."""

    isfinite = staticmethod(math.isfinite)
    sqrt = staticmethod(math.sqrt)
    abs = staticmethod(abs)
    expm1 = staticmethod(math.expm1)
    log = staticmethod(math.log)

    @staticmethod
    def stop_gradient(x: float) -> float:
        """A Python float has no gradient."""
        return x

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        """One of two numbers."""
        return yes if condition else no

    @staticmethod
    def stack(numbers: Sequence[float]) -> Any:
        """Numbers as a vector."""
        return np.array(numbers)

    @staticmethod
    def rounded(x: float, dtype: str) -> float:
        """To the nearest number of a dtype; a Python float is of float64."""
        return x if dtype == "float64" else ctypes.c_float(x).value


def _bfloat16(near: Any) -> Any:
    """From float32 to the nearest number of eight significant bits."""
    mantissa, exponent = np.frexp(near)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float64)


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula of numbers and vectors; a Python float if the result has no axes."""
    given = [operand if isinstance(operand, Pair) else _operand(operand) for operand in operands]
    if not static and len(given) == 2 and isinstance(given[0], float) and isinstance(given[1], float):
        try:
            return formula(Floats, *given)
        except (OverflowError, ZeroDivisionError, ValueError, AttributeError):  # or what floats have not
            pass
    paired = any(isinstance(operand, Pair) for operand in given)  # what a pair knows is more than longdouble holds
    with np.errstate(all="ignore"):
        given = list(map(longdouble.pair, given)) if paired else given
        result = evaluate(formula, Portable if paired else Namespace, given, static)
    if isinstance(result, tuple) or np.ndim(result) or getattr(result, "dtype", None) == np.longdouble:
        return result
    return float(result)


def _operand(operand: Any) -> Any:
    """Vectors as they are (longdouble where the precision of float64 is not enough), numbers as Python floats."""
    if type(operand) is float:
        return operand
    if isinstance(operand, np.longdouble) or (isinstance(operand, np.ndarray) and operand.dtype == np.longdouble):
        return operand
    if isinstance(operand, np.ndarray) and operand.ndim:
        return operand.astype(np.float64, copy=False)
    return float(operand)
