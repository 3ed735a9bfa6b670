"""JAX's kernels: those of every backend, each compiled as one function.

Eager JAX pays one dispatch for a tree so, and gets what it gets under `jax.jit`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes, Backend, Columns, Given, Row, places_of
from gradxform.core.leaves import put
from gradxform.numerics import DOUBLE, dtype_name, elementwise, formulas, matrices, ranking
from gradxform.numerics.elementwise import Formula, weighted
from gradxform.numerics.matrices import Sides
from gradxform_jax import private
from gradxform_jax.backend import Plain
from gradxform_jax.compiled import Scalars, by_number, compiled, evaluated, is_traced, scalars, strong
from gradxform_jax.namespace import Namespace, barrier
from gradxform_jax.norms import norm

_OPTAX = "optax.clip_by_global_norm"


_by_leaf = functools.partial(compiled, each=("leaves", "factors"))


class JAX(Plain):
    """JAX, one jitted function a kernel."""

    each = compiled(Backend.each, ("columns",))
    clip = compiled(Backend.clip, ("leaves", "factors"))

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """The leaves' norms, as scalars."""
        return Scalars(tuple(self._each_norm(leaves, ord)))

    @_by_leaf
    def _each_norm(self, leaves: Sequence[Any], ord: float) -> list[Any]:
        return [_norm(leaf, None, ord) for leaf in leaves]

    @compiled
    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float, of: Any = None) -> Any:
        """Norms over some axes, in float64, the axes kept as ones."""
        ((leaf,), (over,)) = leaves, axes
        return norm(leaf, over, ord)

    @_by_leaf
    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor, in float32 at least."""
        each = [_factor(factors[i]) for i in range(len(leaves))] if factors.ndim else [_factor(factors)] * len(leaves)
        return list(map(_multiplied, leaves, each))

    @compiled
    def multiply_over(self, leaves: Sequence[Any], axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[Any]:
        """Leaves times a float64 array that broadcasts against them."""
        return [_multiplied(leaf, _factor(factors)) for leaf in leaves]

    def divide(self, function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
        """Each leaf divided by its divisor; for optax in eager as XLA does, which takes the inverse."""
        if function != _OPTAX or is_traced((leaves, divisors)):
            return self._quotients(leaves, divisors)
        with self.scope():
            pairs = zip(leaves, divisors, strict=True)
            return [leaf / lax.convert_element_type(divisor, leaf.real.dtype) for leaf, divisor in pairs]

    @functools.partial(compiled, each=("leaves", "divisors"))
    def _quotients(self, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
        return list(map(_quotient, leaves, map(Namespace.float64, divisors)))

    @functools.partial(compiled, each=("columns", "factors"))
    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's elements; each weight and factor is split once, for all leaves."""
        rows = list(zip(*columns, strict=True))
        first, *others = map(_factor, numbers) if formula is weighted else [None]
        each = [first] * len(rows)
        if factors is not None:
            each = [_factor(own if first is None else own * numbers[0]) for own in factors]
        by_leaf = zip(rows, each, strict=True)
        if formula is weighted:
            return [weighted(Namespace, row, (own, *others)) for row, own in by_leaf]
        return [elementwise.of_leaf(formula, Namespace, row, numbers, own, static) for row, own in by_leaf]

    @compiled
    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's matrices; on an Explicit mesh, each device computes its own of equal leaves.

        As many leaves as devices shard their matrices, or a multiple, become one stack, which these devices share: one
        all-to-all, and one back. XLA divides products on an Auto mesh.
        """
        out, rows = list(leaves), zip(leaves, sides, strict=True)
        kinds = [(leaf.shape, leaf.dtype, jax.typeof(leaf).sharding, own) for leaf, own in rows]
        for (_, _, sharding, own), places in places_of(kinds).items():
            names = [name for axis in (*own[0], *own[1]) for name in reversed(_names(sharding.spec[axis]))]
            size = math.prod([sharding.mesh.shape[name] for name in names])
            shared = places[: len(places) // size * size if names else 0]
            if shared:
                out = put(out, shared, _shared(formula, [leaves[i] for i in shared], own, names, dtype, static))
            for i in places[len(shared) :]:
                out[i] = _of_leaf(formula, leaves[i], own, dtype, static)
        return out

    @functools.partial(compiled, each=("leaves", "counts"))
    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf.

        By counting, in one loop for all leaves of a width: a sort would gather sharded arrays, and is slower on a CPU.
        """
        limits = dict[int, Any]()
        for dtype, places in places_of([leaf.dtype for leaf in leaves]).items():
            some = [leaves[i] for i in places], [counts[i] for i in places]
            limits.update(zip(places, _limits(np.dtype(f"int{8 * dtype.itemsize}"), *some), strict=True))
        sizes = [ranking.in_order(Namespace, leaf) for leaf in leaves]
        return [ranking.kept(Namespace, leaf, sizes[i], limits[i]) for i, leaf in enumerate(leaves)]

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """A formula, as one jitted function of its operands."""
        symbolic = is_traced(list(static.values()))  # sizes in jax.export
        with self.scope():
            given = strong(operands)
            if formula is formulas.take:
                vector = scalars(given[0]) if isinstance(static["index"], tuple) else given[0]
                if isinstance(vector, Scalars):
                    return vector[static["index"]]
            if symbolic or isinstance(formula, functools.partial):
                return super().compute(formula, *given, **static)
            if getattr(formula, "by_number", False) and any([isinstance(x, Scalars) for x in given]):
                return by_number(formula, list(map(scalars, given)), static)
            return evaluated(formula, tuple(sorted(static.items())), given)

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


