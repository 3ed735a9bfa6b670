"""The primitives on JAX arrays.

Norms and factors are float64 whether the user switched 64 bits on or not: `jax.enable_x64` is entered for the
library's own operations alone, and float32 comes out. Lists go through one jitted function, so that eager JAX pays one
dispatch for a tree and gets what it gets under `jax.jit`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import convert_element_type_p

from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate
from gradxform_jax import _backward, _each, _elements
from gradxform_jax._each import Each, Norms
from gradxform_jax._norms import norm
from gradxform_jax._norms import norms as _norms_of
from gradxform_jax._scalars import Namespace

name: str = "jax"
types: tuple[type, ...] = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)

_OPTAX = "optax.clip_by_global_norm"
_HALVES = ((2.0**-190, 2.0**-126), (2.0**-100, 2.0**-64))
"""Below the first number, a factor is applied in two steps, of which the first is this power of two."""


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with 64-bit types on; they do not leave it but as vectors."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return inside


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure, by jax.tree_util; None is a leaf here, so that it has a path."""
    return jax.tree_util.tree_flatten(tree, is_leaf=_is_none)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree again."""
    return jax.tree_util.tree_unflatten(structure, leaves)


def paths(tree: Any) -> list[str]:
    """One path a leaf. The value of a variable of Flax NNX has the path of the variable."""
    variables = _nnx_variables()
    found = []
    for path, node in jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda x: x is None or isinstance(x, variables)
    ):
        if isinstance(node, variables):
            inside = jax.tree_util.tree_leaves_with_path(node, is_leaf=_is_none)
            found += [(*path, *keys[1:]) for keys, _ in inside]
        else:
            found.append(path)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in found]


def _nnx_variables() -> tuple[type, ...]:
    """The types of the nodes that hold one value, if the user has imported them."""
    names = vars(sys.modules.get("flax.nnx", object))
    return tuple(names[name] for name in ("Variable", "VariableState") if name in names)


def _is_none(node: Any) -> bool:
    return node is None


def adopt(leaf: Any) -> Any:
    """As jax.numpy adopts NumPy arrays and Python numbers; float0 stays NumPy's."""
    return leaf if getattr(leaf, "dtype", None) == jax.dtypes.float0 else jnp.asarray(leaf)


def dtype(leaf: Any) -> str:
    """The name of the dtype."""
    return "float0" if leaf.dtype == jax.dtypes.float0 else str(leaf.dtype)


def shape(leaf: Any) -> tuple[int, ...]:
    """The shape."""
    return tuple(leaf.shape)


def dense(leaves: Sequence[Any]) -> tuple[Sequence[Any], None]:
    """JAX's gradients are dense."""
    return leaves, None


def densify(leaf: Any) -> Any:
    """JAX's gradients are dense."""
    return leaf


@_wide
def norms(leaves: Sequence[Any], ord: float) -> Any:
    """The vector of the leaves' norms."""
    if ord == 2 and len(leaves) >= _each.MANY and not any(leaf.dtype in (np.float64, np.complex128) for leaf in leaves):
        return Norms(leaves)
    return _norms(list(leaves), ord=ord)


@functools.partial(jax.jit, static_argnames="ord")
def _norms(leaves: list[Any], ord: float) -> Any:
    return _norms_of(leaves, ord)


@_wide
def norm_over(leaf: Any, axes: tuple[int, ...], ord: float) -> Any:
    """Norms over some axes, in float64, the axes kept as ones."""
    found = jax.jit(norm, static_argnums=(1, 2))(leaf, tuple(axis % leaf.ndim for axis in axes), ord)
    return found if leaf.dtype in (np.float64, np.complex128) else found.high


