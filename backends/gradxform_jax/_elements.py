"""Formulas of elements, and sums over axes, as jitted functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import sums
from gradxform.numerics.double_double import Pair
from gradxform.numerics.elementwise import in_range, of_elements
from gradxform.numerics.ranged import evaluate, in_float64
from gradxform_jax._scalars import Namespace

_WIDE = (np.float64, np.complex128)


@functools.lru_cache(maxsize=1024)
def elementwise(formula: Callable[..., Any], static: tuple[tuple[str, Any], ...]) -> Callable[..., list[Any]]:
    """The function of columns of leaves, and numbers, that computes a formula in float64 and rounds once."""

    def whole(columns: list[list[Any]], numbers: list[Any], factors: list[Any]) -> list[Any]:
        each_one = zip(factors, *columns, strict=True)
        return [_one(formula, column, numbers, factor, dict(static)) for factor, *column in each_one]

    return jax.jit(whole)


def _one(
    formula: Callable[..., Any], column: Sequence[Any], numbers: Sequence[Any], factor: Any, static: dict[str, Any]
) -> Any:
    leaf, double = column[0], column[0].dtype in _WIDE

    def real(parts: Sequence[Any]) -> Any:
        wide = [part if isinstance(part, Pair) else lax.convert_element_type(part, np.float64) for part in parts]
        found = of_elements(formula, Namespace, wide, numbers, factor, double, static)
        return lax.convert_element_type(found, np.float64 if double else np.float32)

    if not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return real(column)
    return lax.complex(real(list(map(jnp.real, column))), real(list(map(jnp.imag, column))))


@functools.lru_cache(maxsize=1024)
def each(formula: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The function of columns of leaves, and numbers, that computes a formula in the leaves' own dtypes."""

    def whole(columns: list[list[Any]], numbers: list[Any]) -> list[Any]:
        return [formula(Namespace, *column, *numbers) for column in zip(*columns, strict=True)]

    return jax.jit(whole)


@functools.partial(jax.jit, static_argnums=1)
def sum_over(leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
    """Sums over some axes, in float64; as a pair for a float64 leaf."""

    def add(values: Any) -> Any:
        return jnp.sum(values, axis=axes, keepdims=True)

    wide = lax.convert_element_type(leaf, np.float64)
    if weights is None:
        return sums.total_signed(Namespace, wide, add) if leaf.dtype == np.float64 else add(wide)
    if leaf.dtype != np.float64:
        weights = evaluate(in_float64, Namespace, [weights], {})
        return add(wide * lax.convert_element_type(weights, np.float64))
    weights = in_range(Namespace, weights)
    others = jax.tree_util.tree_map(lambda part: jnp.broadcast_to(part, leaf.shape), weights)
    return sums.total_products(Namespace, wide, others, add)
