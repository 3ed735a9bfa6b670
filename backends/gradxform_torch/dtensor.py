"""PyTorch with DTensors: kernels run on the shards, and a DTensor's norm is that of its mesh's processes.

Processes exchange norms and sums of their shards, all leaves' at once, with one collective for each dimension
of a mesh that splits a leaf. All combine them in the same order, so all get the same bits and decide alike.

PyTorch's DTensor module is imported only once there is a DTensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from gradxform.backend.protocol import Axes, Backward, Columns, Given, Row
from gradxform.core import group as devices
from gradxform.core.leaves import put
from gradxform.numerics import formulas
from gradxform.numerics.elementwise import Formula
from gradxform.numerics.matrices import Sides
from gradxform_torch import across, private
from gradxform_torch.plain import Leafwise
from gradxform_torch.readable import DEVICE, any_sharded, are_writable, is_sharded, place_of


def on_shards(name: str, at: int = 0, inputs: int | None = None) -> Any:
    """A kernel that runs on the shards of DTensors, where these are, and shards its results like the leaves.

    Args:
        name: The kernel. It takes leaves, or columns of which they are the first, and returns one result for each leaf.
        at: The position of the leaves or columns among its arguments.
        inputs: The number of its arguments without `out`, which shards are not written to.
    """

    def run(self: Sharded, *given: Any, **static: Any) -> Any:
        columns = isinstance(given[at][0], (list, tuple))
        leaves, *others = given[at] if columns else given[at : at + 1]
        own = list(map(local, leaves))
        shards = [own, *[list(map(part, leaves, column)) for column in others]]
        rest = [list(map(whole, x)) if isinstance(x, (list, tuple)) else whole(x) for x in given[at + 1 : inputs]]
        made = getattr(self, name)(*given[:at], shards if columns else own, *rest, **static)
        return list(map(like, leaves, own, made))

    return run


_clip = on_shards("clip")
_elementwise = on_shards("elementwise", 1, inputs=4)
_of_matrices = on_shards("of_matrices", 1)


class Sharded(Leafwise):
    """PyTorch for DTensors: each kernel calls itself on the shards."""

    multiply = on_shards("multiply")
    multiply_over = on_shards("multiply_over")
    divide = on_shards("divide", 1)
    each = on_shards("each", 1, inputs=3)
    copied = on_shards("copied", inputs=1)

    def clip(self, leaves: Row, low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """Clip each leaf between two bounds; each shard gets its part of a bound with axes."""
        if len(leaves) > 1 and any([getattr(bound, "ndim", 0) for bound in (low, high)]):
            each = factors if getattr(factors, "ndim", 0) else [factors] * len(leaves)
            return [self.clip([x], low, high, by, inplace)[0] for x, by in zip(leaves, each, strict=True)]
        return _clip(self, leaves, part(leaves[0], low), part(leaves[0], high), factors, inplace)

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's elements, whose indices are those in the whole leaf."""
        if "index" not in static:
            return _elementwise(self, formula, columns, numbers, factors, out, **static)
        in_whole = [functools.partial(number_in_whole, leaf) for leaf in columns[0]]
        if place_of([[list(map(local, column)) for column in columns], numbers, factors or ()]) == DEVICE:
            return _elementwise(self, formula, columns, numbers, factors, out, in_whole=in_whole, **static)
        made = []
        for i, own in enumerate(in_whole):
            static["index"] = lambda xp, x, own=own: own(xp.iota(x))
            by = None if factors is None else [factors[i]]
            made += _elementwise(self, formula, [[column[i]] for column in columns], numbers, by, **static)
        return made

    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's matrices; each process computes its own leaves, and the results travel once.

        Two all-to-alls move a round of leaves that one mesh dimension shards, one leaf for each of its processes.
        Other leaves whose matrices are sharded are gathered, one after the other.
        """
        out = list(leaves)
        for dim, places in _rounds(leaves, sides):
            some, over = [leaves[i] for i in places], [sides[i] for i in places]
            if len(places) > 1:
                kernel = functools.partial(self.of_matrices, formula, dtype=dtype, **static)
                made = _by_owners(kernel, some, over, dim, dtype)
            else:
                gathered = replicated(some[0], (*over[0][0], *over[0][1]))
                made = [alongside(some[0], _of_matrices(self, formula, [gathered], over, dtype, **static)[0])]
            out = put(out, places, made)
        return out

    # --- numbers of several shards ---------------------------------------------------------------------------------

    def norms(self, leaves: Row, ord: float) -> Any:
        """Vector of the whole leaves' norms."""
        return self._of_wholes(leaves, self.norms(list(map(local, leaves)), ord), ord)

    def norms_over(self, leaves: Row, axes: Axes, ord: float, of: Any = None) -> Any:
        """Norms over some axes, of this process's slices."""
        wholes, own = (leaves, None) if of is None else (of[0], (list(map(local, of[0])), of[1]))
        return self._of_wholes(wholes, self.norms_over(list(map(local, leaves)), axes, ord, own), ord, axes[0])

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes, like `norms_over`."""
        if getattr(weights, "shape", leaf.shape) not in (leaf.shape, ()):
            raise NotImplementedError(
                "per_example_clip_norm and per_example_clip_global_norm take no DTensors; hand in each process's own "
                "examples, whole (full_tensor()), and add the sums up over the mesh"
            )
        return self._of_wholes([leaf], self.sum_over(local(leaf), axes, part(leaf, weights)), None, axes)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors, gathered first."""
        return self.compute(formula, *map(whole, operands), **static)

    def largest(self, leaves: Row, counts: Row) -> list[Any]:
        """Keep so many elements of each leaf, gathered one after the other."""
        pairs = zip(leaves, counts, strict=True)
        return [alongside(leaf, self.largest([whole(leaf)], [count])[0]) for leaf, count in pairs]

    def _of_wholes(self, leaves: Row, numbers: Any, ord: float | None, axes: Collection[int] | None = None) -> Any:
        """Combine the numbers of shards, or of one shard's slices over axes, into norms (None: sums) of whole leaves.

        A leaf that a mesh dimension does not split has equal numbers along it: the largest counts, for all alike.
        """
        for mesh in dict.fromkeys([leaf.device_mesh for leaf in leaves if is_sharded(leaf)]):
            here = tuple([not is_sharded(leaf) or leaf.device_mesh == mesh for leaf in leaves])
            for dim in reversed(range(mesh.ndim)):
                split = [_is_split(leaf, mesh, dim, axes) for leaf in leaves]
                if any(split) and math.prod(numbers.shape):
                    rows = across.all_gather(numbers, mesh.get_group(dim), leaves[0])
                    orders = tuple([ord if own else math.inf for own in split])
                    found = self.compute(devices.norms_over, rows, orders=orders)
                    numbers = found if all(here) else self.compute(formulas.where_active, found, numbers, active=here)
        return numbers

    # --- whole and shard -------------------------------------------------------------------------------------------

    def dense(self, leaves: Row, whole: bool = False) -> Any:
        """Values of the leaves; partial DTensors are reduced.

        Raises:
            ValueError: This process has no part of a leaf.
        """
        if not any_sharded({type(leaf) for leaf in leaves if leaf is not None}):
            return super().dense(leaves, whole)
        for mesh in {leaf.device_mesh for leaf in leaves if is_sharded(leaf)}:
            if mesh.get_coordinate() is None:
                raise ValueError(
                    f"this process is not in the {mesh} of a gradient and cannot know its norm; transform the "
                    "parameters of one mesh on the processes that are in it"
                )
        return super().dense(list(map(replicated, leaves)), whole)

    def sparse(self, leaf: Any) -> Any:
        """DTensors cannot be sparse."""
        return None if is_sharded(leaf) else super().sparse(leaf)

    def alongside(self, arrays: Row, leaves: Row) -> list[Any]:
        """Shard arrays like their leaves."""
        return list(map(alongside, leaves, arrays))

    def from_numpy(self, array: Any, like: Any = None) -> torch.Tensor:
        """Copy to a tensor, on the device of another one or sharded like it."""
        return alongside(like, super().from_numpy(array, like))

    def to_numpy(self, leaf: Any) -> Any:
        """Gather and convert to NumPy."""
        return super().to_numpy(whole(leaf))

    def custom_backward(self, first: Row, second: Row, backward: Backward) -> list[Any]:
        """Return the first tensors, partial ones summed, with a custom backward pass."""
        leaves = list(map(replicated, first))
        own = list(map(local, leaves))

        def flowing(upstream: Row, numbers: list[Any]) -> tuple[list[Any] | None, Any]:
            found, others = backward(list(map(like, leaves, own, upstream)), numbers)
            return None if found is None else list(map(local, found)), others

        return list(map(like, leaves, own, super().custom_backward(own, second, flowing)))


