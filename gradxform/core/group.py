"""Combine the numbers of devices that hold parts of one tree, with one all-gather per group.

Every device combines the gathered numbers in the same order, so all get the same bits and decide alike. Nothing is
summed in transit (all-reduce), since an unspecified order changes the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.numerics import Array, formulas

Mask = tuple[bool, ...]
"""One bool per leaf."""
Own = Callable[[Mask], Any]
"""Computes this device's number from the leaves in a mask."""
Kind = tuple[bool, ...]
"""For each group with replicated leaves, whether leaves are replicated in it."""
Numbers = dict[tuple[int, Kind], Any]
"""Numbers by index of the request and kind of the leaves."""


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
    marked = [group for group in groups if group.replicated is not None]
    masks = {kind: _of_kind(mask, slots, marked, kind) for kind in itertools.product((False, True), repeat=len(marked))}
    there = {kind: float(any(of)) for kind, of in masks.items()}
    known: Numbers = {
        (i, kind): own(of) if there[kind] else 0.0 for i, (own, _) in enumerate(asked) for kind, of in masks.items()
    }
    if held is not None:
        there = {kind: backend.compute(_some, held, active=of) for kind, of in masks.items()}
    all_single: Any = single
    for group in reversed(groups):
        place = marked.index(group) if group in marked else None
        flags = [] if group.traced else [_number(all_single), *there.values()]
        rows, told = gather(backend, group.axis, list(known.values()), flags, like)
        has = dict(zip(there, told[1:], strict=True)) if told else {}
        if told:
            all_single = _flag(backend, _every, told[0])
        known = _joined(backend, dict(zip(known, rows, strict=True)), asked, place, has)
        there = _there(backend, there, has, place)
    return Whole(list(known.values()), all_single)


def _there(backend: Backend, own: dict[Kind, Any], held: dict[Kind, Array], place: int | None) -> dict[Kind, Any]:
    """Whether any device of the group has leaves of each kind; merges replicated and other leaves of the group."""
    known = {kind: backend.compute(_some, held[kind]) if kind in held else own[kind] for kind in own}
    if place is None:
        return known
    twins = {kind: known[*kind[:place], True, *kind[place + 1 :]] for kind in known if not kind[place]}
    return {kind: backend.compute(_larger, known[kind], twin) for kind, twin in twins.items()}


def _joined(
    backend: Backend, found: Numbers, asked: Sequence[tuple[Own, float]], place: int | None, held: dict[Kind, Array]
) -> Numbers:
    """Combine one number per device into norms; for replicated leaves, use the first device's number."""
    out: Numbers = {}
    for i, kind in found:
        if place is not None and kind[place]:
            continue
        ord = asked[i][1]
        norm = _norm(backend, [found[i, kind]], ord)
        if place is not None:
            twin = (*kind[:place], True, *kind[place + 1 :])
            norm = _norm(backend, [norm, _first(backend, found[i, twin], held.get(twin))], ord)
        out[i, kind] = norm
    return out


def of_slots(backend: Backend, group: Group, vectors: Sequence[tuple[Any, float]], like: Array | None) -> list[Any]:
    """Combine vectors of per-slot norms over all devices of a group, with one collective."""
    given = [vector for vector, _ in vectors]
    rows, _ = gather(backend, group.axis, given, (), like)
    return [
        backend.compute(norms_over, row, ord=float(ord), same=group.replicated)
        for row, (_, ord) in zip(rows, vectors, strict=True)
    ]


def gather(
    backend: Backend, axis: Any, values: Sequence[Any], flags: Sequence[Any], like: Array | None
) -> tuple[list[Any], list[Any]]:
    """All-gather numbers (or vectors of one length) and flags of all devices, with one collective.

    Returns one entry or row per device.
    """
    found = backend.all_gather(backend.compute(formulas.stack, *values, *flags), axis, like)
    with backend.scope():
        columns = [found[:, i] for i in range(len(values) + len(flags))]
    return columns[: len(values)], columns[len(values) :]


