"""Combine the numbers of several devices, given as one row per device."""

from __future__ import annotations

from typing import Any

from gradxform.numerics import Array, formulas


class Rows:
    """A namespace whose reductions run over the rows of an array, column by column."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped namespace's attribute."""
        return getattr(self._xp, name)

    def sum(self, x: Array) -> Array:
        """Of each column."""
        return self._xp.sum(x, axis=0)

    def max(self, x: Array) -> Array:
        """Return the maximum of each column; PyTorch also returns the indices."""
        found = self._xp.max(x, axis=0)
        return getattr(found, "values", found)

    def any(self, x: Array) -> Array:
        """Of each column."""
        return self._xp.any(x, axis=0)


def norms_over(xp: Any, rows: Any, *, ord: float, same: tuple[bool, ...] | None) -> Any:
    """Combine each column into a norm; for replicated leaves, use the first device's number."""
    found = formulas.total_norm_scaled(Rows(xp), rows, active=None, ord=ord)
    return found if same is None else xp.where(xp.mask(same), xp.take(rows, 0), found)


def first(xp: Any, numbers: Any, there: Any) -> Any:
    """Return the number of the first device whose flag is set."""
    places = xp.arange(there.shape[0])
    none = 1.0 * there.shape[0]
    nearest = -xp.max(xp.where(there > 0.5, -places, -none))
    return xp.sum(xp.where(formulas.equal(places, nearest), numbers, 0.0))


def every(xp: Any, flags: Array) -> Array:
    """Return 1 if all flags are set, else 0."""
    return 1.0 - xp.max(1.0 - flags)


def some(xp: Any, flags: Array, *, active: tuple[bool, ...] | None = None) -> Array:
    """Return 1 if any flag (in the mask, if given) is set, else 0."""
    return xp.max(flags if active is None else xp.where(xp.mask(active), flags, 0.0))


def larger(xp: Any, one: Any, other: Any) -> Array:
    """Return the larger of two flags."""
    return xp.where(one > other, one, other)


def none(xp: Any) -> Array:
    """Return an empty vector."""
    return xp.arange(0)


def zeros(xp: Any, x: Array) -> Array:
    """Return zeros like a vector."""
    return xp.zeros_like(x)


def beside(xp: Any, vector: Array, *, numbers: tuple[Any, ...]) -> Array:
    """Turn known numbers into a vector on the device of another one."""
    return xp.stack(numbers)


def spread(xp: Any, vector: Array, *, index: tuple[int, ...], there: tuple[bool, ...]) -> Array:
    """Arrange the numbers of leaves by slot, with zeros for holes."""
    return xp.where(xp.mask(there), xp.take(vector, index), 0.0)


def per_root(xp: Any, norms: Array, counts: Array) -> Array:
    """Convert norms to root mean squares, with gathered element counts."""
    return norms / xp.sqrt(_some(xp, counts))


def per_count(xp: Any, norms: Array, counts: Array) -> Array:
    """Convert norms to average norms, with gathered element counts."""
    return norms / _some(xp, counts)


def _some(xp: Any, counts: Array) -> Array:
    return xp.where(counts > 0.5, counts, 1.0)
