"""Many norms and factors as separate numbers.

XLA compiles each access to a vector element separately, 25 ms each, but equal computations on separate numbers once.
And shard_map knows of each number whether it is replicated.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import formulas
from gradxform.numerics.norms import safe_root
from gradxform_jax import _norms
from gradxform_jax._namespace import Namespace
from gradxform_jax._parts import folded, in_parts, is_traced

MANY = 32
"""From so many leaves on."""
_SEPARABLE = (
    formulas.clip_coefficient_single,
    formulas.clip_coefficient_double,
    formulas.scaled_norm,
    formulas.product,
    formulas.quotient,
)
"""Formulas that compute each number of the result from the numbers of the same leaf."""
_PER_ELEMENT: dict[Callable[..., Any], Callable[[float], float]] = {
    formulas.per_root: math.sqrt,
    formulas.per_count: float,
}
"""Formulas that divide norms, and by which function of the numbers of elements."""
_TOTALS = (formulas.total_norm, formulas.total_norm_scaled)


class Each:
    """One float64 number per leaf."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = tuple(numbers)

    @property
    def vector(self) -> Any:
        """The numbers as a vector."""
        return _stacked(self.numbers)

    def __jax_array__(self) -> Any:
        """Return the vector for `jnp.asarray`, which users call out of the library's scope."""
        with jax.enable_x64(True):
            return self.vector

    def total(self, active: tuple[bool, ...] | None) -> Any:
        """Return the 2-norm of leaves with these norms."""
        return _total_of(_chosen(self.numbers, active))


class Norms(Each):
    """The norms of leaves; in eager code computed when needed, since a total is faster without them."""

    def __init__(self, leaves: Sequence[Any], ord: float) -> None:
        self.leaves, self.ord = tuple(leaves), ord
        self._numbers: tuple[Any, ...] | None = self._measured() if is_traced(leaves) else None

    @property
    def numbers(self) -> Any:  # type: ignore[override]
        """The norms as separate numbers."""
        if self._numbers is not None:
            return self._numbers
        found = self._measured()
        if not is_traced(found):  # else they belong to a branch of lax.cond
            self._numbers = found
        return found

    def total(self, active: tuple[bool, ...] | None) -> Any:
        """Return the 2-norm of the active leaves, without each leaf's norm."""
        if self.ord != 2 or _norms.has_double(self.leaves):
            return super().total(active)
        return _norms.total(_chosen(self.leaves, active))

    def _measured(self) -> tuple[Any, ...]:
        return tuple(in_parts(lambda some: _separate(tuple(some), self.ord), self.leaves))


def vary_differently(leaves: Sequence[Any]) -> bool:
    """Whether shard_map knows some leaves to be replicated and others not: a vector would lose that."""
    return is_traced(leaves) and len({getattr(jax.typeof(leaf), "vma", None) for leaf in leaves}) > 1


@jax.jit
def _stacked(numbers: tuple[Any, ...]) -> Any:
    return jnp.stack(numbers)


@functools.partial(jax.jit, static_argnums=1)
def _separate(leaves: tuple[Any, ...], ord: float) -> list[Any]:
    return [_norms.alone(leaf, ord) for leaf in leaves]


@jax.jit
def _total_of(norms: tuple[Any, ...]) -> Any:
    """`formulas.total_norm_scaled` of order 2; XLA compiles a sum of many numbers faster than a vector."""
    largest = lax.stop_gradient(folded(jnp.maximum, norms))
    unit = jnp.where((largest > 0.0) & jnp.isfinite(largest), largest, 1.0)
    root = unit * safe_root(Namespace, folded(lax.add, [lax.square(norm / unit) for norm in norms]), 2)
    return jnp.where(jnp.isfinite(largest), root, largest)


def _chosen(items: Sequence[Any], active: tuple[bool, ...] | None) -> tuple[Any, ...]:
    return tuple(items) if active is None else tuple(itertools.compress(items, active))


def compute(formula: Callable[..., Any], operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """Compute a formula on separate numbers; None if it needs vectors."""
    first = operands[0]
    if formula is formulas.take:
        numbers, index = first.numbers, static["index"]
        return numbers[index] if isinstance(index, int) else Each([numbers[i] for i in index])
    if formula in _TOTALS and static["ord"] == 2:
        return first.total(static["active"])
    if formula is formulas.where_active:
        one = lax.full((), 1.0, np.float64)
        return Each([n if active else one for n, active in zip(first.numbers, static["active"], strict=True)])
    if formula in _PER_ELEMENT and all(isinstance(count, float) for count in static["counts"]):
        divisors = Each([_PER_ELEMENT[formula](count) for count in static["counts"]])
        formula, operands, static = formulas.quotient, (first, divisors), {}
    if formula not in _SEPARABLE or static:
        return None
    count = next(len(operand.numbers) for operand in operands if isinstance(operand, Each))
    rows = list(zip(*(_spread(operand, count) for operand in operands), strict=True))
    return Each(in_parts(lambda some: _by_rows(formula)(tuple(some)), rows))


def _spread(operand: Any, count: int) -> Sequence[Any]:
    if isinstance(operand, Each):
        return [Namespace.float64(number) for number in operand.numbers]
    wide = Namespace.float64(operand)
    return [wide] * count if wide.ndim == 0 else [wide[i] for i in range(count)]


@functools.cache
def _by_rows(formula: Callable[..., Any]) -> Callable[..., Any]:
    one = jax.jit(functools.partial(formula, Namespace))
    return jax.jit(lambda rows: [one(*row) for row in rows])
