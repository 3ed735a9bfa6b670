"""Tensors sharded over a mesh: DTensors, as in FSDP2 and tensor parallelism.

Each process computes on its own shards, and results are sharded like the gradients. Local results need no
communication. PyTorch's DTensor module is imported only once there is a DTensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from gradxform_torch._namespace import OfLeaves, numbered
from gradxform_torch._readable import PLAIN

Local = Callable[[list[Any]], Sequence[Any]]


def types() -> tuple[type, ...]:
    """The DTensor type, if imported: torch.compile cannot follow the search for a backend."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, replicated or not."""
    return type(x) not in PLAIN and hasattr(type(x), "from_local")


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether any is a DTensor."""
    kinds = {type(x) for x in tensors if x is not None}  # of whose type torch.compile cannot ask
    return not kinds <= PLAIN and any([hasattr(kind, "from_local") for kind in kinds])


def local(x: Any) -> Any:
    """This process's part of a tensor."""
    if not is_sharded(x):
        return x
    own = x.to_local()
    return own.wait() if hasattr(own, "wait") else own  # a collective may be under way


def whole(x: Any) -> Any:
    """Gather a DTensor; other tensors are unchanged."""
    return x.full_tensor() if is_sharded(x) else x


def gathered(leaf: Any, axes: Sequence[int]) -> Any:
    """Gather a DTensor along some axes; shards of other axes stay where they are."""
    if not is_sharded(leaf) or not any(axis_of(placement) in axes for placement in leaf.placements):
        return leaf
    from torch.distributed.tensor import Replicate

    return leaf.redistribute(placements=[Replicate() if axis_of(p) in axes else p for p in leaf.placements])


# --- on the shards ---------------------------------------------------------------------------------------------------


def added(leaves: Sequence[Any]) -> list[Any]:
    """Reduce partial DTensors to their sums.

    Raises:
        ValueError: This process has no part of a leaf.
    """
    for mesh in {leaf.device_mesh for leaf in leaves if is_sharded(leaf)}:
        if mesh.get_coordinate() is None:
            raise ValueError(
                f"this process is not in the {mesh} of a gradient and cannot know its norm; transform the parameters "
                "of one mesh on the processes that are in it"
            )
    return [_added(leaf) if is_sharded(leaf) else leaf for leaf in leaves]


def _added(leaf: Any) -> Any:
    if not any(placement.is_partial() for placement in leaf.placements):
        return leaf
    from torch.distributed.tensor import Replicate

    return leaf.redistribute(placements=[Replicate() if p.is_partial() else p for p in leaf.placements])


def on_shards(leaves: Sequence[Any], function: Local) -> list[Any]:
    """Apply a function to the shards, keeping the leaves' sharding; it may write to shards and return them."""
    own = [local(leaf) for leaf in leaves]
    return [like(leaf, mine, new) for leaf, mine, new in zip(leaves, own, function(own), strict=True)]


def like(leaf: Any, own: Any, new: Any) -> Any:
    """A DTensor with a new shard, sharded like the leaf; the leaf itself if the shard is its own."""
    if new is own:
        return leaf
    return _spread(leaf, own, new, leaf.placements) if is_sharded(leaf) else new


def _spread(leaf: Any, own: Any, new: Any, placements: Sequence[Any]) -> Any:
    mesh, stride = leaf.device_mesh, leaf.stride()
    if new.stride() != own.stride():
        new, stride = new.contiguous(), _strides(leaf.shape)
    if new.device.type == mesh.device_type or new.is_meta:
        return type(leaf).from_local(new, mesh, placements, run_check=False, shape=leaf.shape, stride=stride)
    kept = torch.empty_like(leaf, dtype=new.dtype)  # offloaded to the host, where from_local would not leave it
    local(kept).copy_(new)
    return kept


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of contiguous memory."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(size, 1)
    return tuple(reversed(found))


def shards_of(column: Sequence[Any]) -> list[Any]:
    """Shard of the first tensor of a column, and the same part of the others; broadcast tensors are unchanged."""
    return [local(column[0]), *(_shard_of(column[0], part) for part in column[1:])]


def _shard_of(leaf: Any, part: Any) -> Any:
    if not is_sharded(leaf):
        return whole(part)
    if tuple(getattr(part, "shape", ())) != tuple(leaf.shape) or leaf.ndim == 0:
        return whole(part)
    return _part(part, leaf)


def alongside(leaf: Any, part: Any) -> Any:
    """Shard a tensor of a leaf's shape like the leaf."""
    if not is_sharded(leaf):
        return whole(part)
    if is_sharded(part) and part.device_mesh == leaf.device_mesh and tuple(part.placements) == tuple(leaf.placements):
        return part
    return _spread(leaf, local(leaf), _part(part, leaf), leaf.placements)


def _part(part: Any, leaf: Any) -> Any:
    """Part of an array of a leaf's shape that matches the leaf's shard."""
    if is_sharded(part) and part.device_mesh == leaf.device_mesh:
        same = tuple(part.placements) == tuple(leaf.placements)
        return local(part if same else part.redistribute(placements=leaf.placements))
    return cut(part, leaf)


