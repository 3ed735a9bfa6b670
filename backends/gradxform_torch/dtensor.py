"""PyTorch with DTensors: kernels run on the shards, and a DTensor's norm is that of its mesh's processes.

Processes exchange norms, sums and counts of their shards, all leaves' at once, with one collective for each dimension
of a mesh that splits a leaf. All combine them in the same order, so all get the same bits and decide alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes, Backward, Columns, Given, Row
from gradxform.core import group as devices
from gradxform.core.group import Mask
from gradxform.core.leaves import put
from gradxform.numerics import dtype_name, formulas, ranking
from gradxform.numerics.elementwise import Combination, Formula
from gradxform.numerics.matrices import Sides
from gradxform_torch import _shards, across
from gradxform_torch._shards import alongside, any_sharded, is_sharded, like, local, part, replicated, whole
from gradxform_torch.batched import Batched
from gradxform_torch.kernels import Kernels, way_of
from gradxform_torch.namespace import Namespace, OfLeaves


def on_shards(name: str, at: int = 0, columns: bool = False, inputs: int | None = None) -> Any:
    """A kernel of `Kernels` that runs on the shards of DTensors, and shards its results like the leaves.

    Args:
        name: The kernel. It takes leaves, and returns one result for each.
        at: The position of the leaves among its arguments.
        columns: Whether they are the first of several columns, the others of which belong to them.
        inputs: The number of its arguments without `out`, which shards are not written to.
    """

    def run(self: Torch, *given: Any, **static: Any) -> Any:
        kernel = getattr(super(Torch, self), name)
        own = given[at] if columns else [given[at]]
        others = [x if isinstance(x, (list, tuple)) else [x] for x in given[at + 1 :]]
        if not any_sharded([x for some in (*own, *others) for x in some]):
            return kernel(*given, **static)
        rows = list(zip(*own, strict=True))
        shards = [[part(row[0], x) for x in row] for row in rows]
        leaves = list(zip(*shards, strict=True)) if columns else [row[0] for row in shards]
        rest = [list(map(whole, x)) if isinstance(x, (list, tuple)) else whole(x) for x in given[at + 1 : inputs]]
        made = kernel(*given[:at], leaves, *rest, **static)
        return [like(row[0], mine[0], new) for row, mine, new in zip(rows, shards, made, strict=True)]

    return run


_clip = on_shards("clip")
_elementwise = on_shards("elementwise", 1, columns=True, inputs=4)
_of_matrices = on_shards("of_matrices", 1)


class Torch(Kernels):
    """PyTorch, including DTensors."""

    types = (*Kernels.types, *_shards.types())

    multiply = on_shards("multiply")
    multiply_over = on_shards("multiply_over")
    divide = on_shards("divide", 1)
    each = on_shards("each", 1, columns=True, inputs=3)
    copied = on_shards("copied", inputs=1)

    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """Clip each leaf between two bounds; each shard gets its part of a bound with axes."""
        if not any_sharded(leaves) or not (getattr(low, "ndim", 0) or getattr(high, "ndim", 0)):
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
        if not any_sharded(columns[0]) or isinstance(formula, Combination):
            return _elementwise(self, formula, columns, numbers, factors, out, **static)
        parts = OfLeaves(formula, [functools.partial(_shards.number_in_whole, leaf) for leaf in columns[0]])
        shards = [list(map(local, column)) for column in columns]
        if isinstance(way_of([shards, numbers, factors or ()]), Batched):
            return _elementwise(self, parts, columns, numbers, factors, out, **static)
        rows = zip(parts.each(), zip(*columns, strict=True), factors or [None] * len(columns[0]), strict=True)
        return [_elementwise(self, own, [[x] for x in row], numbers, [by], **static)[0] for own, row, by in rows]

    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's matrices; a matrix is gathered if a side is sharded, one leaf after the other."""
        if not any_sharded(leaves):
            return super().of_matrices(formula, leaves, sides, dtype, **static)
        out = []
        for leaf, own in zip(leaves, sides, strict=True):
            gathered = replicated(leaf, (*own[0], *own[1]))
            out.append(alongside(leaf, _of_matrices(self, formula, [gathered], [own], dtype, **static)[0]))
        return out

    # --- numbers of several shards ---------------------------------------------------------------------------------

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """Vector of the whole leaves' norms."""
        if not any_sharded(leaves):
            return super().norms(leaves, ord)
        return self._of_wholes(leaves, super().norms(list(map(local, leaves)), ord), ord)

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float) -> Any:
        """Norms over some axes, of this process's slices."""
        if len(leaves) > 1 or not is_sharded(leaves[0]):
            return super().norms_over(leaves, axes, ord)
        return self._of_wholes(leaves, super().norms_over([local(leaves[0])], axes, ord), ord, axes[0])

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes, like `norms_over`."""
        if not any_sharded((leaf, weights)):
            return super().sum_over(leaf, axes, weights)
        plain = weights is None and not axes and leaf.ndim == 1
        if plain or (weights is not None and tuple(weights.shape) != tuple(leaf.shape)):
            raise NotImplementedError(
                "per_example_clip_norm and per_example_clip_global_norm take no DTensors; hand in each process's own "
                "examples, whole (full_tensor()), and add the sums up over the mesh"
            )
        return self._of_wholes([leaf], super().sum_over(local(leaf), axes, part(leaf, weights)), None, axes)

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf; of DTensors only counts travel, once for each bit."""
        if not any_sharded(leaves):
            return super().largest(leaves, counts)
        out = list(leaves)
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
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
        for place in reversed(range(ranking.bits(dtype_name(own[0])))):
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
        return list(map(alongside, leaves, arrays)) if any_sharded([*arrays, *leaves]) else list(arrays)

    def placed(self, array: Any, like: torch.Tensor) -> torch.Tensor:
        """Move a tensor to another one's device, or shard it alike."""
        return alongside(like, super().placed(array, like))

    def to_numpy(self, leaf: Any) -> Any:
        """Gather and convert to NumPy."""
        return super().to_numpy(whole(leaf))

    def custom_backward(self, first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
        """Return the first tensors, with a custom backward pass."""
        if not any_sharded(first):
            return super().custom_backward(first, second, backward)
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
    axis = _shards.axis_of(leaf.placements[dim])
    return axis is not None and (axes is None or axis in [over % leaf.ndim for over in axes])


backend = Torch()
register(backend)