def replicated_in(mask: Sequence[bool], slots: Sequence[int], count: int) -> tuple[bool, ...]:
    """Convert a mask of leaves to a mask of slots."""
    chosen = {slot for slot, there in zip(slots, mask, strict=True) if there}
    return tuple(slot in chosen for slot in range(count))


def _of_kind(mask: Mask, slots: Sequence[int], marked: Sequence[Group], kind: Kind) -> Mask:
    """Restrict a mask to the leaves of one kind."""
    if not marked:
        return mask
    both = zip(mask, slots, strict=True)
    return tuple(
        there and all(group.replicated_of([slot])[0] == same for group, same in zip(marked, kind, strict=True))
        for there, slot in both
    )


def _norm(backend: Backend, numbers: Sequence[Any], ord: float) -> Any:
    """Combine the norms of all devices, or two norms."""
    vector = numbers[0] if len(numbers) == 1 else backend.compute(formulas.stack, *numbers)
    return backend.compute(formulas.total_norm_scaled, vector, active=None, ord=float(ord))


def _first(backend: Backend, numbers: Array, there: Array | None) -> Any:
    """Return the number of the first device, or of the first device with leaves of the kind."""
    if there is None:
        return backend.compute(formulas.take, numbers, index=0)
    return backend.compute(_first_there, numbers, there)


def _flag(backend: Backend, formula: Callable[..., Any], flags: Array) -> Any:
    """Combine a flag of all devices; a bool if it can be read."""
    found = backend.compute(formula, flags)
    return bool(found) if isinstance(found, (bool, float)) else found


def _number(flag: Any) -> Any:
    return float(flag) if isinstance(flag, bool) else flag


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


def norms_over(xp: Any, rows: Any, *, ord: float, same: tuple[bool, ...] | None) -> Any:
    """Combine each column into a norm; for replicated leaves, use the first device's number."""
    found = formulas.total_norm_scaled(_Rows(xp), rows, active=None, ord=ord)
    return found if same is None else xp.where(xp.mask(same), xp.take(rows, 0), found)


def _first_there(xp: Any, numbers: Any, there: Any) -> Any:
    """Return the number of the first device whose flag is set."""
    places = xp.arange(there.shape[0])
    none = 1.0 * there.shape[0]
    nearest = -xp.max(xp.where(there > 0.5, -places, -none))
    return xp.sum(xp.where(formulas.equal(places, nearest), numbers, 0.0))


def _every(xp: Any, flags: Array) -> Array:
    """Return 1 if all flags are set, else 0."""
    return 1.0 - xp.max(1.0 - flags)


def _some(xp: Any, flags: Array, *, active: tuple[bool, ...] | None = None) -> Array:
    """Return 1 if any flag (in the mask, if given) is set, else 0."""
    return xp.max(flags if active is None else xp.where(xp.mask(active), flags, 0.0))


def _larger(xp: Any, one: Any, other: Any) -> Array:
    """Return the larger of two flags."""
    return xp.where(one > other, one, other)


def no_numbers(xp: Any) -> Array:
    """Return an empty vector."""
    return xp.arange(0)


def beside(xp: Any, vector: Array, *, numbers: tuple[Any, ...]) -> Array:
    """Turn known numbers into a vector on the device of another one."""
    return xp.stack(numbers)


def per_root(xp: Any, norms: Array, counts: Array) -> Array:
    """Convert norms to root mean squares, with gathered element counts."""
    return norms / xp.sqrt(_counted(xp, counts))


def per_count(xp: Any, norms: Array, counts: Array) -> Array:
    """Convert norms to average norms, with gathered element counts."""
    return norms / _counted(xp, counts)


def _counted(xp: Any, counts: Array) -> Array:
    return xp.where(counts > 0.5, counts, 1.0)