@_wide
def multiply(leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
    """Each leaf times its factor."""
    return _multiplied(list(leaves), _as_factors(factors))


def _as_factors(factors: Any) -> Any:
    """A number, a vector or a tuple of numbers in float64."""
    return tuple(map(_as_operand, factors.numbers)) if isinstance(factors, Each) else _as_operand(factors)


@jax.jit
def _multiplied(leaves: list[Any], factors: Any) -> list[Any]:
    if isinstance(factors, tuple):
        return [_multiply_one(leaf, factor) for leaf, factor in zip(leaves, factors, strict=True)]
    return _multiply(leaves, factors)


@jax.jit
def _multiply_one(leaf: Any, factor: Any) -> Any:
    return _multiply([leaf], factor)[0]


def _multiply(leaves: list[Any], factors: Any) -> list[Any]:
    # Behind the barrier, XLA makes these numbers once and not in every leaf's loop, nor one constant of a pair's two.
    halves = lax.optimization_barrier(_halves(factors))  # type: ignore[no-untyped-call]
    untouched = lax.optimization_barrier(factors == 1)  # type: ignore[no-untyped-call]
    each = zip(leaves, *(_places(part, len(leaves)) for part in (factors, *halves, untouched)), strict=True)
    return [_times(leaf, *numbers) for leaf, *numbers in each]


def _places(numbers: Any, count: int) -> list[Any]:
    return [numbers] * count if numbers.ndim == 0 else [numbers[i] for i in range(count)]


def _halves(factor: Any) -> tuple[Any, Any]:
    """Two float32 numbers whose product is a factor that float32 may not hold."""
    coarse = jnp.asarray(1.0)
    for below, power in reversed(_HALVES):
        coarse = jnp.where(jnp.abs(factor) < below, power, jnp.where(jnp.abs(factor) > 1 / below, 1 / power, coarse))
    return lax.convert_element_type(coarse, np.float32), lax.convert_element_type(factor / coarse, np.float32)


def _times(leaf: Any, factor: Any, coarse: Any, fine: Any, untouched: Any) -> Any:
    """A leaf times float64 factors, by its real and imaginary parts; where a factor is one, the leaf's own bits."""

    def scaled(part: Any) -> Any:
        if part.dtype == np.float64:
            return part * factor
        return lax.convert_element_type(lax.convert_element_type(part, np.float32) * coarse * fine, part.dtype)

    is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    product = lax.complex(scaled(leaf.real), scaled(leaf.imag)) if is_complex else scaled(leaf)
    return _weak_as(leaf, jnp.where(untouched, leaf, product))


def _weak_as(leaf: Any, result: Any) -> Any:
    """A result of the leaf's weak type."""
    weak = bool(getattr(leaf, "weak_type", False))
    if weak == bool(getattr(result, "weak_type", False)):
        return result
    return convert_element_type_p.bind(result, new_dtype=result.dtype, weak_type=weak, sharding=None)


@_wide
def multiply_over(leaf: Any, factor: Any, inplace: bool) -> Any:
    """One leaf times a float64 array that broadcasts against it."""
    return jax.jit(_times_over)(leaf, factor)


def _times_over(leaf: Any, factor: Any) -> Any:
    return _times(leaf, factor, *_halves(factor), factor == 1)


@_wide
def divide(function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
    """Each leaf divided by its divisor, in its own dtype; for optax in eager as XLA does, which takes the inverse."""
    divisors = list(map(_as_operand, divisors))
    if function != _OPTAX or any(isinstance(array, jax.core.Tracer) for array in (*leaves, *divisors)):
        return _divide(list(leaves), divisors)
    return [
        _weak_as(leaf, leaf / lax.convert_element_type(divisor, leaf.real.dtype))
        for leaf, divisor in zip(leaves, divisors, strict=True)
    ]


@jax.jit
def _divide(leaves: list[Any], divisors: list[Any]) -> list[Any]:
    return [_quotient(leaf, by) for leaf, by in zip(leaves, divisors, strict=True)]


def _quotient(leaf: Any, divisor: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return lax.complex(_quotient(leaf.real, divisor), _quotient(leaf.imag, divisor))
    if leaf.dtype == np.float64:
        divisor = lax.optimization_barrier(jnp.broadcast_to(divisor, leaf.shape))  # type: ignore[no-untyped-call]
    # XLA may divide by multiplying with the inverse, which in float64 rounds to the same narrower number.
    quotient = lax.convert_element_type(leaf, np.float64) / divisor
    return _weak_as(leaf, lax.convert_element_type(quotient, leaf.dtype))


def peer_norm(function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
    """The norm as optax computes it, in the user's own precision."""
    if function != _OPTAX:
        return None
    import optax

    wide = jnp.result_type(float) == np.float64 or any(leaf.dtype in (np.float64, np.complex128) for leaf in leaves)
    with jax.enable_x64(wide):
        norm = optax.tree.norm(lax.optimization_barrier(list(leaves)))  # type: ignore[no-untyped-call]  # else XLA fuses it with the right norm
    with jax.enable_x64(True):
        return lax.convert_element_type(norm, np.float64)


@_wide
def clip(leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
    """min(max(factor * leaf, low), high)."""
    bounds = (None if bound is None else _as_operand(bound) for bound in (low, high))
    return _clip(list(leaves), *bounds, None if factors is None else _as_factors(factors))


@jax.jit
def _clip(leaves: list[Any], low: Any, high: Any, factors: Any) -> list[Any]:
    scaled = leaves if factors is None else _multiplied([_widened(leaf) for leaf in leaves], factors)
    return [_between(new, old.dtype, low, high) for new, old in zip(scaled, leaves, strict=True)]


def _widened(leaf: Any) -> Any:
    return lax.convert_element_type(leaf, np.float32) if leaf.dtype.itemsize == 2 else leaf


def _between(leaf: Any, dtype_: Any, low: Any, high: Any) -> Any:
    """Between two bounds by comparison, since XLA's max and min may drop a NaN."""
    for bound, beyond in ((low, jnp.less), (high, jnp.greater)):
        if bound is not None:
            own = lax.convert_element_type(lax.convert_element_type(bound, dtype_), leaf.dtype)
            leaf = _weak_as(leaf, jnp.where(beyond(leaf, own) | (own != own), own, leaf))
    return leaf


@_wide
def elementwise(
    formula: Callable[..., Any],
    columns: Sequence[Sequence[Any]],
    numbers: Sequence[Any],
    factors: Sequence[Any] | None = None,
    **static: Any,
) -> list[Any]:
    """A formula of each leaf's elements, computed wide and rounded once."""
    given = [list(column) for column in columns]
    each_factor = [None] * len(given[0]) if factors is None else list(map(_as_operand, factors))
    function = _elements.elementwise(formula, tuple(sorted(static.items())))
    return function(given, list(map(_as_operand, numbers)), each_factor)


@_wide
def each(formula: Callable[..., Any], columns: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> list[Any]:
    """A formula of each leaf's elements, in its own dtype."""
    found = _elements.each(formula)([list(column) for column in columns], list(map(_as_operand, numbers)))
    return list(map(_weak_as, columns[0], found))


def alongside(arrays: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
    """The arrays as they are."""
    return arrays


@_wide
def sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes, in float64, the axes kept as ones."""
    return _elements.sum_over(leaf, axes, weights)


@_wide
def count(leaf: Any, axes: tuple[int, ...] | None) -> Any:
    """The number of elements; an array where the shape is symbolic, as `jax.export` has them."""
    size = leaf.size if axes is None else np.prod([leaf.shape[axis] for axis in axes])
    if isinstance(size, (int, float, np.number)):
        return float(size)
    return lax.convert_element_type(jnp.asarray(size), np.float64)


def copied(leaves: Sequence[Any]) -> list[Any]:
    """JAX's arrays are not written to."""
    return list(leaves)


@_wide
def stored(value: Any, dtype: str, beside: Any) -> Any:
    """An array of a dtype."""
    value = value.vector if isinstance(value, Each) else value
    return lax.convert_element_type(jnp.asarray(value), np.dtype(dtype))


def namespace() -> ModuleType:
    """jax.numpy."""
    return jnp


def cast(leaf: Any, like: Any) -> Any:
    """A leaf rounded to the dtype of another."""
    return _weak_as(like, lax.convert_element_type(leaf, like.dtype))


def zeros(leaves: Sequence[Any]) -> list[Any]:
    """Fresh zeros."""
    return [jnp.zeros_like(leaf) for leaf in leaves]


@_wide
def compute(formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
    """A formula, as one jitted function of its operands."""
    if any(isinstance(operand, Each) for operand in operands):
        found = _each.compute(formula, operands, static)
        if found is not None:
            return found
        operands = tuple(operand.vector if isinstance(operand, Each) else operand for operand in operands)
    given = list(map(_as_operand, operands))
    traced = any(isinstance(number, jax.core.Tracer) for number in static.get("counts", ()))  # of symbolic shapes
    if traced or "<locals>" in getattr(formula, "__qualname__", ""):  # made anew for each call, and compiled as often
        return evaluate(formula, Namespace, given, static)
    return _compiled(formula, **static)(*given)


@functools.lru_cache(maxsize=1024)
def _compiled(formula: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    return jax.jit(lambda *operands: evaluate(formula, Namespace, operands, static))


def _as_operand(operand: Any) -> Any:
    """A number or an array in float64; a pair of them as it is."""
    return operand if isinstance(operand, Pair) else lax.convert_element_type(operand, np.float64)


def on_backward(leaves: Sequence[Any], numbers: Sequence[Any], function: Callable[..., Any]) -> list[Any]:
    """The leaves as they are, with a backward pass of one's own."""
    return _backward.on_backward(leaves, numbers, function)


def stop_gradient(leaf: Any) -> Any:
    """The leaf as it is, to which nothing flows back."""
    return lax.stop_gradient(leaf)


def straight_through(values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """The values; what flows back to them flows to the leaves."""
    return _backward.straight_through(values, leaves)


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under jax.jit."""
    return jax.jit(function)


def from_numpy(array: Any) -> Any:
    """A JAX array; of 64 bits too, whether they are on or not."""
    with jax.enable_x64(True):
        return jnp.asarray(array)


def placed(array: Any, like: Any) -> Any:
    """A JAX array on the devices of another, if it has been put there."""
    with jax.enable_x64(True):
        committed = isinstance(like, jax.Array) and getattr(like, "committed", False)
        return jax.device_put(array, like.sharding) if committed else jnp.array(array)


def to_numpy(leaf: Any) -> Any:
    """A NumPy array."""
    return np.asarray(leaf)


def _register() -> None:
    from gradxform.backend.lookup import register

    register(sys.modules[__name__])


_register()
