"""PyTorch backend with DTensors: kernels run on shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.backend.lookup import register
from gradxform.backend.protocol import Axes, Backward
from gradxform.numerics.elementwise import Combination, Formula
from gradxform.numerics.matrices import Sides
from gradxform_torch import _fused, _readable, _sharded, _sharded_norms, _sharded_ranking
from gradxform_torch.kernels import Kernels


class Torch(Kernels):
    """PyTorch, including DTensors."""

    types = (*Kernels.types, *_sharded.types())

    def dense(self, leaves: Sequence[Any], whole: bool = False) -> Any:
        """Values of the leaves; partial DTensors are reduced."""
        return super().dense(_sharded.added(leaves) if _sharded.any_sharded(leaves) else leaves, whole)

    def alongside(self, arrays: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """Shard arrays like their leaves."""
        if not _sharded.any_sharded([*arrays, *leaves]):
            return list(arrays)
        return [_sharded.alongside(leaf, array) for leaf, array in zip(leaves, arrays, strict=True)]

    def placed(self, array: Any, like: torch.Tensor) -> torch.Tensor:
        """Move a tensor to another one's device, or shard it alike."""
        return _sharded.alongside(like, super().placed(array, like))

    def to_numpy(self, leaf: Any) -> Any:
        """Gather and convert to NumPy."""
        return super().to_numpy(_sharded.whole(leaf))

    def norms(self, leaves: Sequence[Any], ord: float) -> Any:
        """Vector of the whole leaves' norms."""
        if _sharded.any_sharded(leaves):
            return _sharded_norms.norms(leaves, ord, super().norms)
        return super().norms(leaves, ord)

    def norms_over(self, leaves: Sequence[Any], axes: Axes, ord: float) -> Any:
        """Norms over some axes, of slices on this process."""
        if len(leaves) == 1 and _sharded.is_sharded(leaves[0]):
            found = super().norms_over([_sharded.local(leaves[0])], axes, ord)
            return _sharded_norms.norms_over(leaves[0], axes[0], ord, found)
        return super().norms_over(leaves, axes, ord)

    def sum_over(self, leaf: Any, axes: tuple[int, ...], weights: Any) -> Any:
        """Sums over some axes, like `norms_over`."""
        if not _sharded.any_sharded((leaf, weights)):
            return super().sum_over(leaf, axes, weights)
        plain = weights is None and not axes and leaf.ndim == 1
        if plain or (weights is not None and tuple(weights.shape) != tuple(leaf.shape)):
            raise NotImplementedError(
                "per_example_clip_norm and per_example_clip_global_norm take no DTensors; hand in each process's own "
                "examples, whole (full_tensor()), and add the sums up over the mesh"
            )
        own, *others = _sharded.shards_of([leaf] if weights is None else [leaf, weights])
        return _sharded_norms.sum_over(leaf, axes, super().sum_over(own, axes, others[0] if others else None))

    def multiply(self, leaves: Sequence[Any], factors: Any, inplace: bool) -> list[Any]:
        """Each leaf times its factor."""
        if _sharded.any_sharded(leaves):
            return _sharded.on_shards(leaves, lambda own: self.multiply(own, factors, inplace))
        return super().multiply(leaves, factors, inplace)

    def multiply_over(self, leaves: Sequence[Any], axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[Any]:
        """Leaves times factors of slices."""
        if len(leaves) == 1 and _sharded.is_sharded(leaves[0]):
            return _sharded.on_shards(leaves, lambda own: self.multiply_over(own, axes, factors, inplace))
        return super().multiply_over(leaves, axes, factors, inplace)

    def divide(self, function: str, leaves: Sequence[Any], divisors: Sequence[Any]) -> list[Any]:
        """Each leaf divided by its divisor."""
        if _sharded.any_sharded(leaves):
            return _sharded.on_shards(leaves, lambda own: self.divide(function, own, divisors))
        return super().divide(function, leaves, divisors)

    def clip(self, leaves: Sequence[Any], low: Any, high: Any, factors: Any, inplace: bool) -> list[Any]:
        """Clip each leaf between two bounds; each shard gets its part of a bound with axes."""
        if not _sharded.any_sharded(leaves):
            return super().clip(leaves, _sharded.whole(low), _sharded.whole(high), factors, inplace)
        if not (getattr(low, "ndim", 0) or getattr(high, "ndim", 0)):
            return _sharded.on_shards(leaves, lambda own: self.clip(own, low, high, factors, inplace))

        def one(i: int, own: list[Any]) -> list[Any]:
            factor = factors[i] if getattr(factors, "ndim", 0) else factors
            return self.clip(own, _sharded.cut(low, leaves[i]), _sharded.cut(high, leaves[i]), factor, inplace)

        return [_sharded.on_shards([leaf], functools.partial(one, i))[0] for i, leaf in enumerate(leaves)]

    def elementwise(
        self,
        formula: Formula,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements, on the shards."""
        numbers = list(map(_sharded.whole, numbers))
        out = None if out is None or _sharded.any_sharded(out) else out
        if not any(map(_sharded.any_sharded, columns)):
            return super().elementwise(formula, columns, numbers, factors, out, **static)
        rows = list(zip(*columns, strict=True))
        shards = [_sharded.shards_of(row) for row in rows]
        of_place: Any = formula
        alone = isinstance(formula, Combination)  # which asks for no place in the whole
        if alone or _fused.on_device([x for own in shards for x in own if isinstance(x, torch.Tensor)], narrow=True):
            of_all: Any = formula if alone else _sharded.OfShards(of_place, columns[0])
            made = super().elementwise(of_all, list(zip(*shards, strict=True)), numbers, factors, **static)
        else:
            made = []
            for i, own in enumerate(shards):
                one, factor = _sharded.of_shard(of_place, columns[0][i]), None if factors is None else [factors[i]]
                made += super().elementwise(one, [[part] for part in own], numbers, factor, **static)
        return [_sharded.like(row[0], own[0], new) for row, own, new in zip(rows, shards, made, strict=True)]

    def of_matrices(
        self,
        formula: Callable[..., Any],
        leaves: Sequence[Any],
        sides: Sequence[Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's matrices; a matrix is gathered if a side is sharded, one leaf after the other."""
        plain = super().of_matrices
        if not _sharded.any_sharded(leaves):
            return plain(formula, leaves, sides, dtype, **static)

        def one(own: Sides, local: list[Any]) -> list[Any]:
            return plain(formula, local, [own], dtype, **static)

        out = []
        for leaf, own in zip(leaves, sides, strict=True):
            gathered = _sharded.gathered(leaf, (*own[0], *own[1]))
            (new,) = _sharded.on_shards([gathered], functools.partial(one, own))
            out.append(_sharded.alongside(leaf, new))
        return out

    def largest(self, leaves: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Keep so many elements of each leaf; of a DTensor, only counts travel."""
        if not _sharded.any_sharded(leaves):
            return super().largest(leaves, counts)
        out = list(leaves)
        for find, kind in ((_sharded_ranking.largest, True), (super().largest, False)):
            places = [i for i, leaf in enumerate(leaves) if _sharded.is_sharded(leaf) is kind]
            made = find([leaves[i] for i in places], [counts[i] for i in places])
            for i, new in zip(places, made, strict=True):
                out[i] = new
        return out

    def sparse(self, leaf: Any) -> Any:
        """DTensors cannot be sparse."""
        return None if _sharded.is_sharded(leaf) else super().sparse(leaf)

    def each(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        out: Sequence[Any] | None = None,
    ) -> list[Any]:
        """A formula of each leaf's elements, in its own dtype, on the shards."""
        numbers = list(map(_sharded.whole, numbers))
        if not any(map(_sharded.any_sharded, columns)):
            return super().each(formula, columns, numbers, None if out is None or _sharded.any_sharded(out) else out)
        new = []
        for column in zip(*columns, strict=True):
            own = _sharded.shards_of(column)
            new.append(_sharded.like(column[0], own[0], self.each(formula, [[part] for part in own], numbers)[0]))
        return new

    def copied(self, leaves: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Copy the leaves."""
        if _sharded.any_sharded(leaves):
            return _sharded.on_shards(leaves, super().copied)
        return super().copied(leaves, None if out is None or _sharded.any_sharded(out) else out)

    def custom_backward(self, first: Sequence[Any], second: Sequence[Any], backward: Backward) -> list[Any]:
        """Return the first tensors, with a custom backward pass."""
        if _sharded.any_sharded(first):
            return _sharded.on_backward(
                first, backward, lambda own, back: super(Torch, self).custom_backward(own, second, back)
            )
        return super().custom_backward(first, second, backward)


def is_writable(leaf: Any) -> bool:
    """Whether each element has its own memory and needs no gradient."""
    if _sharded.is_sharded(leaf):
        whole = not any(placement.is_partial() for placement in leaf.placements)
        return whole and _readable.is_writable(_sharded.local(leaf))
    return _readable.is_writable(leaf)


backend = Torch()
register(backend)
