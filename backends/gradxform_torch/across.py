"""Collectives over a ProcessGroup, or along dimensions of a DeviceMesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from gradxform_torch import private


def check(axis: Any, leaves: Sequence[Any], paths: Callable[[], Sequence[str]]) -> None:
    """Refuse axes that are not a group, groups without this process, and leaves sharded over the group.

    Raises:
        TypeError: The axis is not a ProcessGroup or DeviceMesh.
        ValueError: The axis does not fit; the message names it or the path, and says what to do.
    """
    if not distributed.is_available() or not (_is_mesh(axis) or isinstance(axis, distributed.ProcessGroup)):
        raise TypeError(
            "across: in PyTorch, axis is a torch.distributed.ProcessGroup (torch.distributed.group.WORLD, "
            f"mesh.get_group('pp')) or a DeviceMesh (mesh['pp']); got {axis!r} of type {type(axis).__name__}"
        )
    if not distributed.is_initialized():
        raise ValueError(
            "across: torch.distributed is not initialized here; call torch.distributed.init_process_group first"
        )
    if (axis.get_coordinate() is None) if _is_mesh(axis) else distributed.get_rank(axis) < 0:
        raise ValueError(
            f"across: this process, of rank {distributed.get_rank()}, is not in {_shown(axis)}; leave across out there"
        )
    meshes = {leaf.device_mesh: i for i, leaf in enumerate(leaves) if hasattr(leaf, "device_mesh")}
    for mesh, i in meshes.items():
        both = sorted({*mesh.mesh.flatten().tolist()} & {*_ranks(axis)})
        if len(both) > 1:
            raise ValueError(
                f"across: the gradient at {paths()[i]!r} is a DTensor over {mesh}, whose norm is that of the whole "
                f"already; the processes {both} of {_shown(axis)} would count it {len(both)} times. Leave across out, "
                "or give it the dimension that DTensors do not know of: mesh['pp'], not the whole mesh or WORLD"
            )


def all_gather(numbers: Any, axis: Any, like: Any) -> torch.Tensor:
    """All-gather numbers, one collective per mesh dimension."""
    numbers = numbers if isinstance(numbers, torch.Tensor) else torch.as_tensor(numbers, dtype=torch.float64)
    if numbers.requires_grad and torch.is_grad_enabled():
        return _Told.apply(numbers, axis, like)  # type: ignore[no-untyped-call]
    found = numbers.to(_device(axis, None if like is None else numbers.device)).contiguous()
    gather = vars(distributed).get("all_gather_single") or distributed.all_gather_into_tensor  # renamed in 2.13
    for group in reversed(_groups(axis)):
        rows = found.new_empty((distributed.get_world_size(group) * len(found), *found.shape[1:]))
        gather(rows, found, group=group)
        found = rows
    return found.reshape(-1, *numbers.shape).to(numbers.device)


class _Told(torch.autograd.Function):
    """All-gather without a backward pass: a norm's gradient would have to reach other processes."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor, axis: Any, like: Any) -> torch.Tensor:
        return all_gather(numbers, axis, like)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        raise NotImplementedError(
            "no derivative flows through the norm or the sum of what several processes hold, as of a DTensor; detach() "
            "the gradients before they are transformed"
        )


def all_to_all(sent: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]], group: Any) -> list[torch.Tensor]:
    """Send a tensor to each process of a group, and receive one of a known shape from each."""
    flat, counts = torch.cat([x.reshape(-1) for x in sent]), list(map(math.prod, shapes))
    found = flat.new_empty(sum(counts))
    distributed.all_to_all_single(found, flat, counts, [x.numel() for x in sent], group=group)
    return [x.reshape(shape) for x, shape in zip(torch.split(found, counts), shapes, strict=True)]


def axis_index(axis: Any) -> int:
    """Rank of this process in the group, or its index in the mesh."""
    index = 0
    for group in _groups(axis):
        index = index * distributed.get_world_size(group) + distributed.get_rank(group)
    return index


def _is_mesh(axis: Any) -> bool:
    return isinstance(axis, DeviceMesh)


def _groups(axis: Any) -> Sequence[Any]:
    return axis.get_all_groups() if _is_mesh(axis) else [axis]


def _ranks(axis: Any) -> list[int]:
    found: list[int] = axis.mesh.flatten().tolist() if _is_mesh(axis) else distributed.get_process_group_ranks(axis)
    return found


def _shown(axis: Any) -> str:
    return f"the mesh {axis}" if _is_mesh(axis) else f"the process group of ranks {_ranks(axis)}"


def _device(axis: Any, given: torch.device | None) -> torch.device:
    """Device for communication, chosen alike by all processes, even without gradients.

    It is the device of the mesh, or of the numbers if the group has a backend for it. Without gradients, it is the
    accelerator if the group has one.
    """
    if torch.compiler.is_compiling():
        return given or torch.device("cpu")
    kinds = {axis.device_type} if _is_mesh(axis) else private.device_types(axis)
    if given is not None and (given.type in kinds or given.type == "meta"):
        return given
    used = torch.accelerator.current_accelerator()
    if used is not None and used.type in kinds and torch.accelerator.is_available():
        return torch.device(used.type, torch.accelerator.current_device_index())
    return torch.device("cpu")
