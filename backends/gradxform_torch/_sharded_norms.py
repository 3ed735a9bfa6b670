"""Norms and sums of tensors that are sharded over a mesh.

Processes exchange norms and sums of shards in float64 (in pairs for float64 gradients), for all leaves of a mesh at
once: one collective per sharded mesh dimension. Each process combines them in the same order, so all get the same bits
and make the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host import longdouble, namespace
from gradxform.numerics import formulas
from gradxform.numerics.double_double import Pair
from gradxform.numerics.ranged import evaluate
from gradxform_torch._namespace import Namespace
from gradxform_torch._readable import transformed
from gradxform_torch._sharded import axis_of, is_sharded, local


def norms(leaves: Sequence[Any], ord: float, measure: Callable[[list[Any], float], Any]) -> Any:
    """Vector of the whole leaves' norms, in the format of the shards' norms.

    A replicated leaf's norm comes from the first process, so that no bit differs.
    """
    found = measure([local(leaf) for leaf in leaves], ord)
    stacked, split = _stacked(found), [split_over(leaf) for leaf in leaves]
    columns = list(stacked.unbind(1))
    meshes: list[Any] = [leaf.device_mesh if is_sharded(leaf) else None for leaf in leaves]
    for mesh in dict.fromkeys(mesh for mesh, over in zip(meshes, split, strict=True) if over):
        here = [i for i, own in enumerate(meshes) if own is None or own == mesh]
        told = torch.stack([columns[i] for i in here], 1)
        gathered = _all_gather(told, mesh, {dim for i in here for dim in split[i]})
        for over in dict.fromkeys(split[i] for i in here):
            places = [i for i in here if split[i] == over]
            each = _rows(gathered, mesh.ndim, over).unbind(-1)
            rows = torch.stack([each[here.index(i)] for i in places], -1)
            new = rows.select(0, 0)
            if over:
                new = _stacked(_over_rows(formulas.total_norm_scaled, found, rows, active=None, ord=float(ord)))
            for i, column in zip(places, new.unbind(1), strict=True):
                columns[i] = column
    return _formed(found, torch.stack(columns, 1))


def norm_over(leaf: Any, axes: tuple[int, ...], ord: float, found: Any) -> Any:
    """Norms over some axes of a leaf, from its shards' norms; only for slices on this process."""
    return _over_axes(formulas.total_norm_scaled, leaf, axes, found, active=None, ord=float(ord))


def sum_over(leaf: Any, axes: tuple[int, ...], found: Any) -> Any:
    """Sums over some axes of a leaf, like `norm_over`."""
    return _over_axes(_sum, leaf, axes, found)


def _sum(xp: Any, rows: Any) -> Any:
    return xp.sum(rows)


def _over_axes(formula: Callable[..., Any], leaf: Any, axes: tuple[int, ...], found: Any, **static: Any) -> Any:
    over = split_over(leaf, {axis % leaf.ndim for axis in axes})
    stacked = _stacked(found)
    if not over or not stacked.numel():
        return found
    mesh = leaf.device_mesh
    return _over_rows(formula, found, _rows(_all_gather(stacked, mesh, over), mesh.ndim, over), **static)


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


def _over_rows(formula: Callable[..., Any], found: Any, rows: torch.Tensor, **static: Any) -> Any:
    """Reduce rows to one row by a formula, in the given format."""
    value = _formed(found, rows.movedim(1, 0))
    if not isinstance(value, np.ndarray):
        return evaluate(formula, _Rows(rows.device, lasting=transformed()), [value], static)
    with np.errstate(all="ignore"):  # NumPy's sums and largest are over rows; only 2-norms and sums are measured there
        return evaluate(formula, namespace.Namespace, [value], static)


class _Rows(Namespace):
    """PyTorch functions that reduce over rows instead of a vector's elements."""

    @staticmethod
    def sum(x: torch.Tensor) -> torch.Tensor:
        """Sum of each column."""
        return torch.sum(x, 0)

    @staticmethod
    def max(x: torch.Tensor) -> torch.Tensor:
        """Maximum of each column."""
        return torch.amax(x, 0)

    @staticmethod
    def any(x: torch.Tensor) -> torch.Tensor:
        """Any of each column."""
        return torch.any(x, 0)


def _stacked(value: Any) -> torch.Tensor:
    """Numbers of one or two parts, as a tensor with an axis of parts."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = longdouble.pair(value)
    return torch.stack([torch.as_tensor(part) for part in (_whole(value) if isinstance(value, Pair) else (value,))])


def _whole(pair: Pair) -> Pair:
    """Gather all parts of a pair."""
    return pair if pair.exponent is not None else pair._replace(exponent=torch.zeros_like(torch.as_tensor(pair.high)))


def _formed(found: Any, stacked: torch.Tensor) -> Any:
    """Convert such a tensor to the format of other numbers: NumPy array, tensor or pair."""
    if isinstance(found, (np.ndarray, np.generic)):
        parts = stacked.numpy()
        return parts[0] if len(parts) == 1 else longdouble.unpaired(Pair(*parts))
    return Pair(*stacked.unbind()) if len(stacked) > 1 else stacked.select(0, 0)
