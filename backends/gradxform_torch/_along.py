"""Norms, means and products along axes on an accelerator, for leaves of one shape and layout together.

Leaves of at most 32 bits are reduced in float64 where the device has it: small ones are copied into it together, large
ones a piece at a time. Other leaves, and all where there is no float64, are stacked for the plain kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gradxform.backend.protocol import Axes, pairs
from gradxform.numerics import formulas, subsets
from gradxform_torch import _fused, _packed, _private, _products, _stacked
from gradxform_torch._readable import is_writable
from gradxform_torch.plain import Plain

_DOUBLE = {torch.float64, torch.complex128}


class Along(Plain):
    """PyTorch's kernels of slices."""

    def groups(self, leaves: Sequence[torch.Tensor]) -> Sequence[Sequence[int]]:
        """Group the leaves of an accelerator; float64 leaves form a group of their own."""
        if not _fused.on_device(leaves, narrow=True):
            return super().groups(leaves)
        found: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            found.setdefault((leaf.device, leaf.dtype in _DOUBLE), []).append(i)
        return list(found.values())

    def norms_over(self, leaves: Sequence[torch.Tensor], axes: Axes, ord: float) -> Any:
        """Return the norms of slices."""
        if _fused.on_device(leaves, narrow=True):
            each = self._each_norm_over(leaves, axes, ord)
        elif len(leaves) == 1:
            return super().norms_over(leaves, axes, ord)
        else:
            each = [self.norms_over([leaf], [over], ord) for leaf, over in zip(leaves, axes, strict=True)]
        return each[0] if len(each) == 1 else torch.cat([norm.reshape(-1) for norm in each])

    def _each_norm_over(self, leaves: Sequence[torch.Tensor], axes: Axes, ord: float) -> list[Any]:
        """Return the norms of the slices of each leaf of an accelerator."""
        plain = super().norms_over

        def wide(array: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
            return torch.linalg.vector_norm(array, ord, over, True)

        found = self._reduced(leaves, axes, wide, ord in (1, 2, math.inf))
        return self._stacked(found, leaves, axes, lambda array, over: plain([array], [over], ord))

    def multiply_over(
        self, leaves: Sequence[torch.Tensor], axes: Axes, factors: Any, inplace: Sequence[bool]
    ) -> list[torch.Tensor]:
        """Multiply leaves by factors of slices."""
        each = [factors]
        if len(leaves) > 1:
            shapes = [_reduced_shape(leaf, over) for leaf, over in zip(leaves, axes, strict=True)]
            parts = torch.split(factors, list(map(math.prod, shapes)))
            each = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        given = [factor for factor in each if isinstance(factor, torch.Tensor)]
        if _fused.on_device([*leaves, *given], narrow=True) and not any([leaf.is_complex() for leaf in leaves]):
            out = _out(leaves, inplace)
            _products.each(torch.mul, leaves, list(map(self._on_device, each, leaves)), out)
            return out
        if len(leaves) == 1:
            return super().multiply_over(leaves, axes, factors, inplace)
        rows = zip(leaves, axes, each, inplace, strict=True)
        return [self.multiply_over([leaf], [over], factor, [mine])[0] for leaf, over, factor, mine in rows]

    def _on_device(self, factor: Any, leaf: torch.Tensor) -> Any:
        """Return a factor as a tensor where its leaf is."""
        return self.namespace_of(leaf).float64(factor)

    def centered(self, leaves: Sequence[torch.Tensor], axes: Axes, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Subtract the means of slices."""
        if not _fused.on_device(leaves, narrow=True):
            return super().centered(leaves, axes, inplace)
        found = self._reduced(leaves, axes, lambda array, over: array.sum(over, True))
        wide = [i for i, sums in enumerate(found) if sums is not None]
        if wide:
            _private.foreach_div_([found[i] for i in wide], [self.count(leaves[i], axes[i]) for i in wide])

        means = self._stacked(found, leaves, axes, self._mean_over)
        if not all([leaf.dtype in _fused.REAL for leaf in leaves]):
            return self.elementwise(formulas.difference, [leaves, means], ())
        own = [mine and leaf.dtype == torch.float32 for leaf, mine in zip(leaves, inplace, strict=True)]
        out = _out(leaves, own, torch.float32)
        _products.each(torch.sub, leaves, means, out)
        return out

    def _reduced(
        self, leaves: Sequence[torch.Tensor], axes: Axes, function: _stacked.Reduction, known: bool = True
    ) -> list[Any]:
        """Reduce the leaves that fit float64; return None for others."""
        found: list[Any] = [None] * len(leaves)
        fit = [i for i, over in enumerate(axes) if known and over and _fits(leaves[i]) and _stacked.is_dense(leaves[i])]
        reduced = _stacked.reduced([leaves[i] for i in fit], [_positive(leaves[i], axes[i]) for i in fit], function)
        for i, new in zip(fit, reduced, strict=True):
            found[i] = new
        return found

    def _stacked(
        self, found: list[Any], leaves: Sequence[torch.Tensor], axes: Axes, kernel: Callable[..., Any]
    ) -> list[Any]:
        """Reduce the other leaves with a plain kernel, leaves of one shape in a stack."""
        left = [i for i, new in enumerate(found) if new is None]
        over = [_positive(leaves[i], axes[i]) for i in left]
        for places in _stacked.alike([leaves[i] for i in left], keys=over):
            own, axis = [left[place] for place in places], over[places[0]]
            if len(own) == 1:
                found[own[0]] = kernel(leaves[own[0]], axis)
                continue
            new = kernel(torch.stack([leaves[i] for i in own]), tuple([a + 1 for a in axis]))
            for i, row in zip(own, new.unbind(), strict=True):
                found[i] = row
        return found

    def inner_products(self, columns: Sequence[Sequence[torch.Tensor]], factors: Sequence[Any] | None) -> list[Any]:
        """Return inner products; on an accelerator, of many small leaves together."""
        plain = super().inner_products
        if not _fused.on_device([leaf for column in columns for leaf in column], narrow=True):
            return plain(columns, factors)
        found = []
        for row in _packed.joined(columns):
            if factors is None and all(map(_fits, row)):
                wide = [leaf.reshape(-1).double() for leaf in row]
                found.append([torch.dot(one, other) for one, other in pairs(wide)])
            else:
                found.append(plain([row], factors))
        return [self.compute(subsets.total, *parts) for parts in zip(*found, strict=True)]


def _fits(leaf: torch.Tensor) -> bool:
    """Whether squares of the elements fit float64, which the device has."""
    return leaf.dtype in _fused.REAL and leaf.numel() > 0 and _fused.has_float64(leaf.device)


def _positive(leaf: torch.Tensor, axes: Iterable[int]) -> tuple[int, ...]:
    return tuple([axis % leaf.ndim for axis in axes])


def _reduced_shape(leaf: torch.Tensor, axes: Iterable[int]) -> list[int]:
    """Return a leaf's shape with ones for some axes."""
    over = _positive(leaf, axes)
    return [1 if axis in over else size for axis, size in enumerate(leaf.shape)]


def _out(leaves: Sequence[torch.Tensor], own: Sequence[bool], dtype: Any = None) -> list[torch.Tensor]:
    """Return writable leaves themselves, and new memory of the same layout for others."""
    both = zip(leaves, own, strict=True)
    return [leaf if mine and is_writable(leaf) else torch.empty_like(leaf, dtype=dtype) for leaf, mine in both]
