"""JAX's kernels: those of every backend, each compiled as one function.

Eager JAX pays one dispatch for a tree so, and gets what it gets under `jax.jit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes, Backend
from gradxform.numerics import DOUBLE, dtype_name, matrices, rescale
from gradxform.numerics.elementwise import Combination, Formula
from gradxform_jax import _norms, _private, _products, _ranking, _scalars
from gradxform_jax._compiled import compiled, is_traced, strong
from gradxform_jax._namespace import Namespace, barrier
from gradxform_jax._scalars import Scalars
from gradxform_jax.plain import Plain

_OPTAX = "optax.clip_by_global_norm"


class JAX(Plain):
    """JAX, one jitted function a kernel."""

    each = compiled(Backend.each, columns="columns", static=("formula",))

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """The leaves' norms: a vector, or scalars of many leaves."""
        if len(leaves) < _scalars.MANY and not _scalars.differ(leaves):
            return _vector(leaves, ord)
        return Scalars(tuple(_each_norm(leaves, ord)))

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float) -> Any:
        """Norms over some axes, in float64, the axes kept as ones."""
        ((leaf,), (over,)) = leaves, axes
        return _norm_over(leaf, over, ord)

    @functools.partial(compiled, each=("leaves", "factors"))
    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor, in float32 at least."""
        if isinstance(factors, Scalars) or factors.ndim:
            each = [_products.factor(factors[i]) for i in range(len(leaves))]
        else:
            each = [_products.factor(factors)] * len(leaves)
        return list(map(_products.multiplied, leaves, each))

    @functools.partial(compiled, each=("leaves", "factors"))
    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """min(max(factor * leaf, low), high)."""
        scaled = leaves
        if factors is not None:
            scaled = self.multiply([rescale.in_single(Namespace, leaf) for leaf in leaves], factors, inplace)
        return [_between(new, dtype_name(old), low, high) for new, old in zip(scaled, leaves, strict=True)]

    @functools.partial(compiled, static=("axes",))
    def multiply_over(self, leaves: Sequence[Any], axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[Any]:
        """One leaf times a float64 array that broadcasts against it."""
        return [_products.multiplied(leaf, _products.factor(factors)) for leaf in leaves]

    @functools.partial(compiled, static=("axes",))
    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes."""
        # Without the barrier, XLA shares the wider elements with what is made of the sums, and writes them to memory.
        return super().sum_over(barrier(leaf), axes, weights)

    def divide(self, function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
        """Each leaf divided by its divisor; for optax in eager as XLA does, which takes the inverse."""
        if function != _OPTAX or is_traced((leaves, divisors)):
            return _quotients(leaves, divisors)
        with self.scope():
            pairs = zip(leaves, divisors, strict=True)
            return [leaf / lax.convert_element_type(divisor, leaf.real.dtype) for leaf, divisor in pairs]

    def elementwise(
        self,
        formula: Any,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements."""
        return _elementwise(_with(formula, **static), columns, numbers, factors)

    def of_matrices(
        self,
        formula: Callable[..., Any],
        leaves: Sequence[Any],
        sides: Sequence[matrices.Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's matrices."""
        return _of_matrices(_with(formula, **static), leaves, sides, dtype)

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf."""
        with self.scope():
            return list(_ranking.largest(list(leaves), list(counts)))

    def stored(self, value: Any, dtype: str, like: Any) -> Any:
        """An array of a dtype."""
        with self.scope():
            return super().stored(value.vector if isinstance(value, Scalars) else value, dtype, like)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """A formula, as one jitted function of its operands."""
        symbolic = is_traced(list(static.values()))  # sizes in jax.export
        with self.scope():
            operands = tuple(strong(operands))
            if getattr(formula, "by_number", False) and not symbolic and _scalars.are_many(operands, static):
                return _scalars.by_number(formula, operands, static)
            operands = tuple([x.vector if isinstance(x, Scalars) else x for x in operands])
            if symbolic or "<locals>" in getattr(formula, "__qualname__", ""):  # made anew for each call, else compiled
                return super().compute(formula, *operands, **static)
            return _scalars.evaluated(formula, tuple(sorted(static.items())), operands)

    def peer_norm(self, function: str, leaves: Sequence[Any], ord: float, axes: tuple[int, ...] | None) -> Any:
        """The norm as optax computes it, in the user's own precision."""
        if function != _OPTAX:
            return None
        import optax

        wide = jnp.result_type(float) == np.float64 or any(dtype_name(leaf) in DOUBLE for leaf in leaves)
        with jax.enable_x64(wide):
            # Behind the barrier, else XLA fuses it with the right norm.
            norm = optax.tree.norm(barrier(list(leaves)))
        with self.scope():
            return lax.convert_element_type(norm, np.float64)


_norm_over = compiled(_norms.norm, static=("axes", "ord"))


@functools.partial(compiled, each=("leaves",), static=("ord",))
def _each_norm(leaves: Sequence[Any], ord: float) -> list[Any]:
    return [_norm(leaf, ord) for leaf in leaves]


@functools.partial(jax.jit, static_argnums=1)  # leaves of one shape are traced once
def _norm(leaf: Any, ord: float) -> Any:
    return _norms.norm(leaf, None, ord)


@functools.partial(compiled, static=("ord",))
def _vector(leaves: Sequence[Any], ord: float) -> Any:
    return jnp.stack(_each_norm(leaves, ord))


@functools.partial(jax.jit, static_argnums=1)
def _between(leaf: Any, dtype: str, low: Any, high: Any) -> Any:
    bounds = [None if bound is None else Namespace.float64(bound) for bound in (low, high)]
    return rescale.between(Namespace, leaf, dtype, *bounds)


@functools.partial(compiled, each=("leaves", "divisors"))
def _quotients(leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
    return list(map(_quotient, leaves, map(Namespace.float64, divisors)))


@jax.jit
def _quotient(leaf: Any, divisor: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return lax.complex(_quotient(leaf.real, divisor), _quotient(leaf.imag, divisor))
    if leaf.dtype == np.float64:
        divisor = barrier(jnp.broadcast_to(divisor, leaf.shape))
    # XLA may divide by multiplying with the inverse, which in float64 rounds to the same narrower number.
    quotient = lax.convert_element_type(leaf, np.float64) / divisor
    return lax.convert_element_type(quotient, leaf.dtype)


@functools.partial(compiled, each=("factors",), columns="columns", static=("formula",))
def _elementwise(
    formula: Formula, columns: Sequence[Sequence[Any]], numbers: Sequence[Any], factors: Sequence[Any] | None
) -> list[Any]:
    rows = list(zip(*columns, strict=True))
    each = [None] * len(rows) if factors is None else factors
    if not isinstance(formula, Combination):
        by = [None if own is None else _products.factor(own) for own in each]
        return [_products.of_leaf(formula, row, numbers, own) for row, own in zip(rows, by, strict=True)]
    first, *others = _products.weights(formula, numbers)
    by = [first if own is None else _products.factor(own if first is None else own * first.whole) for own in each]
    return [_products.combined(row, (own, *others)) for row, own in zip(rows, by, strict=True)]


@functools.lru_cache(maxsize=1024, typed=True)
def _with(formula: Any, **static: Any) -> Any:
    """Return the same function for the same formula and keywords, so that it compiles once."""
    return functools.partial(formula, **static) if static else formula


# --- matrices --------------------------------------------------------------------------------------------------------


@functools.partial(compiled, each=("leaves", "sides"), static=("formula", "sides", "dtype"))
def _of_matrices(
    formula: Callable[..., Any], leaves: Sequence[Any], sides: Sequence[matrices.Sides], dtype: str | None
) -> list[Any]:
    return [_of_leaf(formula, leaf, own, dtype) for leaf, own in zip(leaves, sides, strict=True)]


def _of_leaf(formula: Callable[..., Any], leaf: Any, sides: matrices.Sides, dtype: str | None) -> Any:
    rows, columns = sides
    sharding = jax.typeof(leaf).sharding
    # On an Explicit mesh, products of sharded sides are ambiguous, so the matrices of a leaf are gathered.
    spec = [None if axis in (*rows, *columns) else part for axis, part in enumerate(sharding.spec)]
    if spec != list(sharding.spec):
        whole = _reshard(leaf, sharding.update(spec=_Spec(*spec)))
        return _reshard(matrices.of_leaf(formula, Namespace, whole, sides, dtype, {}), sharding)
    found = matrices.of_leaf(formula, Namespace, leaf, sides, dtype, {})
    merged = max(len(rows), len(columns)) > 1  # a reshape, after which an Auto mesh would replicate the result
    return _private.sharded_alike(leaf, found) if merged else found


_reshard: Callable[..., Any] = jax.sharding.reshard
_Spec: Callable[..., Any] = jax.sharding.PartitionSpec
"""JAX declares no types for them."""


backend = JAX()
register(backend)
