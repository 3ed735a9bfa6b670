"""JAX's fast paths: lists go through one jitted function.

Eager JAX pays one dispatch for a tree so, and gets what it gets under `jax.jit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes
from gradxform.numerics import dtype_name, elementwise, matrices, rescale, sums, sums_dtype
from gradxform_jax import _each, _norms, _private, _ranking
from gradxform_jax._each import Each, Norms
from gradxform_jax._namespace import Namespace, barrier
from gradxform_jax._parts import in_parts
from gradxform_jax.plain import Plain, weak_as

_OPTAX = "optax.clip_by_global_norm"


class JAX(Plain):
    """JAX, one jitted function a kernel."""

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """The leaves' norms: a vector, or separate numbers of many leaves."""
        with self.scope():
            if len(leaves) >= _each.MANY or _each.vary_differently(leaves):
                return Norms(leaves, ord)
            return _norms.vector(tuple(leaves), ord)

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float) -> Any:
        """Norms over some axes, in float64, the axes kept as ones."""
        ((leaf,), (over,)) = leaves, axes
        with self.scope():
            return _norm_over(leaf, tuple(axis % leaf.ndim for axis in over), ord)

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes."""
        with self.scope():
            return _sum_over(leaf, axes, weights)

    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor, in float32 at least."""
        with self.scope():
            return _with_factors(_multiplied, list(leaves), _as_factors(factors))

    def multiply_over(self, leaves: Sequence[Any], axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[Any]:
        """One leaf times a float64 array that broadcasts against it."""
        with self.scope():
            return [_times(leaf, factors) for leaf in leaves]

    def divide(self, function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
        """Each leaf divided by its divisor; for optax in eager as XLA does, which takes the inverse."""
        with self.scope():
            divisors = list(map(Namespace.float64, divisors))
            if function != _OPTAX or any(isinstance(array, jax.core.Tracer) for array in (*leaves, *divisors)):
                return _divide(list(leaves), divisors)
            return [
                weak_as(leaf, leaf / lax.convert_element_type(divisor, leaf.real.dtype))
                for leaf, divisor in zip(leaves, divisors, strict=True)
            ]

    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """min(max(factor * leaf, low), high)."""
        with self.scope():
            bounds = [None if bound is None else Namespace.float64(bound) for bound in (low, high)]
            known = all(bound is None or isinstance(bound, (int, float)) for bound in (low, high))
            by = None if factors is None else _as_factors(factors)
            return _with_factors(lambda some, own: _clip(some, known, *bounds, own), list(leaves), by)

    def elementwise(
        self,
        formula: elementwise.Formula,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements."""
        with self.scope():
            given = [list(column) for column in columns]
            each_factor = [None] * len(given[0]) if factors is None else list(map(Namespace.float64, factors))
            function, others = (
                _elementwise(formula, tuple(sorted(static.items()))),
                list(map(Namespace.float64, numbers)),
            )
            return in_parts(lambda own, *some: function(list(some), others, own), each_factor, *given)

    def each(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        out: Sequence[Any] | None = None,
    ) -> list[Any]:
        """A formula of each leaf's elements, in its own dtype."""
        with self.scope():
            function, others = _of_each(formula), list(map(Namespace.float64, numbers))
            found = in_parts(lambda *some: function(list(some), others), *map(list, columns))
            return list(map(weak_as, columns[0], found))

    def of_matrices(
        self,
        formula: Callable[..., Any],
        leaves: Sequence[Any],
        sides: Sequence[matrices.Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's matrices."""
        with self.scope():
            return _of_matrices(formula, tuple(sides), dtype, tuple(sorted(static.items())))(list(leaves))

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf."""
        with self.scope():
            return list(map(weak_as, leaves, _ranking.largest(list(leaves), list(counts))))

    def stored(self, value: Any, dtype: str, like: Any) -> Any:
        """An array of a dtype."""
        with self.scope():
            return super().stored(value.vector if isinstance(value, Each) else value, dtype, like)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """A formula, as one jitted function of its operands."""
        with self.scope():
            if any(isinstance(operand, Each) for operand in operands):
                found = _each.compute(formula, operands, static)
                if found is not None:
                    return found
                operands = tuple(operand.vector if isinstance(operand, Each) else operand for operand in operands)
            given = list(map(Namespace.float64, operands))
            traced = any(isinstance(number, jax.core.Tracer) for number in static.get("counts", ()))  # symbolic shapes
            if traced or "<locals>" in getattr(formula, "__qualname__", ""):  # made anew for each call, else compiled
                return formula(Namespace, *given, **static)
            return _compiled(formula, **static)(*given)

    def peer_norm(self, function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
        """The norm as optax computes it, in the user's own precision."""
        if function != _OPTAX:
            return None
        import optax

        wide = jnp.result_type(float) == np.float64 or _norms.has_double(leaves)
        with jax.enable_x64(wide):
            # Behind the barrier, else XLA fuses it with the right norm.
            norm = optax.tree.norm(barrier(list(leaves)))
        with self.scope():
            return lax.convert_element_type(norm, np.float64)


# --- norms and sums --------------------------------------------------------------------------------------------------


# Behind a barrier, else XLA shares the wider elements with what is made of norms and sums, and writes them to memory.


@functools.partial(jax.jit, static_argnums=(1, 2))
def _norm_over(leaf: Any, axes: tuple[int, ...], ord: float) -> Any:
    return _norms.norm((barrier(leaf),), axes, ord)


@functools.partial(jax.jit, static_argnums=1)
def _sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    return sums.sum_over(Namespace, barrier(leaf), axes, weights)


# --- products, quotients and clips -----------------------------------------------------------------------------------


def _as_factors(factors: Any) -> Any:
    """A number, a vector or a tuple of numbers in float64."""
    return tuple(map(Namespace.float64, factors.numbers)) if isinstance(factors, Each) else Namespace.float64(factors)


def _with_factors(kernel: Callable[..., list[Any]], leaves: list[Any], factors: Any) -> list[Any]:
    """Call a kernel for some leaves at a time; for all at once if the factors are a vector, each slice a new array."""
    if isinstance(factors, tuple):
        return in_parts(kernel, leaves, factors)
    if getattr(factors, "ndim", 0) or isinstance(factors, jax.core.Tracer):
        return kernel(leaves, factors)
    return in_parts(lambda some: kernel(some, factors), leaves)


@jax.jit
def _multiplied(leaves: list[Any], factors: Any) -> list[Any]:
    if isinstance(factors, tuple):
        return list(map(_multiply, leaves, map(_factor, factors)))
    if factors.ndim == 0:
        return list(map(_multiply, leaves, [_factor(factors)] * len(leaves)))
    return [_multiply(leaf, _factor(factors[i])) for i, leaf in enumerate(leaves)]


@jax.jit
def _times(leaf: Any, factor: Any) -> Any:
    return _multiply(leaf, _factor(factor))


class Factor(NamedTuple):
    """A factor in float64, and two float32 numbers whose product it is, as in `rescale.in_steps`."""

    whole: Any
    near: Any
    far: Any
    is_one: Any


@jax.jit  # leaves of one shape are traced once
def _multiply(leaf: Any, by: Factor) -> Any:
    scaled = rescale.by_parts(Namespace, lambda part: lax.convert_element_type(_product(part, by), part.dtype), leaf)
    choose = lax.select if by.is_one.ndim == 0 else jnp.where
    return weak_as(leaf, choose(by.is_one, leaf, scaled))


def _product(x: Any, by: Factor) -> Any:
    """A real array times a factor, in the dtype of sums."""
    if x.dtype == np.float64:
        return x * by.whole
    return lax.convert_element_type(x, np.float32) * by.near * by.far


@jax.jit
def _factor(factor: Any) -> Factor:
    size = lax.abs(factor)
    near = lax.clamp(rescale.LEAST, size, rescale.MOST)
    far = lax.div(size, near)
    usual = lax.bitwise_and(lax.gt(size, 0.0), lax.is_finite(size))
    far = lax.mul(lax.select(usual, lax.clamp(rescale.LEAST, far, rescale.MOST), far), lax.sign(factor))
    near, far = (lax.convert_element_type(step, np.float32) for step in (near, far))
    # Without the barrier, XLA would join the steps of a known factor to one, out of float32's range.
    return barrier(Factor(factor, near, far, lax.eq(factor, 1.0)))


@jax.jit
def _divide(leaves: list[Any], divisors: list[Any]) -> list[Any]:
    return [_quotient(leaf, by) for leaf, by in zip(leaves, divisors, strict=True)]


def _quotient(leaf: Any, divisor: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return lax.complex(_quotient(leaf.real, divisor), _quotient(leaf.imag, divisor))
    if leaf.dtype == np.float64:
        divisor = barrier(jnp.broadcast_to(divisor, leaf.shape))
    # XLA may divide by multiplying with the inverse, which in float64 rounds to the same narrower number.
    quotient = lax.convert_element_type(leaf, np.float64) / divisor
    return weak_as(leaf, lax.convert_element_type(quotient, leaf.dtype))


@functools.partial(jax.jit, static_argnums=1)
def _clip(leaves: list[Any], known: bool, low: Any, high: Any, factors: Any) -> list[Any]:
    scaled = leaves
    if factors is not None:
        scaled = _multiplied([rescale.in_single(Namespace, leaf) for leaf in leaves], factors)
    return [_between(new, dtype_name(old), known, low, high) for new, old in zip(scaled, leaves, strict=True)]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _between(leaf: Any, dtype: str, known: bool, low: Any, high: Any) -> Any:
    return weak_as(leaf, rescale.between(Namespace, leaf, dtype, low, high, known=known))


# --- formulas --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _compiled(formula: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    return jax.jit(lambda *operands: formula(Namespace, *operands, **static))


@functools.lru_cache(maxsize=1024)
def _elementwise(formula: elementwise.Formula, static: tuple[tuple[str, Any], ...]) -> Callable[..., list[Any]]:
    @jax.jit  # leaves of one shape are traced once
    def one(column: list[Any], numbers: list[Any], by: Factor | None) -> Any:
        if by is not None:
            column = [rescale.by_parts(Namespace, lambda part: _product(part, by), column[0]), *column[1:]]
        return elementwise.of_leaf(formula, Namespace, column, numbers, None, dict(static))

    def whole(columns: list[list[Any]], numbers: list[Any], factors: list[Any]) -> list[Any]:
        rows = zip(*columns, strict=True)
        if isinstance(formula, elementwise.Combination):
            first, *others = [_weight(weight) for weight in formula.weights(Namespace, *numbers)]
            firsts = [first if by is None else _factor(by if first is None else by * first.whole) for by in factors]
            return [_combined(row, (own, *others)) for row, own in zip(rows, firsts, strict=True)]
        return [
            one(list(row), numbers, None if by is None else _factor(by)) for row, by in zip(rows, factors, strict=True)
        ]

    return jax.jit(whole)


def _weight(weight: Any) -> Factor | None:
    """A weight of a combination; None if it is known to be one."""
    return None if isinstance(weight, float) and weight == 1.0 else _factor(Namespace.float64(weight))


@jax.jit
def _combined(elements: Sequence[Any], weights: Sequence[Factor | None]) -> Any:
    dtype = sums_dtype(elements[0])

    def real(*parts: Any) -> Any:
        wide = [Namespace.cast(part, dtype) for part in parts]
        terms = [x if by is None else _product(x, by) for x, by in zip(wide, weights, strict=True)]
        return functools.reduce(lax.add, terms)

    return rescale.by_parts(Namespace, real, *elements)


@functools.lru_cache(maxsize=1024)
def _of_each(formula: Callable[..., Any]) -> Callable[..., list[Any]]:
    def whole(columns: list[list[Any]], numbers: list[Any]) -> list[Any]:
        found = [formula(Namespace, *column, *numbers) for column in zip(*columns, strict=True)]
        return [Namespace.cast(new, dtype_name(leaf)) for new, leaf in zip(found, columns[0], strict=True)]

    return jax.jit(whole)


# --- matrices --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _of_matrices(
    formula: Callable[..., Any], sides: tuple[matrices.Sides, ...], dtype: str | None, static: tuple[Any, ...]
) -> Callable[..., list[Any]]:
    def one(leaf: Any, own: matrices.Sides) -> Any:
        whole = _whole(leaf, (*own[0], *own[1]))
        found = matrices.of_leaf(formula, Namespace, whole, own, dtype, dict(static))
        if whole is not leaf:
            return _reshard(found, jax.typeof(leaf).sharding)
        merged = max(map(len, own)) > 1  # a reshape, after which an Auto mesh would replicate the result
        return _private.sharded_alike(leaf, found) if merged else found

    return jax.jit(lambda leaves: [one(leaf, own) for leaf, own in zip(leaves, sides, strict=True)])


def _whole(leaf: Any, axes: tuple[int, ...]) -> Any:
    """Gather the matrices of a leaf on an Explicit mesh, where products of sharded sides are ambiguous."""
    sharding = jax.typeof(leaf).sharding
    spec = [None if axis in axes else part for axis, part in enumerate(sharding.spec)]
    if tuple(spec) == tuple(sharding.spec):
        return leaf
    return _reshard(leaf, sharding.update(spec=_Spec(*spec)))


_reshard: Callable[..., Any] = jax.sharding.reshard
_Spec: Callable[..., Any] = jax.sharding.PartitionSpec
"""JAX declares no types for them."""


backend = JAX()
register(backend)
