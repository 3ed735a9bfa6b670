"""The standard's functions under the names that formulas use, in float64."""

from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np

# --- as they are -----------------------------------------------------------------------------------------------------

abs, any, cos, expm1, floor, isfinite = strict.abs, strict.any, strict.cos, strict.expm1, strict.floor, strict.isfinite
imag, log, log1p, max, ones_like, real, reshape, sign = (
    strict.imag,
    strict.log,
    strict.log1p,
    strict.max,
    strict.ones_like,
    strict.real,
    strict.reshape,
    strict.sign,
)
shift_left, shift_right = strict.bitwise_left_shift, strict.bitwise_right_shift
sin, sort, sqrt, sum, zeros_like = strict.sin, strict.sort, strict.sqrt, strict.sum, strict.zeros_like
asarray, matmul, transpose = strict.asarray, strict.matmul, strict.permute_dims

# --- numbers, vectors and dtypes -------------------------------------------------------------------------------------


def cast(x: Any, dtype: str) -> Any:
    """An array in a dtype."""
    return strict.astype(x, getattr(strict, dtype))


def float64(x: Any) -> Any:
    """A number or an array in float64."""
    return strict.astype(strict.asarray(x), strict.float64)


def int32(x: Any) -> Any:
    """Whole numbers with the lower 32 bits alone."""
    return strict.astype(strict.astype(strict.asarray(x), strict.int64), strict.int32)


def copy(x: Any) -> Any:
    """An array of its own memory."""
    return strict.asarray(x, copy=True)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Elementwise choice; numbers are float64."""
    return strict.where(condition, *(x if isinstance(x, type(condition)) else float64(x) for x in (yes, no)))


def stack(numbers: Any) -> Any:
    """Numbers as a vector."""
    return strict.stack([float64(number) for number in numbers])


def take(vector: Any, index: Any) -> Any:
    """Some numbers of a vector."""
    return strict.take(vector, strict.asarray(index), axis=0) if isinstance(index, tuple) else vector[index, ...]


def mask(active: tuple[bool, ...]) -> Any:
    """Bools as a vector."""
    return strict.asarray(active)


def arange(count: int) -> Any:
    """The numbers from zero."""
    return strict.arange(count, dtype=strict.float64)


def iota(x: Any) -> Any:
    """The number of each element."""
    return strict.reshape(strict.arange(x.size, dtype=strict.int64), x.shape)


def complex(real: Any, imag: Any) -> Any:
    """Complex numbers of two parts, of which the standard has no other maker: infinity times 1j would be NaN."""
    parts = np.stack([np.asarray(real), np.asarray(imag)], axis=-1)
    return strict.asarray(parts.view(np.result_type(parts.dtype, np.complex64))[..., 0])


def matmul_add(z: Any, x: Any, y: Any, beta: float, alpha: float) -> Any:
    """Products of matrices, added to others."""
    return beta * z + alpha * strict.matmul(x, y)


# --- over axes -------------------------------------------------------------------------------------------------------


def sum_over(x: Any, axes: Any) -> Any:
    """The sum over axes, kept as ones; over all if None."""
    return strict.sum(x, axis=axes, keepdims=axes is not None)


def max_over(x: Any, axes: Any) -> Any:
    """The largest over axes, kept as ones; NaN if one is; of no elements zero."""
    return strict.max(x, axis=axes, keepdims=axes is not None) if x.size else sum_over(x, axes)


# --- bits ------------------------------------------------------------------------------------------------------------


def bits(x: Any) -> Any:
    """The bits of floating-point numbers as integers, which the standard does not show."""
    own = np.asarray(x)
    return strict.asarray(own.view(f"int{8 * own.itemsize}"))


def kth_largest(x: Any, count: Any) -> Any:
    """The element of a rank, counted from 1, the largest."""
    return sort(reshape(x, (-1,)))[x.size - int(count)]


def rounded(x: Any, dtype: str) -> Any:
    """To the nearest number of a dtype, in float64."""
    return float64(cast(float64(x), dtype))


def power_of_two(x: Any) -> Any:
    """A power of two near a positive number; one for zero and what is not finite."""
    plain = where(strict.isfinite(x) & (x > 0.0), x, 1.0)
    return strict.pow(2.0 * strict.ones_like(plain), strict.floor(strict.log2(plain)))


# --- what only compilers and derivatives ask for ---------------------------------------------------------------------


def stop_gradient(x: Any) -> Any:
    """The standard has no derivatives."""
    return x


apart = materialize = no_reassociation = stop_gradient
