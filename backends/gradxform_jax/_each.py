"""Many norms and factors as separate numbers.

XLA compiles each access to a vector element separately, 25 ms each, but equal computations on separate numbers once. So
norms of many leaves are computed when their use is known: as a vector for a total, otherwise one by one.
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
from gradxform_jax._namespace import Folding, Namespace
from gradxform_jax._parts import in_parts

MANY = 32
"""From so many leaves on."""
_MOST_APART = 512
"""Numbers that are added up one by one: XLA's time to compile the sum grows with their square."""
_ALIKE = (formulas.clip_coefficient_single, formulas.clip_coefficient_double, formulas.scaled_norm, formulas.product)
"""Formulas of which each number of the result is one of that place's numbers."""
_PER_ELEMENT: dict[Callable[..., Any], Callable[[float], float]] = {
    formulas.per_root: math.sqrt,
    formulas.per_count: float,
}
"""Formulas that divide norms, and by what of the numbers of elements."""
_TOTALS = (formulas.total_norm, formulas.total_norm_scaled)


class Each:
    """One float64 number per leaf."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = tuple(numbers)

    @functools.cached_property
    def vector(self) -> Any:
        """The numbers as a vector."""
        return _stacked(self.numbers)

    def total(self, active: tuple[bool, ...] | None) -> Any:
        """2-norm of leaves with these norms; XLA compiles a sum of many numbers faster than a vector."""
        return _total_of(_active(self.numbers, active))


class Norms(Each):
    """Norms of leaves without 64-bit dtypes."""

    def __init__(self, leaves: Sequence[Any], ord: float) -> None:
        self.leaves, self.ord = tuple(leaves), ord

    @functools.cached_property
    def numbers(self) -> Any:  # type: ignore[override]
        """The norms as separate numbers."""
        return _separate_norms(self.leaves, self.ord)

    @functools.cached_property
    def vector(self) -> Any:
        """The norms as a vector."""
        return stacked_norms(self.leaves, self.ord)

    def is_better_as_vector(self) -> bool:
        """Whether a vector is faster for the total: eager code packs small leaves, XLA is slow with long sums."""
        return "numbers" not in vars(self) and (len(self.leaves) > _MOST_APART or _norms.are_whole(self.leaves))

    def total(self, active: tuple[bool, ...] | None) -> Any:
        """2-norm of the active leaves, without each leaf's norm."""
        if "numbers" in vars(self) or self.ord != 2:
            return super().total(active)
        return _total_norm(_active(self.leaves, active))


def vary_differently(leaves: Sequence[Any]) -> bool:
    """Whether shard_map knows some leaves to be replicated and others not: a vector would lose that."""
    if not isinstance(leaves[0], jax.core.Tracer):
        return False
    return len({getattr(jax.typeof(leaf), "vma", None) for leaf in leaves}) > 1


@jax.jit
def _stacked(numbers: tuple[Any, ...]) -> Any:
    return jnp.stack(numbers)


_total_norm = jax.jit(_norms.total)


@jax.jit
def _total_of(norms: tuple[Any, ...]) -> Any:
    largest = lax.stop_gradient(functools.reduce(jnp.maximum, norms))
    # A fourth of the largest, whose inverse a TPU can hold too.
    unit = jnp.where((largest > 0.0) & jnp.isfinite(largest), largest / 4, 1.0)
    inverse = 1.0 / unit
    powers = [jnp.square(norm * inverse) for norm in norms]
    root = unit * safe_root(Namespace, functools.reduce(jnp.add, powers), 2)
    return jnp.where(jnp.isfinite(largest), root, largest)


@functools.partial(jax.jit, static_argnums=1)
def _divided(numbers: tuple[Any, ...], divisors: tuple[float, ...]) -> tuple[Any, ...]:
    return tuple(number / divisor for number, divisor in zip(numbers, divisors, strict=True))


def _active(items: Sequence[Any], active: tuple[bool, ...] | None) -> tuple[Any, ...]:
    return tuple(items) if active is None else tuple(itertools.compress(items, active))


def stacked_norms(leaves: tuple[Any, ...], ord: float) -> Any:
    """The norms as a vector."""
    return _stacked_norms(leaves, ord, _norms.are_whole(leaves))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _stacked_norms(leaves: tuple[Any, ...], ord: float, whole: bool) -> Any:
    return _norms.vector(leaves, ord, whole)


@functools.partial(jax.jit, static_argnums=1)
def _separate_norms(leaves: tuple[Any, ...], ord: float) -> tuple[Any, ...]:
    return tuple(_norms.norms(leaves, ord))


def compute(formula: Callable[..., Any], operands: Sequence[Any], static: dict[str, Any]) -> Any:
    """Compute a formula on separate numbers; None if it needs vectors."""
    if formula is formulas.take:
        numbers, index = operands[0].numbers, static["index"]
        return numbers[index] if isinstance(index, int) else Each([numbers[i] for i in index])
    if formula in _TOTALS and static["ord"] == 2:
        if isinstance(operands[0], Norms) and operands[0].is_better_as_vector():
            return None
        return operands[0].total(static["active"])
    if formula is formulas.where_active:
        return Each([n if active else 1.0 for n, active in zip(operands[0].numbers, static["active"], strict=True)])
    if formula in _PER_ELEMENT and all(isinstance(count, float) for count in static["counts"]):
        return Each(_divided(operands[0].numbers, tuple(map(_PER_ELEMENT[formula], static["counts"]))))
    if formula not in _ALIKE or static:
        return None
    count = next(len(operand.numbers) for operand in operands if isinstance(operand, Each))
    each = (number for operand in operands if isinstance(operand, Each) for number in operand.numbers)
    if any(isinstance(number, jax.core.Tracer) for number in each):
        return Each(_traced_one_by_one(formula, operands, count))
    rows = list(zip(*(_spread(operand, count) for operand in operands), strict=True))
    return Each(in_parts(lambda some: _one_by_one(formula)(tuple(some)), rows))


def _spread(operand: Any, count: int) -> Sequence[Any]:
    if isinstance(operand, Each):
        return [lax.convert_element_type(number, np.float64) for number in operand.numbers]
    wide = lax.convert_element_type(operand, np.float64)
    return [wide] * count if wide.ndim == 0 else [wide[i] for i in range(count)]


@functools.cache
def _one_by_one(formula: Callable[..., Any]) -> Callable[..., Any]:
    one = jax.jit(lambda *numbers: formula(Namespace, *numbers))
    return jax.jit(lambda rows: tuple(one(*row) for row in rows))


def _traced_one_by_one(formula: Callable[..., Any], operands: Sequence[Any], count: int) -> list[Any]:
    """The same in traced code, with constant folding of Python numbers."""
    known = [isinstance(operand, (int, float)) for operand in operands]

    @jax.jit
    def one(*numbers: Any) -> Any:
        left = iter(numbers)
        return formula(Folding, *(float(o) if k else next(left) for o, k in zip(operands, known, strict=True)))

    columns = [_spread(operand, count) for operand, k in zip(operands, known, strict=True) if not k]
    return [one(*row) for row in zip(*columns, strict=True)]
