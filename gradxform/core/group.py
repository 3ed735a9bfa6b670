"""Combine the numbers of devices that hold parts of one tree, with one all-gather per group.

Every device combines the gathered numbers in the same order, so all get the same bits and decide alike. Nothing is
summed in transit (all-reduce), since an unspecified order changes the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend, Devices
from gradxform.numerics import Array, formulas

Mask = tuple[bool, ...]
"""One bool per leaf."""
Own = Callable[[Mask], Any]
"""Computes this device's number from the leaves in a mask."""


class Group(NamedTuple):
    """The devices along one axis."""

    axis: Any
    by_leaf: bool
    """Whether each device has a slice of every leaf, instead of its own leaves."""
    replicated: tuple[bool, ...] | None
    """For each slot of the tree, whether its leaf is replicated; None if no leaf is."""
    alike: bool
    """Whether the trees of all devices have the same structure."""
    traced: bool
    """Whether one program is traced for all devices; then dtypes and None agree on all of them."""

    def replicated_of(self, slots: Sequence[int]) -> tuple[bool, ...]:
        """For each of some slots, whether its leaf is replicated."""
        return tuple([self.replicated is not None and self.replicated[slot] for slot in slots])


class Whole(NamedTuple):
    """The combined numbers, and whether they count as float32 (may be a traced number)."""

    values: list[Any]
    single: Any


def devices_of(backend: Backend, axis: Any) -> Devices:
    """Return the backend's functions of several devices.

    Raises:
        TypeError: the framework has one device.
    """
    if backend.devices is None:
        raise TypeError(f"across: {backend.title} has one device, and no axis {axis!r}; leave across(...) out here")
    return backend.devices


def whole(
    backend: Backend,
    groups: Sequence[Group],
    asked: Sequence[tuple[Own, float]],
    mask: Mask,
    slots: Sequence[int],
    single: bool,
    like: Array | None,
    held: Array | None = None,
) -> Whole:
    """Combine numbers over all devices of some groups, with one collective per group.

    The record of a device has the numbers asked for and, unless all devices run one program, whether it has such leaves
    and whether one is float64. A group with replicated leaves doubles it: the other leaves, then the replicated ones.

    Args:
        backend: the framework.
        groups: the groups, the outermost first.
        asked: for each number, the function that computes this device's part, and the order of the norm.
        mask: the leaves that take part.
        slots: the slots of the leaves.
        single: whether all of this device's leaves count in float32.
        like: a leaf; None if there is none.
        held: for each slot, 1 if a device along the other axes has a leaf, else 0; None if this device has all.
    """
    if not groups:
        return Whole([own(mask) if any(mask) else 0.0 for own, _ in asked], single)
    masks = [mask]
    for group in groups:
        if group.replicated is not None:
            replicated = group.replicated_of(slots)
            masks = [_where(part, replicated, kind) for kind in (False, True) for part in masks]
    told = not all(group.traced for group in groups)
    record, parts = [], len(masks)
    for part in masks:
        there = float(any(part)) if held is None else backend.compute(_some, held, active=part)
        record += [own(part) if any(part) else 0.0 for own, _ in asked] + [there, float(not single)] * told
    orders = (*(float(ord) for _, ord in asked), *[math.inf, math.inf] * told)
    vector = backend.compute(formulas.stack, *record)
    for group in reversed(groups):
        rows, same = devices_of(backend, group.axis).all_gather(vector, group.axis, like), group.replicated is not None
        parts //= 1 + same
        vector = backend.compute(_joined, rows, orders=orders, parts=parts, same=same, told=told)
    numbers = [backend.compute(formulas.take, vector, index=i) for i in range(len(orders))]
    narrow = backend.compute(formulas.difference, 1.0, numbers[-1]) if told else single
    return Whole(numbers[: len(asked)], bool(narrow) if isinstance(narrow, float) else narrow)


def _where(mask: Mask, replicated: Sequence[bool], kind: bool) -> Mask:
    """Restrict a mask to replicated leaves, or to the others."""
    return tuple(there and own is kind for there, own in zip(mask, replicated, strict=True))


def of_slots(backend: Backend, group: Group, vectors: Sequence[tuple[Any, float]], like: Array | None) -> list[Any]:
    """Combine vectors of per-slot norms over all devices of a group, with one collective."""
    numbers = backend.compute(formulas.stack, *(vector for vector, _ in vectors))
    rows = devices_of(backend, group.axis).all_gather(numbers, group.axis, like)
    with backend.scope():
        columns = [rows[:, i] for i in range(len(vectors))]
    orders = [float(ord) for _, ord in vectors]
    return [backend.compute(norms_over, c, ord=o, same=group.replicated) for c, o in zip(columns, orders, strict=True)]


# --- formulas of numbers of several devices, one row per device ---------------------------------------------------


class _Rows:
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


def norms_over(xp: Any, rows: Any, *, ord: float | None, same: tuple[bool, ...] | None) -> Any:
    """Combine each column into a norm, or a sum (None); for replicated leaves, use the first device's number."""
    by_column = _Rows(xp)
    found = by_column.sum(rows) if ord is None else formulas.total_norm_scaled(by_column, rows, active=None, ord=ord)
    return found if same is None else xp.where(xp.mask(same), xp.take(rows, 0), found)


def _first_there(xp: Any, numbers: Any, there: Any) -> Any:
    """Return the number of the first device whose flag is set."""
    places = xp.arange(there.shape[0])
    none = 1.0 * there.shape[0]
    nearest = -xp.max(xp.where(there > 0.5, -places, -none))
    return xp.sum(xp.where(formulas.equal(places, nearest), numbers, 0.0))


def _joined(xp: Any, rows: Any, *, orders: tuple[float, ...], parts: int, same: bool, told: bool) -> Any:
    """Combine the records of all devices; replicated leaves count as on the first device that has any."""
    out, size = [], len(orders)
    for i in range(parts * size):
        norm = formulas.total_norm_scaled(xp, rows[:, i], active=None, ord=orders[i % size])
        if same:
            twins, there = rows[:, parts * size + i], parts * size + i - i % size + size - 2
            first = _first_there(xp, twins, rows[:, there]) if told else xp.take(twins, 0)
            norm = formulas.total_norm_scaled(xp, xp.stack((norm, first)), active=None, ord=orders[i % size])
        out.append(norm)
    return xp.stack(out)


def _some(xp: Any, flags: Array, *, active: tuple[bool, ...]) -> Array:
    """Return 1 if any flag in the mask is set, else 0."""
    return xp.max(xp.where(xp.mask(active), flags, 0.0))


def no_numbers(xp: Any) -> Array:
    """Return an empty vector."""
    return xp.arange(0)


def beside(xp: Any, vector: Array, *, numbers: tuple[Any, ...]) -> Array:
    """Turn known numbers into a vector on the device of another one."""
    return xp.stack(numbers)