def cut(part: Any, leaf: Any) -> Any:
    """Part of a broadcastable array that matches a leaf's shard; numbers are unchanged."""
    part = whole(part)
    rank = len(getattr(part, "shape", ()))
    return _cut(torch.as_tensor(part), leaf, range(leaf.ndim - rank, leaf.ndim)) if rank and is_sharded(leaf) else part


def _cut(part: torch.Tensor, leaf: Any, axes: Sequence[int]) -> Any:
    """The same for a tensor with some of the leaf's axes, without communication."""
    from torch.distributed.tensor import DTensor, Replicate

    at = {axis: i for i, axis in enumerate(axes) if part.shape[i] == leaf.shape[axis]}
    placements = [_on_axis(p, at[p.dim]) if axis_of(p) in at else Replicate() for p in leaf.placements]
    everywhere = DTensor.from_local(part, leaf.device_mesh, [Replicate()] * len(placements), run_check=False)
    return local(everywhere.redistribute(placements=placements))


def _on_axis(placement: Any, axis: int) -> Any:
    """A tensor's placement, on another axis."""
    strided = hasattr(placement, "split_factor")
    return type(placement)(axis, split_factor=placement.split_factor) if strided else type(placement)(axis)


def of_shard(formula: Callable[..., Any], leaf: Any) -> Callable[..., Any]:
    """A formula of elements for a leaf's shard: element indices are those in the whole leaf."""
    if not is_sharded(leaf):
        return formula
    return numbered(formula, lambda xp, x: _number_in_whole(leaf, xp.iota(x)))


class OfShards(OfLeaves):
    """A formula of elements for the shards of several leaves."""

    def of(self, i: int) -> Callable[..., Any]:
        """Return the formula for one leaf."""
        return of_shard(self.formula, self.leaves[i])

    def numbers(self, i: int, numbers: torch.Tensor) -> torch.Tensor:
        """Convert element indices in a shard to those in the whole leaf."""
        return _number_in_whole(self.leaves[i], numbers) if is_sharded(self.leaves[i]) else numbers


def _number_in_whole(leaf: Any, numbers: Any) -> Any:
    """Convert element indices in a shard to those in the whole leaf, on the device of the indices."""
    over = {axis_of(placement) for placement in leaf.placements} - {None}
    strided = any([hasattr(placement, "split_factor") for placement in leaf.placements])
    sizes, starts = (local(leaf).shape, None) if strided else _pieces(leaf)
    if not over or not math.prod(sizes):
        return numbers
    if starts is not None and over == {0}:
        return numbers + starts[0] * math.prod(leaf.shape[1:])
    found, rest, step = numbers * 0, numbers, 1
    for axis in reversed(range(leaf.ndim)):
        place = rest % sizes[axis]
        if axis in over:
            place = _places(leaf, axis, place) if starts is None else place + starts[axis]
        found, rest, step = found + place * step, rest // sizes[axis], step * leaf.shape[axis]
    return found


def _pieces(leaf: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Return the size and the offset of a leaf's shard along each axis; a mesh cuts like `torch.chunk`."""
    sizes, starts = list(leaf.shape), [0] * leaf.ndim
    for dim, placement in enumerate(leaf.placements):
        axis = axis_of(placement)
        if axis is not None:
            most = -(-sizes[axis] // leaf.device_mesh.size(dim))
            start = min(leaf.device_mesh.get_coordinate()[dim] * most, sizes[axis])
            starts[axis], sizes[axis] = starts[axis] + start, min(most, sizes[axis] - start)
    return sizes, starts


def _places(leaf: Any, axis: int, place: Any) -> Any:
    """Convert indices along an axis of a strided shard to those in the whole leaf."""
    on = "cpu" if isinstance(place, np.ndarray) else place.device
    there = _cut(torch.arange(leaf.shape[axis], device=on), leaf, (axis,))
    return there.numpy()[place] if isinstance(place, np.ndarray) else there.to(on)[place]


def on_backward(leaves: Sequence[Any], function: Callable[..., Any], make: Callable[..., Sequence[Any]]) -> list[Any]:
    """Leaves made by `make` from their shards and from a function of the shards' gradients."""

    def flowing(upstream: Sequence[Any], numbers: Sequence[Any]) -> tuple[list[Any] | None, Any]:
        given = [
            _flowing(leaf, mine) if is_sharded(leaf) else mine for leaf, mine in zip(leaves, upstream, strict=True)
        ]
        found, others = function(given, numbers)
        return None if found is None else list(map(local, found)), others

    return on_shards(leaves, lambda own: make(own, flowing))


def _flowing(leaf: Any, own: Any) -> Any:
    """Gradient that flows back to a leaf; partial summands all get the same."""
    from torch.distributed.tensor import Replicate

    return _spread(leaf, local(leaf), own, [Replicate() if p.is_partial() else p for p in leaf.placements])


def axis_of(placement: Any) -> int | None:
    """Axis of a placement, None if replicated; is_shard() ignores strided shards."""
    return getattr(placement, "dim", None)