_norm = jax.jit(norm, static_argnums=(1, 2))
"""Leaves of one shape are traced once."""


@jax.jit
def _quotient(leaf: Any, divisor: Any) -> Any:
    def real(part: Any) -> Any:
        by = barrier(jnp.broadcast_to(divisor, part.shape)) if part.dtype == np.float64 else divisor
        # XLA may divide by multiplying with the inverse, which in float64 rounds to the same narrower number.
        return lax.convert_element_type(Namespace.float64(part) / by, part.dtype)

    return elementwise.by_parts(Namespace, real, leaf)


# --- matrices --------------------------------------------------------------------------------------------------------


def _of_leaf(formula: Any, leaf: Any, sides: Sides, dtype: str | None, static: dict[str, Any]) -> Any:
    rows, columns = sides
    sharding = jax.typeof(leaf).sharding
    # On an Explicit mesh, products of sharded sides are ambiguous, so the matrices of a leaf are gathered.
    spec = [None if axis in (*rows, *columns) else part for axis, part in enumerate(sharding.spec)]
    if spec != list(sharding.spec):
        whole = _reshard(leaf, sharding.update(spec=_Spec(*spec)))
        return _reshard(matrices.of_leaf(formula, Namespace, whole, sides, dtype, static), sharding)
    found = matrices.of_leaf(formula, Namespace, leaf, sides, dtype, static)
    merged = max(len(rows), len(columns)) > 1  # a reshape, after which an Auto mesh would replicate the result
    return private.sharded_alike(leaf, found) if merged else found


def _names(part: Any) -> tuple[str, ...]:
    """The axes of a mesh that shard an array's axis."""
    return part if isinstance(part, tuple) else () if part is None else (part,)


def _shared(
    formula: Any, leaves: Row, sides: Sides, names: Sequence[str], dtype: str | None, static: dict[str, Any]
) -> list[Any]:
    """A formula of the matrices of equal leaves, which axes of a mesh share."""
    own, sharding = dtype_name(leaves[0]), jax.typeof(leaves[0]).sharding
    rows, columns = [tuple([axis + 1 for axis in side]) for side in sides]
    ways = []
    for count in range(len(names) + 1):  # one by one, the minor ones first, or XLA would gather
        moved = tuple(names[:count])
        rest = [tuple([name for name in _names(part) if name not in moved]) or None for part in sharding.spec]
        ways.append(sharding.update(spec=_Spec(moved or None, *rest)))
    stack = functools.reduce(_reshard, ways, Namespace.cast(jnp.stack(leaves), dtype or own))
    made = matrices.of_leaf(formula, Namespace, stack, (rows, columns), dtype, static)
    return list(Namespace.cast(functools.reduce(_reshard, ways[::-1], made), own))


_reshard: Callable[..., Any] = jax.sharding.reshard
_Spec: Callable[..., Any] = jax.sharding.PartitionSpec
"""JAX declares no types for them."""


# --- products --------------------------------------------------------------------------------------------------------


@jax.jit
def _factor(number: Any) -> elementwise.Factor | None:
    """Split a number or an array as `elementwise.split` does, in fewer operations: two steps: 3e38 leaves 5e-38."""
    if number is None:
        return None
    whole = Namespace.float64(number)
    size = lax.abs(whole)
    near = lax.clamp(elementwise.LEAST, size, elementwise.MOST)
    far, usual = size / near, (size > 0.0) & lax.is_finite(size)
    far = lax.select(usual, lax.clamp(elementwise.LEAST, far, elementwise.MOST), far) * lax.sign(whole)
    steps = [lax.convert_element_type(step, np.float32) for step in (near, far)]
    # Without the barrier, XLA would join the steps of a known factor to one, out of float32's range.
    return barrier(elementwise.Factor(whole, steps))


@jax.jit  # leaves of one shape are traced once
def _multiplied(leaf: Any, factor: elementwise.Factor) -> Any:
    """Multiply a leaf, rounded once; a factor of one changes nothing."""
    return _unless(factor.whole == 1.0, leaf, elementwise.times(Namespace, leaf, factor))


@jax.custom_jvp
def _unless(is_one: Any, leaf: Any, product: Any) -> Any:
    """Select the leaf, since XLA flushes small numbers in a product with one; the derivative is the product's."""
    return (lax.select if is_one.ndim == 0 else jnp.where)(is_one, leaf, product)


@_unless.defjvp
def _unless_jvp(primals: Any, tangents: Any) -> Any:
    return _unless(*primals), tangents[2]


# --- the largest elements --------------------------------------------------------------------------------------------


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
