"""Stacks of small leaves of one shape and layout, which save launches.

One multi-tensor call copies the leaves of many stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform_torch import _packed, _private

Reduction = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
"""Reduces an array over axes, which are kept as ones. Applied to the results of pieces, it reduces the whole."""


class Stack(NamedTuple):
    """Copies of leaves of one shape, along the first axis of one array."""

    places: Sequence[int]
    array: torch.Tensor


def alike(*columns: Sequence[torch.Tensor], keys: Sequence[Any] | None = None) -> list[list[int]]:
    """Group the positions of leaves of one shape, layout and key, and the tensors beside them.

    A large leaf, or one with gaps in memory, forms its own group.
    """
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    for i, (leaf, *others) in enumerate(zip(*columns, strict=True)):
        count, key = leaf.numel(), None if keys is None else keys[i]
        lies = leaf.device, leaf.dtype, leaf.shape, leaf.stride(), *[(x.dtype, x.shape) for x in others], key
        places = latest.get(lies)
        if places is None or count > _packed.LARGE or (len(places) + 1) * count > _packed.PART or not is_dense(leaf):
            found.append(places := [])
            latest[lies] = places
        places.append(i)
    return found


def stacks(leaves: Sequence[torch.Tensor], groups: Sequence[Sequence[int]], dtype: Any = None) -> Iterator[list[Stack]]:
    """Copy groups of leaves in a dtype (default: their own), at most PART elements at a time."""
    kinds: dict[Any, list[Sequence[int]]] = {}
    for places in groups:
        kinds.setdefault((leaves[places[0]].device, leaves[places[0]].dtype), []).append(places)
    for (device, own), some in kinds.items():
        pending: list[Sequence[int]] = []
        free = _packed.PART
        for places in some:
            count = len(places) * leaves[places[0]].numel()
            if pending and count > free:
                yield _filled(leaves, pending, dtype or own, device)
                pending, free = [], _packed.PART
            pending.append(places)
            free -= count
        yield _filled(leaves, pending, dtype or own, device)


def put(out: Sequence[torch.Tensor], part: Sequence[Stack]) -> None:
    """Copy the values of stacks into tensors, by one call."""
    rows = [row for stack in part for row in stack.array.unbind()]
    _private.foreach_copy_([out[i] for stack in part for i in stack.places], rows)


def reduced(
    leaves: Sequence[torch.Tensor], axes: Sequence[tuple[int, ...]], function: Reduction
) -> Sequence[torch.Tensor]:
    """Reduce each leaf in float64, large leaves in pieces."""
    found: dict[int, torch.Tensor] = {}
    groups = alike(leaves, keys=axes)
    small = [places for places in groups if leaves[places[0]].numel() <= _packed.LARGE]
    for part in stacks(leaves, small, torch.float64):
        for places, array in part:
            over = tuple([axis + 1 for axis in axes[places[0]]])
            found.update(zip(places, function(array, over).unbind(), strict=True))
    for i, leaf in enumerate(leaves):
        if i not in found:
            found[i] = _in_pieces(leaf, axes[i], function)
    return [found[i] for i in range(len(leaves))]


def _in_pieces(leaf: torch.Tensor, over: tuple[int, ...], function: Reduction) -> torch.Tensor:
    """Reduce one leaf in pieces along its first axis with short enough slices, else its longest axis."""
    rest = [leaf.numel() // size for size in leaf.shape]
    axis = next((a for a, count in enumerate(rest) if count <= _packed.PART), rest.index(min(rest)))
    size, step = leaf.shape[axis], max(_packed.PART // rest[axis], 1)
    starts = range(0, size, step)
    pieces = [function(leaf.narrow(axis, start, min(step, size - start)).double(), over) for start in starts]
    whole = torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0]
    return function(whole, over) if axis in over and len(pieces) > 1 else whole


def _filled(
    leaves: Sequence[torch.Tensor], groups: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> list[Stack]:
    """Copy groups of leaves into one piece of memory, each stack in the layout of its leaves."""
    memory = torch.empty(sum([len(p) * leaves[p[0]].numel() for p in groups]), dtype=dtype, device=device)
    found, start = [], 0
    for places in groups:
        leaf = leaves[places[0]]
        shape, stride = (len(places), *leaf.shape), (leaf.numel(), *leaf.stride())
        found.append(Stack(places, memory.as_strided(shape, stride, start)))
        start += len(places) * leaf.numel()
    put_into = [row for stack in found for row in stack.array.unbind()]
    _private.foreach_copy_(put_into, [leaves[i] for places in groups for i in places])
    return found


def is_dense(leaf: torch.Tensor) -> bool:
    """Whether the elements fill a contiguous piece of memory, in any order of axes."""
    if leaf.is_contiguous():
        return True
    step = 1
    for stride, size in sorted(zip(leaf.stride(), leaf.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
