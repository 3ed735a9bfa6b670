"""JAX's kernels: those of every backend, each compiled as one function.

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
from gradxform.backend.protocol import Axes, Backend
from gradxform.numerics import DOUBLE, dtype_name, elementwise, matrices, ranking, rescale, sums_dtype
from gradxform.numerics.elementwise import Combination, Formula
from gradxform_jax import _private
from gradxform_jax.backend import Plain
from gradxform_jax.compiled import MANY, Scalars, are_many, by_number, compiled, differ, evaluated, is_traced, strong
from gradxform_jax.namespace import Namespace, barrier
from gradxform_jax.norms import norm

_OPTAX = "optax.clip_by_global_norm"


class JAX(Plain):
    """JAX, one jitted function a kernel."""

    each = compiled(Backend.each, columns="columns", static=("formula",))

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """The leaves' norms: a vector, or scalars of many leaves."""
        if len(leaves) < MANY and not differ(leaves):
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
            each = [_factor(factors[i]) for i in range(len(leaves))]
        else:
            each = [_factor(factors)] * len(leaves)
        return list(map(_multiplied, leaves, each))

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
        return [_multiplied(leaf, _factor(factors)) for leaf in leaves]

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
            return list(_largest(list(leaves), list(counts)))

    def stored(self, value: Any, dtype: str, like: Any) -> Any:
        """An array of a dtype."""
        with self.scope():
            return super().stored(value.vector if isinstance(value, Scalars) else value, dtype, like)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """A formula, as one jitted function of its operands."""
        symbolic = is_traced(list(static.values()))  # sizes in jax.export
        with self.scope():
            operands = tuple(strong(operands))
            if getattr(formula, "by_number", False) and not symbolic and are_many(operands, static):
                return by_number(formula, operands, static)
            operands = tuple([x.vector if isinstance(x, Scalars) else x for x in operands])
            if symbolic or "<locals>" in getattr(formula, "__qualname__", ""):  # made anew for each call, else compiled
                return super().compute(formula, *operands, **static)
            return evaluated(formula, tuple(sorted(static.items())), operands)

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


_norm_over = compiled(norm, static=("axes", "ord"))


@functools.partial(compiled, each=("leaves",), static=("ord",))
def _each_norm(leaves: Sequence[Any], ord: float) -> list[Any]:
    return [_norm(leaf, ord) for leaf in leaves]


@functools.partial(jax.jit, static_argnums=1)  # leaves of one shape are traced once
def _norm(leaf: Any, ord: float) -> Any:
    return norm(leaf, None, ord)


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
        by = [None if own is None else _factor(own) for own in each]
        return [_applied(formula, row, numbers, own) for row, own in zip(rows, by, strict=True)]
    first, *others = _weights(formula, numbers)
    by = [first if own is None else _factor(own if first is None else own * first.whole) for own in each]
    return [_combined(row, (own, *others)) for row, own in zip(rows, by, strict=True)]


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


# --- products and sums of products -----------------------------------------------------------------------------------
# In float32 at least; each factor is split into steps once, for all leaves.


class _Factor(NamedTuple):
    """A factor in float64, and two float32 numbers whose product it is, as in `rescale.in_steps`."""

    whole: Any
    near: Any
    far: Any
    is_one: Any

    def times(self, x: Any) -> Any:
        """Multiply a real array, in the dtype of sums."""
        if x.dtype == np.float64:
            return x * self.whole
        return lax.convert_element_type(x, np.float32) * self.near * self.far


@jax.jit
def _factor(number: Any) -> _Factor:
    """Split a number or an array."""
    whole = Namespace.float64(number)
    size = lax.abs(whole)
    near = lax.clamp(rescale.LEAST, size, rescale.MOST)
    far = size / near
    usual = (size > 0.0) & lax.is_finite(size)
    far = lax.select(usual, lax.clamp(rescale.LEAST, far, rescale.MOST), far) * lax.sign(whole)
    near, far = (lax.convert_element_type(step, np.float32) for step in (near, far))
    # Without the barrier, XLA would join the steps of a known factor to one, out of float32's range.
    return barrier(_Factor(whole, near, far, whole == 1.0))


