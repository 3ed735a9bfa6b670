"""PyTorch with DTensors: kernels run on the shards, and a DTensor's norm is that of its mesh's processes.

Processes exchange norms, sums and counts of their shards, all leaves' at once, with one collective for each dimension
of a mesh that splits a leaf. All combine them in the same order, so all get the same bits and decide alike.

PyTorch's DTensor module is imported only once there is a DTensor.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.protocol import Axes, Backward, Columns, Given, Row
from gradxform.core import group as devices
from gradxform.core.leaves import put
from gradxform.numerics import formulas, ranking
from gradxform.numerics.elementwise import Formula
from gradxform.numerics.formulas import Mask
from gradxform.numerics.matrices import Sides
from gradxform_torch import across, foreach, private, readable
from gradxform_torch.namespace import Namespace
from gradxform_torch.plain import Leafwise
from gradxform_torch.readable import DEVICE, any_sharded, is_sharded, place_of


def on_shards(name: str, at: int = 0, columns: bool = False, inputs: int | None = None) -> Any:
    """A kernel that runs on the shards of DTensors, where these are, and shards its results like the leaves.

    Args:
        name: The kernel. It takes leaves, and returns one result for each.
        at: The position of the leaves among its arguments.
        columns: Whether they are the first of several columns, the others of which belong to them.
        inputs: The number of its arguments without `out`, which shards are not written to.
    """

    def run(self: Sharded, *given: Any, **static: Any) -> Any:
        rows = list(zip(*(given[at] if columns else [given[at]]), strict=True))
        shards = [[part(row[0], x) for x in row] for row in rows]
        leaves = list(zip(*shards, strict=True)) if columns else [row[0] for row in shards]
        rest = [list(map(whole, x)) if isinstance(x, (list, tuple)) else whole(x) for x in given[at + 1 : inputs]]
        made = getattr(self, name)(*given[:at], leaves, *rest, **static)
        return [like(row[0], mine[0], new) for row, mine, new in zip(rows, shards, made, strict=True)]

    return run


def _types() -> tuple[type, ...]:
    """The DTensor type, if imported: torch.compile cannot follow the search for a backend."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


_clip = on_shards("clip")
_elementwise = on_shards("elementwise", 1, columns=True, inputs=4)
_of_matrices = on_shards("of_matrices", 1)