def _is_split(leaf: Any, mesh: Any, dim: int, axes: Collection[int] | None) -> bool:
    """Whether a mesh dimension splits a leaf along some axes, or any."""
    axis = axis_of(leaf.placements[dim]) if is_sharded(leaf) and leaf.device_mesh == mesh else None
    return axis is not None and (axes is None or axis in [over % leaf.ndim for over in axes])


def _rounds(leaves: Row, sides: Sequence[Sides]) -> Iterator[tuple[int, list[int]]]:
    """The places of leaves that the processes of a mesh dimension share, one each; of other leaves one by one.

    Leaves of a round cost about the same, because the processes wait for each other.
    """

    def cost(i: int) -> int:
        """The multiplications of an iteration."""
        return leaves[i].numel() * min(math.prod([leaves[i].shape[axis] for axis in side]) for side in sides[i])

    groups: dict[Any, list[int]] = {}
    for i in sorted(range(len(leaves)), key=cost, reverse=True):
        leaf, axes = leaves[i], (*sides[i][0], *sides[i][1])
        over = [dim for dim, p in enumerate(leaf.placements) if axis_of(p) in axes] if is_sharded(leaf) else []
        shared = len(over) == 1 and private.split_factor(leaf.placements[over[0]]) is None
        groups.setdefault((leaf.device_mesh, over[0], leaf.dtype) if shared else (None, i), []).append(i)
    for (mesh, dim, *_), places in groups.items():
        count = mesh.size(dim) if mesh else 1
        yield from [(dim, places[first : first + count]) for first in range(0, len(places), count)]