@jax.jit  # leaves of one shape are traced once
def _multiplied(leaf: Any, by: _Factor) -> Any:
    """Multiply a leaf, rounded once; a factor of one changes nothing."""
    scaled = rescale.by_parts(Namespace, lambda part: lax.convert_element_type(by.times(part), part.dtype), leaf)
    return _unless(by.is_one, leaf, scaled)


@jax.custom_jvp
def _unless(is_one: Any, leaf: Any, product: Any) -> Any:
    """Select the leaf, since XLA flushes small numbers in a product with one; the derivative is the product's."""
    return (lax.select if is_one.ndim == 0 else jnp.where)(is_one, leaf, product)


@_unless.defjvp
def _unless_jvp(primals: Any, tangents: Any) -> Any:
    return _unless(*primals), tangents[2]


@functools.partial(jax.jit, static_argnums=0)
def _applied(formula: Any, elements: Sequence[Any], numbers: Sequence[Any], by: _Factor | None) -> Any:
    """Apply an elementwise formula to a leaf times a factor, and other arrays."""
    first, *others = elements
    if by is not None:
        first = rescale.by_parts(Namespace, by.times, first)
    return elementwise.of_leaf(formula, Namespace, [first, *others], numbers, None, {})


def _weights(formula: elementwise.Combination, numbers: Sequence[Any]) -> list[_Factor | None]:
    """Return the weights of a combination; None for one that is known to be one."""
    found = formula.weights(Namespace, *map(Namespace.float64, numbers))
    return [None if isinstance(weight, float) and weight == 1.0 else _factor(weight) for weight in found]


@jax.jit
def _combined(elements: Sequence[Any], by: Sequence[_Factor | None]) -> Any:
    """Add up products of elements and weights."""
    dtype = sums_dtype(elements[0])

    def real(*parts: Any) -> Any:
        wide = [Namespace.cast(part, dtype) for part in parts]
        return functools.reduce(lax.add, [x if w is None else w.times(x) for x, w in zip(wide, by, strict=True)])

    return rescale.by_parts(Namespace, real, *elements)


# --- the largest elements --------------------------------------------------------------------------------------------
# By counting, in one loop for all leaves of a width: a sort would gather sharded arrays, and takes longer on a CPU.


@jax.jit
def _largest(leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Keep so many elements of each leaf."""
    limits = dict[int, Any]()
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        some = [leaves[i] for i in places], [counts[i] for i in places]
        limits.update(zip(places, _limits(np.dtype(f"int{8 * dtype.itemsize}"), *some), strict=True))
    return [
        ranking.kept(Namespace, leaf, ranking.in_order(Namespace, leaf), limits[i]) for i, leaf in enumerate(leaves)
    ]


def _limits(whole: Any, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
    """Find the integer of a rank in each leaf of one dtype."""
    top = 8 * whole.itemsize - 2

    def step(i: Any, found: Sequence[Any]) -> list[Any]:
        bit = lax.shift_left(whole.type(1), lax.convert_element_type(top - i, whole))
        # Without the barrier, XLA would write the sizes of all elements before the loop.
        given = [barrier((leaf, i))[0] for leaf in leaves]
        return ranking.with_bit(Namespace, bit, found, counts, lambda least: list(map(_reaching, given, least)))

    first = step(0, [whole.type(0)] * len(leaves))  # in shard_map, found numbers vary over devices as leaves do
    return list(lax.fori_loop(1, top + 1, step, first))


def _reaching(leaf: Any, least: Any) -> Any:
    small = isinstance(leaf.size, int) and leaf.size < 2**31  # it may be symbolic
    return jnp.sum(ranking.in_order(Namespace, leaf) >= least, dtype=np.int32 if small else np.int64)


backend = JAX()
register(backend)
