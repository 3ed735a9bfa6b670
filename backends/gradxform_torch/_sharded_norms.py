"""Norms and sums of tensors that are sharded over a mesh.

Processes exchange norms and sums of shards in float64, for all leaves of a mesh at once: one collective per sharded
mesh dimension. Each process combines them in the same order, so all get the same bits and make the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from gradxform.core import group as devices
from gradxform_torch._namespace import Namespace
from gradxform_torch._readable import transformed
from gradxform_torch._sharded import axis_of, is_sharded, local


def norms(leaves: Sequence[Any], ord: float, measure: Callable[[list[Any], float], Any]) -> Any:
    """Vector of the whole leaves' norms, in the format of the shards' norms.

    A replicated leaf's norm comes from the first process, so that no bit differs.
    """
    found = measure([local(leaf) for leaf in leaves], ord)
    own, split = torch.as_tensor(found), [split_over(leaf) for leaf in leaves]
    columns = list(own.unbind())
    meshes: list[Any] = [leaf.device_mesh if is_sharded(leaf) else None for leaf in leaves]
    for mesh in dict.fromkeys(mesh for mesh, over in zip(meshes, split, strict=True) if over):
        here = [i for i, own in enumerate(meshes) if own is None or own == mesh]
        told = torch.stack([columns[i] for i in here])
        gathered = _all_gather(told, mesh, {dim for i in here for dim in split[i]})
        for over in dict.fromkeys(split[i] for i in here):
            places = [i for i in here if split[i] == over]
            each = _rows(gathered, mesh.ndim, over).unbind(-1)
            rows = torch.stack([each[here.index(i)] for i in places], -1)
            new = _over_rows(rows, ord) if over else rows.select(0, 0)
            for i, column in zip(places, new.unbind(), strict=True):
                columns[i] = column
    return _like(found, torch.stack(columns))


def norms_over(leaf: Any, axes: tuple[int, ...], ord: float, found: Any) -> Any:
    """Norms over some axes of a leaf, from its shards' norms; only for slices on this process."""
    rows = _over_axes(leaf, axes, found)
    return found if rows is None else _like(found, _over_rows(rows, ord))


def sum_over(leaf: Any, axes: tuple[int, ...], found: Any) -> Any:
    """Sums over some axes of a leaf, like `norms_over`."""
    rows = _over_axes(leaf, axes, found)
    return found if rows is None else _like(found, rows.sum(0))


def _over_axes(leaf: Any, axes: tuple[int, ...], found: Any) -> torch.Tensor | None:
    """Numbers of all processes that share a slice, one row per process; None if no other process has a part."""
    over, own = split_over(leaf, {axis % leaf.ndim for axis in axes}), torch.as_tensor(found)
    return over_processes(own, leaf.device_mesh, over) if over and own.numel() else None


def _over_rows(rows: torch.Tensor, ord: float) -> torch.Tensor:
    """Combine rows of norms into one row."""
    found: torch.Tensor = devices.norms_over(
        Namespace(rows.device, lasting=transformed()), rows, ord=float(ord), same=None
    )
    return found


def _like(found: Any, numbers: torch.Tensor) -> Any:
    """NumPy's array where the shards' numbers are."""
    return numbers if isinstance(found, torch.Tensor) else numbers.numpy()


def split_over(leaf: Any, axes: Collection[int] | None = None) -> tuple[int, ...]:
    """Mesh dimensions over which a leaf is sharded, on some axes or any."""
    if not is_sharded(leaf):
        return ()
    of: Collection[int | None] = range(leaf.ndim) if axes is None else axes
    return tuple([dim for dim, p in enumerate(leaf.placements) if axis_of(p) in of])


def _all_gather(stacked: torch.Tensor, mesh: Any, over: Collection[int]) -> torch.Tensor:
    """All-gather over mesh dimensions; gathered dimensions lead.

    A reduction would not do: a sum may overflow, a maximum loses NaN, and the order is unspecified.
    """
    if stacked.requires_grad and torch.is_grad_enabled():
        return _Told.apply(stacked, mesh, over)  # type: ignore[no-untyped-call]
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placements = [Shard(dim) if dim in over else Replicate() for dim in range(mesh.ndim)]
    mine = stacked.reshape((1,) * mesh.ndim + stacked.shape)
    return DTensor.from_local(mine, mesh, placements, run_check=False).full_tensor().to(stacked.device)


class _Told(torch.autograd.Function):
    """All-gather without a backward pass: replicas would count several times."""

    @staticmethod
    def forward(ctx: Any, stacked: torch.Tensor, mesh: Any, over: Collection[int]) -> torch.Tensor:
        return _all_gather(stacked, mesh, over)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        raise NotImplementedError(
            "no derivative flows through the norm or the sum of a DTensor; detach() the gradients before they are "
            "transformed"
        )


def over_processes(numbers: torch.Tensor, mesh: Any, over: tuple[int, ...]) -> torch.Tensor:
    """Numbers of all processes along some mesh dimensions, one row per process."""
    return _rows(_all_gather(numbers, mesh, over), mesh.ndim, over)


def _rows(gathered: torch.Tensor, dims: int, over: tuple[int, ...]) -> torch.Tensor:
    """Numbers along some mesh dimensions, one row per process; other dimensions are equal."""
    for dim in reversed(range(dims)):
        if dim not in over:
            gathered = gathered.select(dim, 0)
    return gathered.flatten(0, len(over) - 1) if over else gathered[None]
