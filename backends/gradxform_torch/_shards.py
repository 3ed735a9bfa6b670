"""Shards of DTensors, as in FSDP2 and tensor parallelism, and what belongs to them of other arrays.

PyTorch's DTensor module is imported only once there is a DTensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from gradxform_torch import _private, _readable
from gradxform_torch._readable import TENSORS


def types() -> tuple[type, ...]:
    """The DTensor type, if imported: torch.compile cannot follow the search for a backend."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, replicated or not."""
    return type(x) not in TENSORS and hasattr(type(x), "from_local")


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether any is a DTensor."""
    kinds = {type(x) for x in tensors if x is not None}  # of whose type torch.compile cannot ask
    return not kinds <= TENSORS and any([hasattr(kind, "from_local") for kind in kinds])


def axis_of(placement: Any) -> int | None:
    """Axis of a placement, None if replicated; is_shard() ignores strided shards."""
    return getattr(placement, "dim", None)


def is_writable(leaf: Any) -> bool:
    """Whether each element has its own memory and needs no gradient."""
    if is_sharded(leaf) and any(placement.is_partial() for placement in leaf.placements):
        return False
    return _readable.is_writable(local(leaf))


# --- from whole to shard, and back -----------------------------------------------------------------------------------


def local(x: Any) -> Any:
    """This process's shard of a DTensor; other tensors are unchanged."""
    if not is_sharded(x):
        return x
    own = x.to_local()
    return own.wait() if hasattr(own, "wait") else own  # a collective may be under way


def whole(x: Any) -> Any:
    """Gather a DTensor; others are unchanged."""
    return x.full_tensor() if is_sharded(x) else x


def replicated(leaf: Any, axes: Collection[int] = ()) -> Any:
    """Add up the terms of a partial DTensor, and gather it along some axes; other shards stay where they are."""
    return _placed(leaf, _replicated(leaf, axes)) if is_sharded(leaf) else leaf


def _replicated(leaf: Any, axes: Collection[int | None] = ()) -> list[Any]:
    from torch.distributed.tensor import Replicate

    return [Replicate() if p.is_partial() or axis_of(p) in axes else p for p in leaf.placements]


def part(leaf: Any, x: Any) -> Any:
    """What belongs to a leaf's shard of an array that broadcasts against the leaf; numbers are unchanged.

    Along an axis of another size than the leaf's, it has this process's own numbers, or one for all.
    """
    rank = len(getattr(x, "shape", ()))
    if not rank or not is_sharded(leaf):
        return whole(x)
    if is_sharded(x) and (x.device_mesh, x.shape) == (leaf.device_mesh, leaf.shape):
        return local(_placed(x, leaf.placements))
    return _cut(torch.as_tensor(whole(x)), leaf, range(leaf.ndim - rank, leaf.ndim)).to(leaf.device)


def like(leaf: Any, own: Any, new: Any, summed: bool = False) -> Any:
    """A DTensor with a new shard in place of a leaf's own; the leaf itself if it is the same.

    It is placed like the leaf; if summed, like the sum of a partial leaf.
    """
    if new is own or not is_sharded(leaf):
        return leaf if new is own else new
    mesh, stride = leaf.device_mesh, leaf.stride()
    if new.stride() != own.stride():
        new, stride = new.contiguous(), torch.empty(leaf.shape, device="meta").stride()
    if new.device.type == mesh.device_type or new.is_meta:
        placements = _replicated(leaf) if summed else leaf.placements
        return type(leaf).from_local(new, mesh, placements, run_check=False, shape=leaf.shape, stride=stride)
    kept = torch.empty_like(leaf, dtype=new.dtype)  # offloaded to the host, where from_local would not leave it
    local(kept).copy_(new)
    return kept


def alongside(leaf: Any, x: Any) -> Any:
    """Shard an array of a leaf's shape like the leaf."""
    if is_sharded(leaf) and is_sharded(x) and (x.device_mesh, x.placements) == (leaf.device_mesh, leaf.placements):
        return x
    return like(leaf, local(leaf), part(leaf, x))


def _placed(x: Any, placements: Sequence[Any]) -> Any:
    return x if tuple(x.placements) == tuple(placements) else x.redistribute(placements=placements)


def _cut(x: torch.Tensor, leaf: Any, axes: Sequence[int]) -> Any:
    """The part of a tensor with some of a leaf's axes, without communication."""
    from torch.distributed.tensor import DTensor, Replicate

    at = {axis: i for i, axis in enumerate(axes) if x.shape[i] == leaf.shape[axis]}
    if not any([axis_of(p) in at for p in leaf.placements]):
        return x
    placements = [_on_axis(p, at[p.dim]) if axis_of(p) in at else Replicate() for p in leaf.placements]
    everywhere = DTensor.from_local(x, leaf.device_mesh, [Replicate()] * len(placements), run_check=False)
    return local(everywhere.redistribute(placements=placements))


def _on_axis(placement: Any, axis: int) -> Any:
    """A tensor's placement, on another axis."""
    factor = _private.split_factor(placement)
    return type(placement)(axis) if factor is None else type(placement)(axis, split_factor=factor)


# --- indices of elements ---------------------------------------------------------------------------------------------


def number_in_whole(leaf: Any, numbers: Any) -> Any:
    """Convert element indices in a shard to those in the whole leaf, on the device of the indices."""
    if not is_sharded(leaf):
        return numbers
    sizes = local(leaf).shape
    for axis in reversed(range(leaf.ndim if math.prod(sizes) else 0)):
        over = [dim for dim, placement in enumerate(leaf.placements) if axis_of(placement) == axis]
        if not over:
            continue
        step, size = math.prod(leaf.shape[axis + 1 :]), sizes[axis]
        before = numbers // (step * size) * (leaf.shape[axis] - size) if axis else 0
        if any([_private.split_factor(leaf.placements[dim]) for dim in over]):
            places = numbers // step % size
            first = _places(leaf, axis, places) - places
        else:
            first = _first(leaf, axis, over)
        numbers = numbers + (before + first) * step
    return numbers


def _places(leaf: Any, axis: int, places: Any) -> Any:
    """Convert indices along an axis of a shard to those in the whole leaf."""
    on_host = isinstance(places, np.ndarray)
    there = _cut(torch.arange(leaf.shape[axis], device="cpu" if on_host else places.device), leaf, (axis,))
    return there.numpy()[places] if on_host else there.to(places.device)[places]


def _first(leaf: Any, axis: int, over: Sequence[int]) -> int:
    """The first index of a shard along an axis that mesh dimensions cut, each like `torch.chunk`."""
    size, first = leaf.shape[axis], 0
    for dim in over:
        most = -(-size // leaf.device_mesh.size(dim))
        start = min(leaf.device_mesh.get_coordinate()[dim] * most, size)
        size, first = min(most, size - start), first + start
    return first
