"""Norms of leaves and trees, and the coefficients that limit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core.group import Mask
from gradxform.numerics import Array, formulas


class Slots(NamedTuple):
    """Norms over all devices for each slot of a tree; a device may have None where another has a slice."""

    values: Array
    """0 where no device has an active leaf."""
    there: Array
    """1 where a device has an active leaf, else 0."""


class Norm(NamedTuple):
    """A norm in float64, and whether it is compared with a limit in float32.

    `single` is one bool, or one per leaf: false if a float64 leaf is in scope. If other devices may have such a leaf,
    it is a number gathered from them.
    """

    value: Array
    single: bool | tuple[bool, ...] | Array
    backend: Backend
    slots: Slots | None = None
    """The norms by slot, if devices have slices of leaves and their trees may differ."""

    def everywhere(self) -> Norm:
        """Return the norms of all slots if known, else the norms of the leaves."""
        return self if self.slots is None else self._replace(value=self.slots.values)


class Raw(NamedTuple):
    """The norms of leaves without pending factors, and for which leaves they are known."""

    vector: Array
    known: Mask

    def without(self, places: Sequence[int]) -> Raw:
        """Forget the norms of some leaves."""
        gone = set(places)
        return self._replace(known=tuple([known and i not in gone for i, known in enumerate(self.known)]))


def clip_coefficient(norm: Norm, max_norm: Any) -> Array:
    """Return min(1, max_norm / norm), correct at zero, at the limit, at infinity and for nonfinite norms."""
    if isinstance(norm.single, tuple):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, single=norm.single)
    if not isinstance(norm.single, bool):
        return norm.backend.compute(formulas.clip_coefficient_mixed, norm.value, max_norm, norm.single)
    formula = formulas.clip_coefficient_single if norm.single else formulas.clip_coefficient_double
    return norm.backend.compute(formula, norm.value, max_norm)
