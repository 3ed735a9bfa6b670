"""2-norms on TPUs, whose float64 is a pair of float32 numbers, with the digits of two and the range of one.

There the squares of float32 numbers above 1e19 overflow, and those of numbers below 1e-19 vanish. So elements are
multiplied by a power of two before they are squared: large, middle and small ones are added up apart, in one pass.

Source: Blue, A portable Fortran program to find the Euclidean norm of a vector, 1978.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import formulas
from gradxform_jax._namespace import Namespace, barrier, summed

_UNIT = 2.0**84
_LARGE, _SMALL = 2.0**45, 2.0**-39
"""Squares of numbers between them are normal numbers with all their digits, and 2^37 of them have a sum."""


def norm(axes: tuple[int, ...] | None, *parts: Any) -> Any:
    """The 2-norm of real arrays of 32 bits at most together, over axes that stay as ones, or over all."""
    sums = zip(*(_squares(part, axes) for part in parts), strict=True)
    return _root(*(functools.reduce(lax.add, sum_) for sum_ in sums))


@jax.custom_jvp
def norm_of_norms(norms: Any) -> Any:
    """The 2-norm of arrays whose norms are in a vector, in units of the largest."""
    return formulas.total_norm_scaled(Namespace, norms, active=None, ord=2.0)


@norm_of_norms.defjvp
def _norm_of_norms_jvp(primals: Any, tangents: Any) -> Any:
    with jax.enable_x64(True):
        value = norm_of_norms(*primals)
        return value, jnp.sum(primals[0] / jnp.where(value > 0, value, 1.0) * tangents[0])


def total_norm(xp: Any, norms: Any, *, active: tuple[bool, ...] | None, ord: float) -> Any:
    """`formulas.total_norm` of order 2, of norms whose squares a TPU cannot hold."""
    return norm_of_norms(norms if active is None else xp.where(xp.mask(active), norms, 0.0))


def _squares(x: Any, axes: tuple[int, ...] | None) -> list[Any]:
    """The sums of the squares of large, middle and small numbers, each kind in a unit of its own."""
    x = lax.convert_element_type(x, np.float32)  # lax throughout: jnp takes three times as long to trace
    size, none = lax.abs(x), lax.full_like(x, 0)
    large, small = lax.gt(size, np.float32(_LARGE)), lax.lt(size, np.float32(_SMALL))
    middle = lax.bitwise_not(lax.bitwise_or(large, small))
    kinds = (large, lax.mul(x, np.float32(1 / _UNIT))), (middle, x), (small, lax.mul(x, np.float32(_UNIT)))
    scaled = (lax.convert_element_type(lax.select(kind, part, none), np.float64) for kind, part in kinds)
    return [summed(lax.square(part), axes) for part in scaled]


# Traced once, whatever the shapes of leaves.
@jax.jit
def _root(large: Any, middle: Any, small: Any) -> Any:
    """The root of the sum of three sums, each in its unit."""
    is_large, is_middle = large != 0.0, middle != 0.0  # NaN is
    first = jnp.where(is_large, large, jnp.where(is_middle, middle, small))
    second = jnp.where(is_large, middle, jnp.where(is_middle, small, 0.0))
    unit = jnp.where(is_large, _UNIT, jnp.where(is_middle, 1.0, 1 / _UNIT))
    # Without the barrier, XLA makes one constant of two, which is out of the range.
    return jnp.sqrt(first + barrier(second * (1 / _UNIT)) * (1 / _UNIT)) * unit
