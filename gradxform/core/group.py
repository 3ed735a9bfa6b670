"""Combine the numbers of devices that hold parts of one tree, with one all-gather per group.

Every device combines the gathered numbers in the same order, so all get the same bits and decide alike. Nothing is
summed in transit (all-reduce), since an unspecified order changes the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend, Devices, Row
from gradxform.numerics import Array, formulas, norms
from gradxform.numerics.formulas import Mask

Own = Callable[[Mask], Any]
"""Computes this device's number from the leaves in a mask."""


class Group(NamedTuple):
    """The devices along one axis."""

    axis: Any
    by_leaf: bool
    """Whether each device has a slice of every leaf, instead of its own leaves."""
    traced: bool
    """Whether one program is traced for all devices; then dtypes and None agree on all of them."""
    replicated: frozenset[int] | None = None
    """The slots of the tree whose leaves are replicated; None if no device has such leaves."""


def devices_of(backend: Backend, axis: Any) -> Devices:
    """Return the backend's functions of several devices.

    Raises:
        TypeError: the framework has one device.
    """
    if backend.devices is None:
        raise TypeError(f"across: {backend.title} has one device, and no axis {axis!r}; leave across(...) out here")
    return backend.devices


def whole(
    backend: Backend, groups: Sequence[Group], asked: Sequence[tuple[Own, float]], masks: Sequence[Mask], leaves: Row
) -> Array:
    """Combine numbers over all devices of some groups; return a vector with those of one mask after another.

    Args:
        backend: the framework.
        groups: the groups, the outermost first.
        asked: for each number, the function that computes this device's part, and the order of the norm.
        masks: for each slot, whether its leaf takes part.
        leaves: of this device, which its numbers are on.
    """
    if not groups:
        own = [compute(mask) if any(mask) else 0.0 for mask in masks for compute, _ in asked]
        return backend.compute(formulas.stack, *own)
    outer, *inner = groups
    orders, parts = tuple(float(ord) for _ in masks for _, ord in asked), masks
    if outer.replicated is not None:
        parts = [_where(mask, outer.replicated, kind) for kind in (False, True) for mask in masks]
    found = _combined(backend, outer, whole(backend, inner, asked, parts, leaves), orders, leaves)
    return found if parts is masks else backend.compute(_total, found, orders=orders)


def _where(mask: Mask, replicated: frozenset[int], kind: bool) -> Mask:
    """Restrict a mask to replicated leaves, or to the others."""
    return tuple(there and (slot in replicated) is kind for slot, there in enumerate(mask))


def of_slots(
    backend: Backend, group: Group, count: int, vectors: Sequence[tuple[Array, float]], leaves: Row
) -> list[Array]:
    """Combine vectors with a number for each of `count` slots over all devices of a group, with one collective."""
    orders = [math.inf if i in (group.replicated or ()) else float(ord) for _, ord in vectors for i in range(count)]
    found = _combined(backend, group, backend.compute(_joined, *[vector for vector, _ in vectors]), orders, leaves)
    parts = [tuple(range(start, start + count)) for start in range(0, len(orders), count)]
    return [backend.compute(formulas.take, found, index=part) for part in parts]


def _combined(backend: Backend, group: Group, numbers: Array, orders: Sequence[float], leaves: Row) -> Array:
    """Combine numbers as norms; those beyond the orders are of replicated leaves, which are equal where they are."""
    rows = devices_of(backend, group.axis).all_gather(numbers, group.axis, leaves[0] if leaves else None)
    more = (math.inf,) * (rows.shape[1] - len(orders))
    return backend.compute(norms_over, rows, orders=(*orders, *more))


# --- formulas of numbers of several devices, one row per device ---------------------------------------------------


def norms_over(xp: Any, rows: Array, *, orders: tuple[float | None, ...]) -> Array:
    """Combine each column into a norm, or a sum (None); orders are one for all columns, or one for each."""
    return formulas.by_kind(xp, orders, lambda ord: xp.take(_over(xp, rows, ord), 0))


def _over(xp: Any, rows: Array, ord: float | None) -> Array:
    return norms.add(xp, rows, (0,)) if ord is None else norms.norm(xp, rows, (0,), ord)


def _total(xp: Any, numbers: Array, *, orders: tuple[float, ...]) -> Array:
    """Combine the numbers of other leaves with those of replicated ones."""
    return norms_over(xp, xp.reshape(numbers, (2, len(orders))), orders=orders)


def _joined(xp: Any, *vectors: Array) -> Array:
    return xp.reshape(xp.stack(vectors), (-1,))
