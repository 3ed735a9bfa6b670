"""Arithmetic on vectors of norms and factors, written once for every framework's namespace `xp`, in float64.

Operands are numbers and vectors, keywords are static. Each formula is safe to differentiate: a branch that is not
taken never divides by zero.
"""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array

_INF = float("inf")


def clip_coefficient_double(xp: Any, norm: Array, max_norm: Array) -> Array:
    """min(1, c / n): 1 up to the limit and for an infinite limit, NaN for a norm that is not finite."""
    return _clip_coefficient(xp, norm, max_norm, xp.rounded(norm, "float64"), xp.rounded(max_norm, "float64"))


def clip_coefficient_single(xp: Any, norm: Array, max_norm: Array) -> Array:
    """The same with norm and limit compared as the float32 numbers they round to."""
    limit = xp.rounded(max_norm, "float32")
    fits = xp.isfinite(limit) & (
        limit > 0.0
    )  # else float32 cannot hold the limit, and the float64 numbers are compared
    return _clip_coefficient(
        xp, norm, max_norm, xp.where(fits, xp.rounded(norm, "float32"), norm), xp.where(fits, limit, max_norm)
    )


def clip_coefficient_mixed(xp: Any, norm: Array, max_norm: Array, *, single: tuple[bool, ...]) -> Array:
    """The same for leaves of which some count in float32."""
    return xp.where(
        xp.mask(single), clip_coefficient_single(xp, norm, max_norm), clip_coefficient_double(xp, norm, max_norm)
    )


def clip_coefficient_told(xp: Any, norm: Array, max_norm: Array, single: Array) -> Array:
    """The same for a norm that counts in float32 if a number is one, and in float64 if it is zero."""
    return xp.where(
        single > 0.5, clip_coefficient_single(xp, norm, max_norm), clip_coefficient_double(xp, norm, max_norm)
    )


def _clip_coefficient(xp: Any, norm: Array, max_norm: Array, rounded_norm: Array, rounded_max: Array) -> Array:
    within = (rounded_norm <= xp.where(rounded_max < 0, 0.0, rounded_max)) | (max_norm >= _INF)
    limit = xp.where(within, 1.0, xp.where(max_norm < 0, 0.0, max_norm))
    divisor = xp.where(within, 1.0, norm)
    return limit / xp.where(xp.isfinite(divisor), divisor, float("nan"))


def rounded(xp: Any, x: Array, *, dtypes: tuple[str, ...]) -> Array:
    """A number rounded to a dtype, or each number of a vector to its own."""
    first, *others = dict.fromkeys(dtypes)
    found = xp.rounded(x, first)
    for dtype in others:
        found = xp.where(xp.mask(tuple(own == dtype for own in dtypes)), xp.rounded(x, dtype), found)
    return found


def equal(one: Array, other: Array | float) -> Array:
    """Whether equal, element by element: in a TF1 graph ``==`` asks whether two tensors are one object."""
    return (one <= other) & (one >= other)


def is_nan(xp: Any, x: Array) -> Array:
    """Whether NaN, element by element; ``!=`` is as ``==``."""
    return xp.where(x <= x, 0.0, 1.0) > 0.0


def at_least_zero(xp: Any, bound: Array) -> Array:
    """A limit that is an array, clamped at zero; NaN stays NaN."""
    return xp.where(bound < 0, 0.0, bound)


def total_norm(xp: Any, norms: Array, *, active: tuple[bool, ...] | None, ord: float) -> Array:
    """The norm of leaves with these norms; for norms whose powers float64 can hold."""
    return _total(xp, norms if active is None else xp.where(xp.mask(active), norms, 0.0), ord)


def total_norm_scaled(xp: Any, norms: Array, *, active: tuple[bool, ...] | None, ord: float) -> Array:
    """The same for norms of any size: in units of the largest, which is found without losing a NaN, or is infinite."""
    norms = norms if active is None else xp.where(xp.mask(active), norms, 0.0)
    largest = xp.stop_gradient(xp.max(norms))
    unit = xp.where((largest > 0.0) & xp.isfinite(largest), largest, 1.0)
    return xp.where(xp.isfinite(largest), unit * _total(xp, norms / unit, ord), largest)


