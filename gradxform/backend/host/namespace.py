"""NumPy under the names that formulas use, formulas evaluated on the host, and norms of arrays in host memory.

For frameworks whose arrays NumPy can read without a copy: NumPy, and PyTorch and TensorFlow in eager mode on the CPU.
Formulas run in NumPy float64 vectors, or in Python floats for single numbers.

Norms are accurate to the last bit of float32 at any size, in one read of memory. A large float32 array is viewed as
rows of 128. NumPy sums the squares of each row in float32 with little rounding, and the rows are added in float64. The
few rows that dominate the sum are summed again in float64, to remove their rounding from the result. If the sum leaves
the range of float32, the array is summed again in float64.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gradxform.backend.host import threads
from gradxform.numerics import norms as numerics
from gradxform.numerics.namespace import Defaults, static

_LARGE = 1 << 11
"""Below so many elements, `np.where` is faster than a selection by bits."""
_RARE = 32
"""Conditions that are met, or missed, by a smaller share than one in so many are predicted well."""
_BLOCK = 1 << 13
"""Elements of a block in float64. Larger temporary arrays go back to the system, and their pages are made anew."""
_ROW = 128
"""Of longer rows, float32 sums of equal squares are off by more than the norm may be: BLAS adds in 16 to 64 parts."""
_SHORT_ROW = 16
_HEAVY = 1 / 16
_ONLY_ROUNDING_LOST, _LOST_IN_DOUBLE = 2.0**-100, 2.0**-960
"""If a sum of n float32, or float64, squares is above n times this, underflow lost less than rounding."""
QUIET = np.errstate(all="ignore")
"""Silences warnings; a decorator takes half the time of a with statement."""
_FLOAT, _FLOAT32, _FLOAT64 = {float}, np.dtype(np.float32), np.dtype(np.float64)
_WIDE = {np.dtype(np.float64), np.dtype(np.complex128)}

_SAME = (
    *("isfinite", "sqrt", "abs", "any", "expm1", "log", "log1p", "cos", "sign", "sin", "floor", "sort", "reshape"),
    *("zeros_like", "ones_like", "asarray", "copy", "real", "imag", "transpose"),
)
"""Functions that formulas use under NumPy's names."""