def _by_owners(kernel: Callable[..., Any], leaves: Row, sides: Row, dim: int, dtype: str | None) -> list[Any]:
    """A formula of the matrices of a round: the n-th process of a mesh dimension computes the n-th leaf."""
    mesh, own = leaves[0].device_mesh, list(map(local, leaves))
    size, rank, group = mesh.size(dim), mesh.get_coordinate()[dim], mesh.get_group(dim)
    kind = own[0].dtype if dtype is None else getattr(torch, dtype)
    sent = [shard.to(kind) for shard in own] + [own[0].new_empty(0, dtype=kind)] * (size - len(own))
    if rank >= len(own):
        back = across.all_to_all(sent, [(0,)] * size, group)
    else:
        axis, shape = leaves[rank].placements[dim].dim, own[rank].shape
        cuts = _chunks(leaves[rank].shape[axis], size)
        shards = across.all_to_all(sent, [[*shape[:axis], cut, *shape[axis + 1 :]] for cut in cuts], group)
        (made,) = kernel([torch.cat(shards, axis)], [sides[rank]])
        back = made.split(cuts, axis)
    found = across.all_to_all(back, [shard.shape for shard in sent], group)
    return [like(leaf, shard, new.to(shard.dtype)) for leaf, shard, new in zip(leaves, own, found, strict=False)]