def _total(xp: Any, norms: Array, ord: float) -> Array:
    if ord == 1:
        return xp.sum(norms)
    if ord == _INF:
        return xp.where(xp.any(is_nan(xp, norms)), float("nan"), xp.max(norms))
    power = xp.sum(norms * norms if ord == 2 else norms**ord)
    positive = power > 0.0
    safe = xp.where(positive, power, 1.0)
    root = xp.sqrt(safe) if ord == 2 else safe ** (1.0 / ord)
    return xp.where(positive, root, power)


def scaled_norm(xp: Any, norms: Array, factor: Array) -> Array:
    """The norms of leaves that are still to be multiplied by a factor."""
    return norms * xp.abs(factor)


def product(xp: Any, first: Array, second: Array) -> Array:
    """Two pending factors as one."""
    return first * second


def product_wide(xp: Any, first: Array, second: Array) -> Any:
    """The same for float64 gradients, of a size that float64 may not have."""
    return xp.extended(first) * xp.extended(second)


def differs(xp: Any, factor: Array) -> Array:
    """Whether any factor is not one; NaN is not."""
    return xp.any(xp.where(equal(factor, 1.0), 0.0, 1.0) > 0.0)


def product_if(xp: Any, condition: Array, first: Array, second: Array) -> Array:
    """Two factors as one where a condition holds, else the first."""
    return first * xp.where(condition > 0.0, second, 1.0)


def one_if(xp: Any, condition: Array, factor: Array) -> Array:
    """One where a condition holds, else the factor."""
    return xp.where(condition > 0.0, 1.0, factor)


def where_active(xp: Any, factor: Array, *, active: tuple[bool, ...]) -> Array:
    """The factor for active leaves, one for the others."""
    return xp.where(xp.mask(active), factor, 1.0)


def take(xp: Any, vector: Array, *, index: int | tuple[int, ...]) -> Array:
    """One number of a vector, or some of them; a 0-d factor serves every leaf."""
    return xp.take(vector, index) if len(getattr(vector, "shape", ())) else vector


def stack(xp: Any, *numbers: Array) -> Array:
    """A vector of 0-d numbers."""
    return xp.stack(numbers)


def inverse(xp: Any, norm: Array) -> Array:
    """1 / n; 1 for a norm of zero, NaN for one that is not finite."""
    return xp.where(xp.isfinite(norm), 1.0 / xp.where(norm > 0.0, norm, 1.0), float("nan"))


def per_root(xp: Any, norms: Array, *, counts: tuple[Any, ...]) -> Array:
    """Norms as root mean squares, from the numbers of elements."""
    still = xp.stop_gradient(norms)
    nothing = xp.where(xp.isfinite(still), still - still, 0.0)  # so that the root has the norms' precision
    return norms / xp.sqrt(xp.stack(counts) + nothing)


def per_count(xp: Any, norms: Array, *, counts: tuple[Any, ...]) -> Array:
    """Norms as average norms, from the numbers of elements."""
    return norms / xp.stack(counts)


def quotient(xp: Any, dividend: Array, divisor: Array) -> Array:
    """A quotient."""
    return dividend / divisor


def is_finite(xp: Any, x: Array) -> Array:
    """Whether a number is neither NaN nor infinite."""
    return xp.isfinite(x)


def is_zero(xp: Any, x: Array) -> Array:
    """Whether a number is zero."""
    return equal(x, 0.0)


def wide(xp: Any, x: Array) -> Array:
    """A number of more than float64's precision and range."""
    return xp.extended(x)


def same(xp: Any, x: Array) -> Array:
    """An element as it is."""
    return x


def ended(xp: Any, x: Array, *, end: float) -> Array:
    """An element that is infinite from a number on."""
    return xp.where(xp.abs(x) < end, x, x * _INF)
