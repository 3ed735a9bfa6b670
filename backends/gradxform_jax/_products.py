"""Products of leaves and factors, in float32 at least; each factor is split into steps once, for all leaves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform.numerics import elementwise, rescale, sums_dtype
from gradxform_jax._namespace import Namespace, barrier


class Factor(NamedTuple):
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
def factor(number: Any) -> Factor:
    """Split a number or an array."""
    whole = Namespace.float64(number)
    size = lax.abs(whole)
    near = lax.clamp(rescale.LEAST, size, rescale.MOST)
    far = size / near
    usual = (size > 0.0) & lax.is_finite(size)
    far = lax.select(usual, lax.clamp(rescale.LEAST, far, rescale.MOST), far) * lax.sign(whole)
    near, far = (lax.convert_element_type(step, np.float32) for step in (near, far))
    # Without the barrier, XLA would join the steps of a known factor to one, out of float32's range.
    return barrier(Factor(whole, near, far, whole == 1.0))


@jax.jit  # leaves of one shape are traced once
def multiplied(leaf: Any, by: Factor) -> Any:
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
def of_leaf(formula: Any, elements: Sequence[Any], numbers: Sequence[Any], by: Factor | None) -> Any:
    """Apply an elementwise formula to a leaf times a factor, and other arrays."""
    first, *others = elements
    if by is not None:
        first = rescale.by_parts(Namespace, by.times, first)
    return elementwise.of_leaf(formula, Namespace, [first, *others], numbers, None, {})


def weights(formula: elementwise.Combination, numbers: Sequence[Any]) -> list[Factor | None]:
    """Return the weights of a combination; None for one that is known to be one."""
    found = formula.weights(Namespace, *map(Namespace.float64, numbers))
    return [None if isinstance(weight, float) and weight == 1.0 else factor(weight) for weight in found]


@jax.jit
def combined(elements: Sequence[Any], by: Sequence[Factor | None]) -> Any:
    """Add up products of elements and weights."""
    dtype = sums_dtype(elements[0])

    def real(*parts: Any) -> Any:
        wide = [Namespace.cast(part, dtype) for part in parts]
        return functools.reduce(lax.add, [x if w is None else w.times(x) for x, w in zip(wide, by, strict=True)])

    return rescale.by_parts(Namespace, real, *elements)
