"""Formulas on vectors of norms and factors over a namespace `xp`, in float64.

Operands are numbers and vectors; keywords are static. Each formula is safe to differentiate: a branch that is not
selected never divides by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradxform.numerics import Array

Mask = tuple[bool, ...]
"""One bool per leaf, or per slot of the tree."""
_INF = float("inf")
_SINGLE = 2.0**-24
"""Relative error of rounding to float32."""


def by_number(formula: Callable[..., Array]) -> Callable[..., Array]:
    """Declare that a formula computes each number of a vector from the numbers of one leaf.

    Static tuples have an item for each leaf.
    """
    formula.by_number = True  # type: ignore[attr-defined]
    return formula


@by_number
def clip_coefficient(xp: Any, norm: Array, max_norm: Array, *gathered: Array, single: bool | Mask = False) -> Array:
    """Return min(1, c / n): 1 within the limit and for an infinite limit, NaN for a nonfinite norm.

    Where `single`, or where a number gathered from devices is 1, a norm is within that equals the limit in float32.
    """
    limit = xp.where(max_norm < 0.0, 0.0, max_norm)
    slack: Any = _SINGLE if single else 0.0
    if gathered or isinstance(single, tuple):
        slack = xp.where(gathered[0] > 0.5 if gathered else xp.mask(single), _SINGLE, 0.0)
    within = (norm <= limit + limit * slack) | (limit >= _INF)
    divisor = xp.where(within, 1.0, norm)
    return xp.where(within, 1.0, limit) / xp.where(_divides(xp, divisor), divisor, float("nan"))


def _divides(xp: Any, norm: Array) -> Array:
    """Whether a norm is finite; without float64, float32 may not hold what is divided by a norm beyond 1e18."""
    return norm <= 1e18 if getattr(xp, "widest", "") == "float32" else xp.isfinite(norm)


def by_kind(xp: Any, kinds: tuple[Any, ...], value: Callable[[Any], Array]) -> Array:
    """Return a function of the kind of each number; if there is one kind, it is that of all numbers."""
    first, *others = dict.fromkeys(kinds)
    found = value(first)
    for kind in others:
        found = xp.where(xp.mask(tuple(own == kind for own in kinds)), value(kind), found)
    return found


def rounded(xp: Any, x: Array, *, dtypes: tuple[str, ...]) -> Array:
    """Round a number to a dtype, or each number of a vector to its own dtype."""
    return by_kind(xp, dtypes, lambda dtype: xp.rounded(x, dtype))


def equal(xp: Any, one: Array, other: Array | float) -> Array:
    """Whether equal, elementwise; in a TF1 graph ``==`` compares identities."""
    return (one <= other) & (one >= other)


def total_norm(xp: Any, norms: Array, *, active: Mask | None = None, ord: float, scaled: bool = True) -> Array:
    """Combine the norms of leaves, scaled by the largest unless their powers fit float64; keeps NaN and infinity."""
    if active is not None:
        norms = xp.where(xp.mask(active), norms, 0.0)
    if scaled:
        top = xp.stop_gradient(xp.max(norms))
        unit = xp.where((top > 0.0) & xp.isfinite(top), top, 1.0)
        return xp.where(xp.isfinite(top), unit * total_norm(xp, norms / unit, ord=ord, scaled=False), top)
    if ord in (1, _INF):
        return xp.sum(norms) if ord == 1 else xp.max_over(norms, None)
    return safe_root(xp, xp.sum(norms * norms if ord == 2 else norms**ord), ord)


def safe_root(xp: Any, total: Array, ord: float) -> Array:
    """Return a root; zero, with derivative zero, if the total is zero."""
    zero = (total <= 0.0) & (total >= 0.0)
    safe = xp.where(zero, 1.0, total)
    return xp.where(zero, total, xp.sqrt(safe) if ord == 2 else safe ** (1.0 / ord))


@by_number
def scaled_norm(xp: Any, norms: Array, factor: Array) -> Array:
    """Multiply the norms of leaves by pending factors."""
    return norms * xp.abs(factor)


@by_number
def product(xp: Any, first: Array, second: Array) -> Array:
    """Multiply two pending factors."""
    return first * second


def joined(xp: Any, factor: Array, pending: Array) -> tuple[Array, Array]:
    """Join factors of slices with a pending one, unless they are all one; return them, and what is still pending."""
    due = xp.any(xp.where(equal(xp, factor, 1.0), 0.0, 1.0) > 0.0)
    return factor * xp.where(due, pending, 1.0), xp.where(due, 1.0, pending)


@by_number
def where_active(xp: Any, numbers: Array, others: Array | float = 1.0, *, active: Mask) -> Array:
    """Return the numbers of active leaves, and others, such as a factor of 1, elsewhere."""
    return xp.where(xp.mask(active), numbers, others)


def take(xp: Any, vector: Array, *, index: int | tuple[int, ...]) -> Array:
    """Select one or more numbers of a vector; a 0-d factor applies to every leaf."""
    return xp.take(vector, index) if len(getattr(vector, "shape", ())) else vector


def stack(xp: Any, *numbers: Array) -> Array:
    """Stack 0-d numbers into a vector, possibly an empty one."""
    return xp.stack(numbers) if numbers else xp.arange(0)


@by_number
def inverse(xp: Any, norm: Array) -> Array:
    """Return 1 / n; 1 for a zero norm, NaN for a nonfinite one."""
    return xp.where(_divides(xp, norm), 1.0 / xp.where(norm > 0.0, norm, 1.0), float("nan"))


@by_number
def per_element(xp: Any, norms: Array, *gathered: Array, root: bool, counts: tuple[Any, ...] = ()) -> Array:
    """Divide norms by element counts of at least 1, or by their roots; by known counts, or those gathered."""
    found = gathered[0] if gathered else xp.stack(counts)
    found = xp.where(found > 0.5, found, 1.0)
    return norms / (xp.sqrt(found) if root else found)


@by_number
def quotient(xp: Any, dividend: Array, divisor: Array) -> Array:
    """Divide."""
    return dividend / divisor


def difference(xp: Any, x: Array, y: Array) -> Array:
    """A difference."""
    return x - y


def is_finite(xp: Any, x: Array) -> Array:
    """Whether a number is finite."""
    return xp.isfinite(x)


def same(xp: Any, x: Array) -> Array:
    """Return an element unchanged."""
    return x


def ended(xp: Any, x: Array, *, end: float) -> Array:
    """Return an element, infinite from `end` on."""
    return xp.where(xp.abs(x) < end, x, x * _INF)