def _chunks(size: int, count: int) -> list[int]:
    """The sizes of so many parts of an axis, as a mesh dimension cuts it."""
    most = -(-size // count)
    return [max(0, min(most, size - i * most)) for i in range(count)]


# --- shards, and what belongs to them of other arrays -----------------------------------------------------------------


def axis_of(placement: Any) -> int | None:
    """Axis of a placement, None if replicated; is_shard() ignores strided shards."""
    return getattr(placement, "dim", None)


def is_writable(leaf: Any) -> bool:
    """Whether each element has its own memory and needs no gradient."""
    partial = is_sharded(leaf) and any([placement.is_partial() for placement in leaf.placements])
    return not partial and all(are_writable([local(leaf)]))


def local(x: Any) -> Any:
    """This process's shard of a DTensor; other tensors are unchanged."""
    own = x.to_local() if is_sharded(x) else x
    return own.wait() if hasattr(own, "wait") else own  # a collective may be under way


def whole(x: Any) -> Any:
    """Gather a DTensor; others are unchanged."""
    return x.full_tensor() if is_sharded(x) else x


def replicated(leaf: Any, axes: Collection[int | None] = ()) -> Any:
    """Add up the terms of a partial DTensor, and gather it along some axes; other shards stay where they are."""
    if not is_sharded(leaf):
        return leaf
    return _placed(leaf, [on_axis(p, None) if p.is_partial() or axis_of(p) in axes else p for p in leaf.placements])


def part(leaf: Any, x: Any) -> Any:
    """What belongs to a leaf's shard of an array that broadcasts against the leaf; numbers are unchanged."""
    return local(alongside(leaf, x)) if getattr(x, "ndim", 0) else whole(x)


def like(leaf: Any, own: Any, new: Any) -> Any:
    """A DTensor with a new shard in place of a leaf's own; the leaf itself if it is the same."""
    if new is own or not is_sharded(leaf):
        return leaf if new is own else new
    mesh, stride = leaf.device_mesh, leaf.stride()
    if new.stride() != own.stride():
        new, stride = new.contiguous(), torch.empty(leaf.shape, device="meta").stride()
    if new.device.type == mesh.device_type or new.is_meta:
        return type(leaf).from_local(new, mesh, leaf.placements, run_check=False, shape=leaf.shape, stride=stride)
    kept = torch.empty_like(leaf, dtype=new.dtype)  # offloaded to the host, where from_local would not leave it
    local(kept).copy_(new)
    return kept


def alongside(leaf: Any, x: Any) -> Any:
    """Shard an array that broadcasts against a leaf like the leaf.

    Along an axis of another size than the leaf's, it has this process's own numbers, or one for all.
    """
    if not is_sharded(leaf):
        return whole(x)
    rank = x.ndim - leaf.ndim
    axes: dict[int | None, int] = {
        axis: axis + rank for axis in range(-rank, leaf.ndim) if x.shape[axis + rank] == leaf.shape[axis]
    }
    if not is_sharded(x) or x.device_mesh != leaf.device_mesh:
        x = type(leaf).from_local(torch.as_tensor(whole(x)), leaf.device_mesh, run_check=False)  # replicated
    return _placed(x, [on_axis(p, axes.get(axis_of(p))) for p in leaf.placements]).to(leaf.device)


def _placed(x: Any, placements: Row) -> Any:
    return x if tuple(x.placements) == tuple(placements) else x.redistribute(placements=placements)


def on_axis(placement: Any, axis: int | None) -> Any:
    """A tensor's placement, on another axis; None replicates."""
    from torch.distributed.tensor import Replicate

    factor = private.split_factor(placement)
    if axis is None:
        return Replicate()
    return type(placement)(axis) if factor is None else type(placement)(axis, split_factor=factor)


def number_in_whole(leaf: Any, numbers: Any) -> Any:
    """Convert element indices in a shard to those in the whole leaf, on the device of the indices."""
    if not is_sharded(leaf) or not local(leaf).numel():
        return numbers
    mesh = leaf.device_mesh
    for axis in reversed(range(leaf.ndim)):
        # FSDP2 cuts what tensor parallelism has cut, and places itself first.
        over = [(private.split_factor(p) or 1, dim) for dim, p in enumerate(leaf.placements) if axis_of(p) == axis]
        first, size, step = 0, leaf.shape[axis], math.prod(leaf.shape[axis + 1 :])
        for _, dim in sorted(over):
            cuts, place = _chunks(size, mesh.size(dim)), mesh.get_coordinate()[dim]
            first, size = first + sum(cuts[:place]), cuts[place]
        if size < leaf.shape[axis]:
            before = numbers // (step * size) * (leaf.shape[axis] - size) if axis else 0
            numbers = numbers + (before + first) * step
    return numbers