class Sharded(Leafwise):
    """PyTorch for DTensors: each kernel calls itself on the shards."""

    types = (*Leafwise.types, *_types())

    multiply = on_shards("multiply")
    multiply_over = on_shards("multiply_over")
    divide = on_shards("divide", 1)
    each = on_shards("each", 1, columns=True, inputs=3)
    copied = on_shards("copied", inputs=1)

    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """Clip each leaf between two bounds; each shard gets its part of a bound with axes."""
        if not (getattr(low, "ndim", 0) or getattr(high, "ndim", 0)):
            return _clip(self, leaves, low, high, factors, inplace)
        each = factors if getattr(factors, "ndim", 0) else [factors] * len(leaves)
        return [
            _clip(self, [leaf], part(leaf, low), part(leaf, high), by, inplace)[0]
            for leaf, by in zip(leaves, each, strict=True)
        ]

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's elements, whose indices are those in the whole leaf."""
        if "index" not in static:
            return _elementwise(self, formula, columns, numbers, factors, out, **static)
        in_whole = [functools.partial(number_in_whole, leaf) for leaf in columns[0]]
        shards = [list(map(local, column)) for column in columns]
        if place_of([shards, numbers, factors or ()]) == DEVICE:
            return _elementwise(self, formula, columns, numbers, factors, out, in_whole=in_whole, **static)
        rows = zip(in_whole, zip(*columns, strict=True), factors or [None] * len(columns[0]), strict=True)
        made = []
        for own, row, by in rows:
            index = functools.partial(_index, own)
            made += _elementwise(self, formula, [[x] for x in row], numbers, [by], **static | {"index": index})
        return made

    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's matrices; each process computes its own leaves, and the results travel once.

        Two all-to-alls move a round of leaves that one mesh dimension shards, one leaf for each of its processes.
        Other leaves whose matrices are sharded are gathered, one after the other.
        """
        out = list(leaves)
        for places in _rounds(leaves, sides):
            some, over = [leaves[i] for i in places], [sides[i] for i in places]
            if len(places) > 1:
                kernel = functools.partial(self.of_matrices, formula, dtype=dtype, **static)
                made = _by_owners(kernel, some, over, dtype)
            else:
                gathered = replicated(some[0], (*over[0][0], *over[0][1]))
                made = [alongside(some[0], _of_matrices(self, formula, [gathered], over, dtype, **static)[0])]
            out = put(out, places, made)
        return out

    # --- numbers of several shards ---------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """Vector of the whole leaves' norms."""
        return self._of_wholes(leaves, self.norms(list(map(local, leaves)), ord), ord)

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float, of: Any = None) -> Any:
        """Norms over some axes, of this process's slices."""
        kernel, wholes = (self.norms_over, leaves) if of is None else (super().norms_over, of[0])
        found = kernel(list(map(local, leaves)), axes, ord, of)
        return self._of_wholes(wholes, found, ord, axes[0]) if len(wholes) == 1 else found

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes, like `norms_over`."""
        plain = weights is None and not axes and leaf.ndim == 1
        if plain or (weights is not None and tuple(weights.shape) != tuple(leaf.shape)):
            raise NotImplementedError(
                "per_example_clip_norm and per_example_clip_global_norm take no DTensors; hand in each process's own "
                "examples, whole (full_tensor()), and add the sums up over the mesh"
            )
        return self._of_wholes([leaf], self.sum_over(local(leaf), axes, part(leaf, weights)), None, axes)

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors, gathered first."""
        return self.compute(formula, *map(whole, operands), **static)

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf; of DTensors only counts travel, once for each bit."""
        out = list(leaves)
        for places in foreach.grouped([leaf.dtype for leaf in leaves]):
            out = put(out, places, self._largest([leaves[i] for i in places], [counts[i] for i in places]))
        return out

    def _largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf of one dtype."""
        own = list(map(local, leaves))
        sizes = [ranking.in_order(Namespace(shard.device), shard) for shard in own]

        def reaching(least: Sequence[Any]) -> Sequence[Any]:
            here = torch.stack([(size >= low).sum() for size, low in zip(sizes, least, strict=True)])
            return torch.as_tensor(self._of_wholes(leaves, here, None)).unbind()

        xp, found = Namespace(own[0].device), [size.new_zeros(()) for size in sizes]
        for place in reversed(range(8 * own[0].itemsize - 1)):
            found = ranking.with_bit(xp, 1 << place, found, counts, reaching)
        rows = zip(leaves, own, sizes, found, strict=True)
        return [like(leaf, shard, ranking.kept(xp, shard, size, least)) for leaf, shard, size, least in rows]

    def _of_wholes(
        self, leaves: Sequence[Any], numbers: Any, ord: float | None, axes: Collection[int] | None = None
    ) -> Any:
        """Combine the numbers of shards, or of one shard's slices over axes, into norms (None: sums) of whole leaves.

        A leaf that a mesh dimension does not split has equal numbers along it: the largest counts, for all alike.
        """
        for group, here, same in _splitting(leaves, axes) if math.prod(numbers.shape) else ():
            orders = tuple([math.inf if own else ord for own in same])
            found = self.compute(devices.norms_over, across.all_gather(numbers, group, leaves[0]), orders=orders)
            numbers = found if all(here) else self.compute(formulas.where_active, found, numbers, active=here)
        return numbers

    # --- whole and shard -------------------------------------------------------------------------------------------

    def dense(self, leaves: Sequence[Any], whole: bool = False) -> Any:
        """Values of the leaves; partial DTensors are reduced.

        Raises:
            ValueError: This process has no part of a leaf.
        """
        if not any_sharded(leaves):
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

    def alongside(self, arrays: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """Shard arrays like their leaves."""
        return list(map(alongside, leaves, arrays))

    def placed(self, array: Any, like: torch.Tensor) -> torch.Tensor:
        """Move a tensor to another one's device, or shard it alike."""
        return alongside(like, super().placed(array, like))

    def to_numpy(self, leaf: Any) -> Any:
        """Gather and convert to NumPy."""
        return super().to_numpy(whole(leaf))

    def custom_backward(self, first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
        """Return the first tensors, with a custom backward pass."""
        own = list(map(local, first))

        def flowing(upstream: Sequence[Any], numbers: list[Any]) -> tuple[list[Any] | None, Any]:
            given = zip(first, own, upstream, strict=True)
            found, others = backward([like(*one, summed=True) for one in given], numbers)
            return None if found is None else list(map(local, found)), others

        return list(map(like, first, own, super().custom_backward(own, second, flowing)))


def _splitting(leaves: Sequence[Any], axes: Collection[int] | None) -> Iterator[tuple[Any, Mask, Mask]]:
    """The groups of processes that have parts of leaves, split along some axes or any; a mesh's last dimension first.

    With each, the leaves that it has in common: those of its mesh, and plain ones; and those that it does not split.
    """
    for mesh in dict.fromkeys([leaf.device_mesh for leaf in leaves if is_sharded(leaf)]):
        here = tuple([not is_sharded(leaf) or leaf.device_mesh == mesh for leaf in leaves])
        for dim in reversed(range(mesh.ndim)):
            same = tuple([not _is_split(leaf, mesh, dim, axes) for leaf in leaves])
            if not all(same):
                yield mesh.get_group(dim), here, same


def _is_split(leaf: Any, mesh: Any, dim: int, axes: Collection[int] | None) -> bool:
    """Whether a mesh dimension splits a leaf along some axes, or any."""
    if not is_sharded(leaf) or leaf.device_mesh != mesh:
        return False
    axis = axis_of(leaf.placements[dim])
    return axis is not None and (axes is None or axis in [over % leaf.ndim for over in axes])


def _dims(leaf: Any, sides: Sides) -> list[int]:
    """The mesh dimensions that shard a leaf's matrices."""
    return [dim for dim, p in enumerate(leaf.placements) if axis_of(p) in (*sides[0], *sides[1])]


def _rounds(leaves: Row, sides: Sequence[Sides]) -> list[list[int]]:
    """The places of leaves that the processes of a mesh dimension share, one each; of other leaves one by one.

    Leaves of a round cost about the same, because the processes wait for each other.
    """
    groups: dict[Any, list[int]] = {}
    for i, (leaf, own) in enumerate(zip(leaves, sides, strict=True)):
        over = _dims(leaf, own) if is_sharded(leaf) else []
        plain = len(over) == 1 and private.split_factor(leaf.placements[over[0]]) is None
        groups.setdefault((leaf.device_mesh, over[0], leaf.dtype) if plain else i, []).append(i)

    def cost(i: int) -> int:
        """The multiplications of an iteration."""
        shorter = min(math.prod([leaves[i].shape[axis] for axis in side]) for side in sides[i])
        return -leaves[i].numel() * shorter

    rounds = []
    for key, places in groups.items():
        count = 1 if isinstance(key, int) else key[0].size(key[1])
        places.sort(key=cost)
        rounds += [places[first : first + count] for first in range(0, len(places), count)]
    return rounds


def _by_owners(kernel: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None) -> list[Any]:
    """A formula of the matrices of a round: the n-th process of a mesh dimension computes the n-th leaf."""
    (dim,), mesh = _dims(leaves[0], sides[0]), leaves[0].device_mesh
    size, rank, group = mesh.size(dim), mesh.get_coordinate()[dim], mesh.get_group(dim)
    own = list(map(local, leaves))
    kind = own[0].dtype if dtype is None else getattr(torch, dtype)
    sent = [shard.to(kind) for shard in own] + [own[0].new_empty(0, dtype=kind)] * (size - len(own))
    if rank >= len(own):
        back = across.all_to_all(sent, [(0,)] * size, group)
    else:
        axis, shape = leaves[rank].placements[dim].dim, list(own[rank].shape)
        length, most = leaves[rank].shape[axis], -(-leaves[rank].shape[axis] // size)
        cuts = [max(0, min(most, length - n * most)) for n in range(size)]
        shards = across.all_to_all(sent, [[*shape[:axis], cut, *shape[axis + 1 :]] for cut in cuts], group)
        (made,) = kernel([torch.cat(shards, axis)], [sides[rank]])
        back = made.split(cuts, axis)
    found = across.all_to_all(back, [shard.shape for shard in sent], group)
    return [like(*row[:2], row[2].to(row[1].dtype)) for row in zip(leaves, own, found, strict=False)]


# --- shards, and what belongs to them of other arrays -----------------------------------------------------------------


def axis_of(placement: Any) -> int | None:
    """Axis of a placement, None if replicated; is_shard() ignores strided shards."""
    return getattr(placement, "dim", None)


def is_writable(leaf: Any) -> bool:
    """Whether each element has its own memory and needs no gradient."""
    partial = is_sharded(leaf) and any([placement.is_partial() for placement in leaf.placements])
    return not partial and readable.is_writable(local(leaf))


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
    """Shard an array of a leaf's shape, or with some axes of length one, like the leaf."""
    if is_sharded(leaf) and x.shape != leaf.shape:
        placements = _replicated(leaf, [axis for axis, size in enumerate(x.shape) if size != leaf.shape[axis]])
        x = x if is_sharded(x) else type(leaf).from_local(x.to(leaf.device), leaf.device_mesh, run_check=False)
        return _placed(x, placements)
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
    factor = private.split_factor(placement)
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
        if any([private.split_factor(leaf.placements[dim]) for dim in over]):
            places = numbers // step % size
            first = _places(leaf, axis, places) - places
        else:
            first = _first(leaf, axis, over)
        numbers = numbers + (before + first) * step
    return numbers


def _index(in_whole: Callable[[Any], Any], xp: Any, x: Any) -> Any:
    return in_whole(xp.iota(x))


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