class Namespace(Defaults):
    """NumPy functions under the names that formulas use; `Defaults` calls the static ones."""

    sum, max, mask = static(np.add.reduce, np.maximum.reduce, np.array)
    shift_left, shift_right, stop_gradient = static(np.left_shift, np.right_shift, lambda x: x)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Convert to a dtype."""
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # from which NumPy knows it
        return np.asarray(x).astype(dtype, copy=False)

    def complex(self, real: Any, imag: Any) -> Any:
        """Combine two parts into complex numbers."""
        found = np.empty(np.shape(real), np.result_type(real.dtype, np.complex64))
        found.real, found.imag = real, imag
        return found

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        """Multiply stacks of matrices, in float32 at least."""
        wide = np.result_type(x.dtype, np.float32)
        return np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False))

    def max_over(self, x: Any, axes: Any) -> Any:
        """Return the maximum over axes with keepdims; NaN if any is NaN; zero without elements."""
        return np.max(x, axis=axes, keepdims=axes is not None, initial=0.0)

    def power_of_two(self, x: Any) -> Any:
        """Round down to a power of two; 1 for zero and nonfinite numbers."""
        return np.where((x > 0.0) & np.isfinite(x), np.ldexp(1.0, np.frexp(x)[1] - 1), 1.0)

    def bits(self, x: Any) -> Any:
        """Return the bits of floating-point numbers as integers."""
        own = np.asarray(x)
        return own.astype(own.dtype.newbyteorder("="), copy=False).view(f"int{8 * own.itemsize}")

    @staticmethod
    def kth_largest(x: Any, count: Any) -> Any:
        """Return the element of a rank, counted from 1, the largest."""
        place = np.size(x) - int(count)
        return np.partition(x, place, axis=None)[place]

    def sum_exactly(self, x: Any, axes: Any) -> Any:
        """Sum over axes; in short rows along those outside of one that stays, where NumPy adds one by one."""
        if axes:
            axes = tuple([axis % x.ndim for axis in axes])
            least = min([x.strides[i] for i in range(x.ndim) if i not in axes and x.shape[i] > 1], default=math.inf)
            for axis in axes:
                x = numerics.along(self, x, axis) if x.strides[axis] > least else x
        return self.sum_over(x, axes)

    def arange(self, count: int) -> Any:
        """Return the numbers from zero."""
        return np.arange(count, dtype=np.float64)

    def int32(self, x: Any) -> Any:
        """Reduce integers to their lower 32 bits."""
        return np.asarray(x).astype(np.int64).astype(np.int32)

    def float64(self, x: Any) -> Any:
        """Convert to float64."""
        return np.asarray(x).astype(np.float64)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        """Select elementwise; a single condition needs no array.

        Of many elements, without a branch per element: where no processor predicts the condition, `np.where` takes up
        to ten times as long as for a constant one.
        """
        if isinstance(condition, np.bool_):
            return yes if condition else no
        if not isinstance(condition, np.ndarray) or condition.size < _LARGE:
            return np.where(condition, yes, no)
        met, kind = np.count_nonzero(condition), np.result_type(yes, no)
        predicted = _RARE * min(met, condition.size - met) < condition.size
        if predicted or kind.kind != "f" or kind.itemsize > 8 or condition.dtype != np.bool_:
            return np.where(condition, yes, no)
        bits = np.dtype(f"i{kind.itemsize}")
        first, second = (np.asarray(side, kind).view(bits) for side in (yes, no))
        mask = np.negative(condition.view(np.int8)).astype(bits)  # all bits, or none
        found = (first ^ second) & mask
        found ^= second  # in place: a large temporary array takes new pages
        return found.view(kind)

    def rounded(self, x: Any, dtype: str) -> Any:
        """Round to a dtype, in float64; to narrower dtypes through float32, as in arithmetic."""
        wide = np.asarray(x, np.float64)
        near = wide if dtype == "float64" else wide.astype(np.float32)
        if dtype == "bfloat16":  # eight significant bits
            mantissa, exponent = np.frexp(near)
            return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float64)
        return near.astype(dtype).astype(np.float64)

    def take(self, vector: Any, index: Any) -> Any:
        """Select numbers of a vector."""
        return vector[list(index) if isinstance(index, tuple) else index]

    def stack(self, numbers: Sequence[Any]) -> Any:
        """Stack numbers into a vector."""
        return np.array(numbers, np.float64)


for _name in _SAME:
    setattr(Namespace, _name, staticmethod(getattr(np, _name)))
NUMPY = Namespace()


class _Floats:
    """The functions for Python floats, many times faster than 0-d arrays."""

    isfinite, sqrt, abs, expm1, log = static(math.isfinite, math.sqrt, abs, math.expm1, math.log)
    stop_gradient = staticmethod(Namespace.stop_gradient)

    def where(self, condition: bool, yes: float, no: float) -> float:
        """Select one of two numbers."""
        return yes if condition else no

    def stack(self, numbers: Sequence[float]) -> Any:
        """Stack numbers into a vector."""
        return np.array(numbers)

    def rounded(self, x: float, dtype: str) -> float:
        """Round a Python float to a dtype."""
        if dtype in ("float32", "float64"):
            return x if dtype == "float64" else ctypes.c_float(x).value
        with np.errstate(over="ignore"):
            return float(NUMPY.rounded(x, dtype))


FLOATS = _Floats()


def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """Evaluate a formula of numbers and vectors; a 0-d result, or one of several, becomes a Python float."""
    given = [
        x if type(x) is float or (type(x) is np.ndarray and x.ndim and x.dtype is _FLOAT64) else _operand(x)
        for x in operands
    ]
    if _FLOAT.issuperset(map(type, given)):
        try:
            return formula(FLOATS, *given, **static)
        except (OverflowError, ZeroDivisionError, ValueError, AttributeError):  # or a function that floats lack
            pass
    return _on_vectors(formula, given, static)


@QUIET
def _on_vectors(formula: Callable[..., Any], given: Sequence[Any], static: dict[str, Any]) -> Any:
    result = formula(NUMPY, *given, **static)
    return tuple(map(_number, result)) if isinstance(result, tuple) else _number(result)


def _number(result: Any) -> Any:
    """Convert a 0-d array to a Python float."""
    return result if getattr(result, "ndim", 1) else float(result)


def _operand(operand: Any) -> Any:
    """Convert vectors to float64, and numbers to Python floats."""
    if isinstance(operand, np.ndarray) and operand.ndim:
        return operand.astype(np.float64, copy=False)
    if hasattr(operand, "numpy"):  # another framework's array, in a state
        return _operand(operand.numpy())
    return float(operand)


# --- norms -----------------------------------------------------------------------------------------------------------


@QUIET
def norms(leaves: Sequence[Any], ord: float) -> Any:
    """Return the arrays' norms as a float64 vector."""
    single = ord == 2 and all([leaf.dtype is _FLOAT32 for leaf in leaves])
    one: Callable[[Any], float] = _norm32 if single else functools.partial(_norm, ord=ord)
    sizes = [leaf.size for leaf in leaves]
    return np.array(list(map(one, leaves)) if sum(sizes) < threads.WORTH else threads.spread(one, leaves, sizes))


