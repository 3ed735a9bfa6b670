"""The primitives on MLX arrays: lazy, under mx.compile, mx.grad and mx.vmap."""

from __future__ import annotations

import functools
import math
import sys
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from gradxform.backend.lookup import register
from gradxform.numerics import sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import of_elements
from gradxform.numerics.ranged import evaluate, in_float64
from gradxform_mlx import vectors
from gradxform_numpy.backend import flatten as flatten
from gradxform_numpy.backend import paths as paths
from gradxform_numpy.backend import unflatten as unflatten

name: str = "mlx"
types: tuple[type, ...] = (mx.array,)


def _on_cpu(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive whose operations run on the processor, the only place where MLX has float64."""

    @functools.wraps(primitive)
    def run(*given: Any, **static: Any) -> Any:
        with mx.stream(mx.cpu):
            return primitive(*given, **static)

    return run


# --- leaves ----------------------------------------------------------------------------------------------------------


def adopt(leaf: Any) -> mx.array:
    """As mx.array adopts NumPy arrays and Python numbers: those of 64 bits in 32."""
    return mx.array(leaf)


def dtype(leaf: mx.array) -> str:
    """The name of the dtype."""
    return str(leaf.dtype).removeprefix("mlx.core.")


def shape(leaf: mx.array) -> tuple[int, ...]:
    """The shape."""
    return tuple(leaf.shape)


def count(leaf: mx.array, axes: tuple[int, ...] | None) -> float:
    """The number of elements."""
    return float(leaf.size if axes is None else math.prod(leaf.shape[axis] for axis in axes))


def dense(leaves: Sequence[mx.array]) -> tuple[Sequence[mx.array], None]:
    """MLX has no sparse arrays."""
    return leaves, None


def densify(leaf: mx.array) -> mx.array:
    """MLX has no sparse arrays."""
    return leaf


def alongside(arrays: Sequence[mx.array], leaves: Sequence[mx.array]) -> Sequence[mx.array]:
    """The arrays as they are."""
    return arrays


def copied(leaves: Sequence[mx.array]) -> list[mx.array]:
    """Arrays of their own, since ``x[0] = 1`` changes the array that it is said of."""
    return [mx.array(leaf) for leaf in leaves]


def zeros(leaves: Sequence[mx.array]) -> list[mx.array]:
    """Fresh zeros."""
    return [mx.zeros_like(leaf) for leaf in leaves]


# --- norms -----------------------------------------------------------------------------------------------------------


@_on_cpu
def norms(leaves: Sequence[mx.array], ord: float) -> Any:
    """The vector of the leaves' norms; a pair of vectors if a float64 leaf is among them."""
    found = [_norm(leaf, tuple(range(leaf.ndim)), ord) for leaf in leaves]
    vector = Pair(*(mx.stack([part.reshape(()) for part in parts]) for parts in zip(*found, strict=True)))
    return vector if any(leaf.dtype == mx.float64 for leaf in leaves) else vector.high


@_on_cpu
def norm_over(leaf: mx.array, axes: tuple[int, ...], ord: float) -> Any:
    """Norms over some axes, in float64, the axes kept as ones."""
    found = _norm(leaf, axes, ord)
    return found if leaf.dtype == mx.float64 else found.high


def _norm(leaf: mx.array, axes: tuple[int, ...], ord: float) -> Pair:
    """Norms over some axes, which stay as ones; those of float64 leaves with what their rounding takes."""
    size, double, add = _size(leaf), leaf.dtype == mx.float64, _adder(axes)
    if leaf.size == 0 or ord == 1:
        return _pair(*sums.total(vectors, size, add)[:2]) if double else _pair(add(size))
    if ord == math.inf:
        return _pair(mx.max(size, axis=axes, keepdims=True))
    if ord == 2 and not double:
        return _pair(_root(add(size * size), 2))
    unit = _power_of_two(mx.max(size, axis=axes, keepdims=True))
    if ord == 2:
        found = sums.root(vectors, sums.total_squares(vectors, [size / unit], add))
        return sums.in_units(vectors, found, unit)
    powers = (size / unit) ** ord
    return _pair(_root(sums.total(vectors, powers, add).high if double else add(powers), ord) * unit)


def _adder(axes: tuple[int, ...]) -> Callable[[mx.array], mx.array]:
    """The sum over some axes, which stay as ones; of no elements NumPy's, since MLX 0.32.4 may never return from it."""

    def add(values: mx.array) -> mx.array:
        if values.size == 0:
            return vectors.float64(np.sum(np.zeros(values.shape), axis=axes, keepdims=True))
        return mx.sum(values, axis=axes, keepdims=True)

    return add


def _pair(high: mx.array, low: mx.array | None = None) -> Pair:
    nothing = mx.zeros_like(high)
    return Pair(high, nothing if low is None else low, nothing)


def _size(leaf: mx.array) -> mx.array:
    """Absolute values in float64."""
    if leaf.dtype != mx.complex64:
        return mx.abs(leaf.astype(mx.float64))
    real, imag = (part.astype(mx.float64) for part in (mx.real(leaf), mx.imag(leaf)))
    return _root(real * real + imag * imag, 2)


def _root(total: mx.array, ord: float) -> mx.array:
    """A root, with the derivative zero at zero."""
    positive = total > 0
    safe = mx.where(positive, total, 1.0)
    return mx.where(positive, mx.sqrt(safe) if ord == 2 else safe ** (1 / ord), total)


def _power_of_two(largest: mx.array) -> mx.array:
    """The power of two below a positive number: the bits of its exponent; one for what is zero or not finite."""
    bits = mx.maximum(mx.stop_gradient(largest), 2.0**-1022).view(mx.int64)
    return mx.where(mx.isfinite(largest), ((bits >> 52) << 52).view(mx.float64), 1.0)


def peer_norm(function: str, leaves: Sequence[mx.array], ord: float, axes: tuple[int, ...] | None) -> mx.array | None:
    """The norm as mlx.optimizers computes it."""
    if function != "mlx clip_grad_norm":
        return None
    from mlx.optimizers import clip_grad_norm

    return compute(lambda xp, norm: norm, clip_grad_norm(list(leaves), 1.0)[1])


# --- writing ---------------------------------------------------------------------------------------------------------


@_on_cpu
def multiply(leaves: Sequence[mx.array], factors: Any, inplace: bool) -> list[mx.array]:
    """Each leaf times its factor; the leaf's own bits where the factor is one. Nothing is written in place."""
    factors = vectors.float64(factors)
    return [_times(leaf, factors[i] if factors.ndim else factors) for i, leaf in enumerate(leaves)]


@_on_cpu
def multiply_over(leaf: mx.array, factor: Any, inplace: bool) -> mx.array:
    """One leaf times a float64 array that broadcasts against it."""
    return _times(leaf, vectors.float64(factor))


def _times(leaf: mx.array, factor: mx.array) -> mx.array:
    product = _by_parts(lambda part: (part.astype(mx.float64) * factor).astype(part.dtype), leaf)
    return mx.where(factor == 1, leaf, product)


def _by_parts(function: Callable[..., mx.array], *arrays: Any) -> mx.array:
    """A function of real and imaginary parts: a real factor must not make a NaN of infinity times zero."""
    if arrays[0].dtype != mx.complex64:
        return function(*arrays)
    both = [function(*map(part, arrays)) for part in (mx.real, mx.imag)]
    return mx.stack(both, axis=-1).view(mx.complex64).reshape(both[0].shape)


@_on_cpu
def divide(function: str, leaves: Sequence[mx.array], divisors: Sequence[Any]) -> list[mx.array]:
    """Each leaf divided by its divisor, in its own dtype."""

    def quotient(leaf: mx.array, divisor: Any) -> mx.array:
        return _by_parts(lambda part: part / vectors.float64(divisor).astype(part.dtype), leaf)

    return list(map(quotient, leaves, divisors))


@_on_cpu
def clip(leaves: Sequence[mx.array], low: Any, high: Any, factors: Any, inplace: bool) -> list[mx.array]:
    """min(max(factor * leaf, low), high)."""
    scaled = leaves
    if factors is not None:
        scaled = multiply(
            [leaf.astype(mx.float32) if leaf.dtype.size == 2 else leaf for leaf in leaves], factors, False
        )
    return [_between(new, old.dtype, low, high) for new, old in zip(scaled, leaves, strict=True)]


def _between(leaf: mx.array, dtype: mx.Dtype, low: Any, high: Any) -> mx.array:
    for bound, beyond in ((low, mx.less), (high, mx.greater)):
        if bound is not None:
            own = vectors.float64(bound).astype(dtype).astype(leaf.dtype)
            leaf = mx.where(beyond(leaf, own) | mx.isnan(own), own, leaf)
    return leaf


@_on_cpu
def cast(leaf: mx.array, like: mx.array) -> mx.array:
    """A leaf rounded to the dtype of another."""
    return leaf.astype(like.dtype)


# --- formulas --------------------------------------------------------------------------------------------------------


@_on_cpu
def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula of numbers and vectors, in float64."""
    return evaluate(formula, vectors, list(map(_wide, operands)), static)


def _wide(operand: Any) -> Any:
    """A number or an array in float64; a pair of them as it is."""
    return operand if isinstance(operand, Pair) else vectors.float64(operand)


def namespace() -> python_types.ModuleType:
    """mlx.core."""
    return mx


# --- elements --------------------------------------------------------------------------------------------------------


@_on_cpu
def elementwise(
    formula: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None = None,
    **static: Any,
) -> list[mx.array]:
    """A formula of each leaf's elements, computed wide and rounded once."""
    numbers = list(map(_wide, numbers))

    def one(factor: Any, *column: Any) -> mx.array:
        double = column[0].dtype == mx.float64

        def real(*parts: Any) -> mx.array:
            wide = list(map(_wide, parts))
            found = of_elements(formula, vectors, wide, numbers, factor, double, static)
            return found.astype(mx.float64 if double else mx.float32)

        return _by_parts(real, *column)

    each_factor = [None] * len(columns[0]) if factors is None else map(_wide, factors)
    return list(map(one, each_factor, *columns))


@_on_cpu
def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[mx.array]:
    """A formula of each leaf's elements, in its own dtype."""
    return [formula(vectors, *column, *numbers).astype(column[0].dtype) for column in zip(*columns, strict=True)]


@_on_cpu
def sum_over(leaf: mx.array, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes, in float64, the axes kept as ones; a pair for a float64 leaf."""
    add, wide = _adder(axes), vectors.float64(leaf)
    if leaf.dtype != mx.float64:
        return add(wide if weights is None else wide * vectors.float64(evaluate(in_float64, vectors, [weights], {})))
    if weights is None:
        return sums.total_signed(vectors, wide, add)
    return sums.total_products(vectors, wide, _wide(weights), add)


# --- backward --------------------------------------------------------------------------------------------------------


def on_backward(leaves: Sequence[mx.array], numbers: Sequence[mx.array], function: Callable[..., Any]) -> Any:
    """The leaves as they are, with a backward pass of one's own."""
    return _same(leaves, numbers, lambda upstream, _, numbers: (function(upstream, numbers), zeros(numbers)))


def straight_through(values: Sequence[mx.array], leaves: Sequence[mx.array]) -> list[mx.array]:
    """The values; what flows back to them flows to the leaves."""
    return _same(values, leaves, lambda upstream, values, _: (zeros(values), upstream))


def _same(first: Sequence[mx.array], second: Sequence[mx.array], backward: Callable[..., Any]) -> list[mx.array]:
    """The first arrays as they are; both get what a function makes of what flows back, and of both."""

    @mx.custom_function
    def same(first: list[mx.array], second: list[mx.array]) -> list[mx.array]:
        return first

    @same.vjp
    def vjp(given: Any, upstream: list[mx.array], _: Any) -> Any:
        return backward(list(upstream), *given)

    return list(same(list(first), list(second)))


def stop_gradient(leaf: mx.array) -> mx.array:
    """The leaf as it is, to which nothing flows back."""
    return mx.stop_gradient(leaf)


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under mx.compile."""
    return mx.compile(function)


# --- states, and to NumPy and back -----------------------------------------------------------------------------------


@_on_cpu
def stored(value: Any, dtype: str, beside: mx.array) -> mx.array:
    """An array of a dtype."""
    return vectors.float64(value).astype(getattr(mx, "bool_" if dtype == "bool" else dtype))


def from_numpy(array: Any) -> mx.array:
    """An array of the same dtype."""
    array = np.asarray(array)
    if array.dtype == np.complex128:
        raise TypeError("MLX has no complex128: cast the array to complex64")
    return mx.array(array, dtype=mx.float64) if array.dtype == np.float64 else mx.array(array)


def placed(array: Any, like: mx.array) -> mx.array:
    """The same: MLX's arrays lie in memory that all devices share."""
    return from_numpy(array)


def to_numpy(leaf: mx.array) -> Any:
    """A copy; ml_dtypes' bfloat16 for bfloat16."""
    if leaf.dtype == mx.bfloat16:
        import ml_dtypes

        return np.array(leaf.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(leaf)


register(sys.modules[__name__])
