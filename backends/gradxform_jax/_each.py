"""Many norms and factors as separate numbers.

XLA compiles an access to each place of a vector by itself, 25 ms each; of numbers that are computed alike, it compiles
one. So the norms of many leaves are computed when it is known what for: as a vector for a total, else one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import formulas
from gradxform_jax import _norms
from gradxform_jax._namespace import Namespace

MANY = 32
"""From so many leaves on."""
_ALIKE = (formulas.clip_coefficient_single, formulas.clip_coefficient_double, formulas.scaled_norm, formulas.product)
"""Formulas of which each number of the result is one of that place's numbers."""


class Each:
    """One float64 number a leaf."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = tuple(numbers)

    @functools.cached_property
    def vector(self) -> Any:
        """The numbers as a vector."""
        return _stacked(self.numbers)


class Norms(Each):
    """The norms of leaves of which none is of 64 bits."""

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


def vary_differently(leaves: Sequence[Any]) -> bool:
    """Whether shard_map knows some leaves to be the same on devices where others differ: a vector would not tell."""
    if not isinstance(leaves[0], jax.core.Tracer):
        return False
    return len({getattr(jax.typeof(leaf), "vma", None) for leaf in leaves}) > 1


@jax.jit
def _stacked(numbers: tuple[Any, ...]) -> Any:
    return jnp.stack(numbers)


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
    """A formula on separate numbers; None if it is one of vectors."""
    if formula is formulas.take:
        numbers, index = operands[0].numbers, static["index"]
        return numbers[index] if isinstance(index, int) else Each([numbers[i] for i in index])
    if formula is formulas.where_active:
        return Each([n if active else 1.0 for n, active in zip(operands[0].numbers, static["active"], strict=True)])
    if formula not in _ALIKE or static:
        return None
    count = next(len(operand.numbers) for operand in operands if isinstance(operand, Each))
    rows = zip(*(_spread(operand, count) for operand in operands), strict=True)
    return Each(_one_by_one(formula)(tuple(rows)))


def _spread(operand: Any, count: int) -> Sequence[Any]:
    if isinstance(operand, Each):
        return [lax.convert_element_type(number, np.float64) for number in operand.numbers]
    wide = lax.convert_element_type(operand, np.float64)
    return [wide] * count if wide.ndim == 0 else [wide[i] for i in range(count)]


@functools.cache
def _one_by_one(formula: Callable[..., Any]) -> Callable[..., Any]:
    one = jax.jit(lambda *numbers: formula(Namespace, *numbers))
    return jax.jit(lambda rows: tuple(one(*row) for row in rows))