def _norm(leaf: Any, ord: float) -> float:
    """Return the norm of one array."""
    flat = np.asarray(leaf).ravel("K")
    kind, size = flat.dtype, flat.size
    if not kind.isnative:
        return _norm(flat.astype(kind.newbyteorder("=")), ord)
    if not size:
        return 0.0
    if ord != 2:  # the norm of the norms of blocks that fit the cache
        if size <= threads.CACHED:
            return numerics.norm(NUMPY, flat, None, ord)
        starts = range(0, size, threads.CACHED)
        return _norm(np.array([_norm(flat[start : start + threads.CACHED], ord) for start in starts]), ord)
    if kind.kind == "c":
        return _norm(flat.view(flat.real.dtype), ord)
    if kind == _FLOAT64:
        return _norm64(flat)
    return _norm32(flat) if kind == _FLOAT32 else math.sqrt(sum(map(_dot64, _blocks(flat))))


def _norm32(leaf: Any) -> float:
    """Return the 2-norm of float32 numbers."""
    flat = leaf.ravel("K")
    if flat.size > threads.SMALL:
        return _norm_by_rows(flat)
    wide = flat.astype(_FLOAT64)
    return math.sqrt(wide.dot(wide))


def _norm_by_rows(flat: Any) -> float:
    cut = flat.size // _ROW * _ROW
    rows = flat[:cut].reshape(-1, _ROW)
    sums = np.vecdot(rows, rows).astype(_FLOAT64)
    total = float(np.add.reduce(sums))
    if not (cut * _ONLY_ROUNDING_LOST < total < math.inf and np.maximum.reduce(sums) < total * _HEAVY):
        total = _again(rows, sums, total)
    return math.sqrt(total if cut == flat.size else total + _dot64(flat[cut:].astype(np.float64)))


def _again(rows: Any, sums: Any, total: float) -> float:
    """Sum the squares of rows again whose own sums are too inaccurate."""
    if math.isnan(total):
        return total
    if not rows.size * _ONLY_ROUNDING_LOST < total < math.inf:
        return sum(map(_dot64, _blocks(rows.reshape(-1))))
    heavy = np.flatnonzero(sums >= total * _HEAVY)
    exact = rows[heavy].astype(np.float64)
    return total + float((np.vecdot(exact, exact) - sums[heavy]).sum())


def _blocks(flat: Any) -> Iterator[Any]:
    """Yield the array in float64, in blocks that fit the cache."""
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK].astype(np.float64)


def _dot64(block: Any) -> float:
    return float(block.dot(block))


def _norm64(flat: Any) -> float:
    """Return the 2-norm of float64 numbers, scaled by a power of two where squares would leave the range."""
    total = _squares64(flat)
    if flat.size * _LOST_IN_DOUBLE < total < math.inf or math.isnan(total):
        return math.sqrt(total)
    largest = float(np.max(np.abs(flat)))
    if not 0 < largest < math.inf:
        return largest
    exponent = math.frexp(largest)[1]
    return float(np.ldexp(math.sqrt(_squares64(np.ldexp(flat, -exponent))), exponent))


def _squares64(flat: Any) -> float:
    """Return the sum of squares: of short rows, which are then added pairwise."""
    cut = flat.size // _SHORT_ROW * _SHORT_ROW
    rows = flat[:cut].reshape(-1, _SHORT_ROW)
    return float(np.add.reduce(np.vecdot(rows, rows))) + _dot64(flat[cut:])


@QUIET
def norms_over(leaves: Sequence[Any], axes: Sequence[tuple[int, ...]], ord: float, of: Any = None) -> Any:
    """Return the norms of slices of one array with keepdims; 2-norms without a unit if no sum leaves the range."""
    (leaf,), (over,) = leaves, axes
    if ord == 2:
        narrow = leaf.dtype.newbyteorder("=") not in _WIDE
        total = _squares_over(leaf, over, narrow)
        if narrow or np.all((total > leaf.size * _LOST_IN_DOUBLE) & (total < math.inf)):
            return np.sqrt(total)
    return numerics.norm(NUMPY, leaf, over, ord)


def _squares_over(leaf: Any, axes: tuple[int, ...], narrow: bool) -> Any:
    """Return sums of squares over axes, of narrow numbers in parts: a large float64 array takes new pages."""
    count = len(leaf) if narrow and leaf.size > threads.BLOCK else 1
    if count > 1:
        step = max(threads.BLOCK * count // leaf.size, 1)
        parts = [leaf[start : start + step] for start in range(0, count, step)]
        sums = functools.partial(_squares_over, axes=axes, narrow=narrow)
        found = threads.spread(sums, parts, [part.size for part in parts])
        return sum(found) if not {0, -leaf.ndim}.isdisjoint(axes) else np.concatenate(found)
    parts = numerics.parts_of(NUMPY, leaf)
    if narrow and axes == (leaf.ndim - 1,):
        return sum([np.vecdot(part, part)[..., None] for part in parts])  # half the time
    return sum([numerics.add(NUMPY, np.square(part, part), axes, narrow) for part in parts])
