"""Formulas computed on the host: in NumPy's float64 vectors, or in Python floats where no vector is needed.

For frameworks whose vectors of norms and factors can be read at no cost: NumPy itself, and PyTorch on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Vectors:
    """NumPy's functions under the names that formulas use."""

    where = staticmethod(np.where)
    isfinite = staticmethod(np.isfinite)
    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    sum = staticmethod(np.sum)
    max = staticmethod(np.max)
    any = staticmethod(np.any)
    mask = staticmethod(np.array)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """NumPy has no gradients."""
        return x

    @staticmethod
    def round32(x: Any) -> Any:
        """To the nearest float32 number, in float64."""
        return np.asarray(x, np.float32).astype(np.float64)

    @staticmethod
    def round64(x: Any) -> Any:
        """To the nearest float64 number."""
        return np.asarray(x, np.float64)

    @staticmethod
    def take(vector: Any, index: Any) -> Any:
        """Some numbers of a vector."""
        return vector[list(index) if isinstance(index, tuple) else index]

    @staticmethod
    def stack(numbers: Sequence[Any]) -> Any:
        """Numbers as a vector."""
        return np.array(numbers, np.result_type(np.float64, *map(np.asarray, numbers)))


class Floats:
    """The same functions of Python floats, many times faster than 0-d arrays."""

    isfinite = staticmethod(math.isfinite)
    sqrt = staticmethod(math.sqrt)
    abs = staticmethod(abs)

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        """One of two numbers."""
        return yes if condition else no

    @staticmethod
    def stack(numbers: Sequence[float]) -> Any:
        """Numbers as a vector."""
        return np.array(numbers)

    @staticmethod
    def round32(x: float) -> float:
        """To the nearest float32 number."""
        return ctypes.c_float(x).value

    @staticmethod
    def round64(x: float) -> float:
        """A Python float is one."""
        return x


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula of numbers and vectors; a Python float if the result has no axes."""
    given = [_operand(operand) for operand in operands]
    if not static and len(given) == 2 and all(isinstance(operand, float) for operand in given):
        with contextlib.suppress(OverflowError, ZeroDivisionError):
            return formula(Floats, *given)
    with np.errstate(all="ignore"):
        result = formula(Vectors, *given, **static)
    return float(result) if np.ndim(result) == 0 and np.asarray(result).dtype != np.longdouble else result


def _operand(operand: Any) -> Any:
    """Vectors as they are (longdouble where the precision of float64 is not enough), numbers as Python floats."""
    if isinstance(operand, np.longdouble) or (isinstance(operand, np.ndarray) and operand.dtype == np.longdouble):
        return operand
    if isinstance(operand, np.ndarray) and operand.ndim:
        return operand.astype(np.float64, copy=False)
    return float(operand)
