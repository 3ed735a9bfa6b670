"""PyTorch's fast paths: NumPy reads eager tensors on the CPU, and fused calls write where that is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host.kernels import Readable
from gradxform.backend.protocol import Axes
from gradxform.numerics import matrices, rescale
from gradxform.numerics.elementwise import Combination, Formula
from gradxform_torch import _fused, _host, _packed, _private, _products, _sums
from gradxform_torch._along import Along
from gradxform_torch._namespace import Namespace, OfLeaves, rounded_number
from gradxform_torch._readable import is_writable, readable, traced, transformed


class Kernels(Readable, Along):
    """PyTorch, with as few operations as may be."""

    def readable(self, arrays: Iterable[Any]) -> bool:
        """Whether these are ordinary tensors on the CPU that no gradient is asked of."""
        return readable(arrays)

    def view(self, array: torch.Tensor) -> Any:
        """The memory of a tensor."""
        whole = array.detach().resolve_conj().resolve_neg()
        return (whole.float() if whole.dtype == torch.bfloat16 else whole).numpy()

    def taken(self, array: Any) -> torch.Tensor:
        """A tensor of the array's memory."""
        return torch.from_numpy(array)

    def norms(self, leaves: Sequence[torch.Tensor], ord: float) -> Any:
        """The vector of the leaves' norms."""
        if _fused.on_device(leaves, narrow=True):
            found = _fused.norms(leaves, ord) if _fused.on_device(leaves) else None
            if found is not None:
                return found
            each = self._each_norm_over(leaves, [tuple(range(leaf.ndim)) for leaf in leaves], ord)
            return torch.stack([norm.reshape(()).to(leaves[0].device) for norm in each])
        if ord != 2 or not readable(leaves):
            return super().norms(leaves, ord)
        return _host.norms(self, leaves)

    def multiply(self, leaves: Sequence[torch.Tensor], factors: Any, inplace: bool) -> list[torch.Tensor]:
        """Each leaf times its factor; where values may be read, a leaf with the factor one comes back as it is."""
        if _fused.on_device([*leaves, factors] if isinstance(factors, torch.Tensor) else leaves, narrow=True):
            own = [inplace and is_writable(leaf) for leaf in leaves]
            found = _products.by_number(leaves, factors, own) if isinstance(factors, float) else None
            if found is None:
                found = _products.multiply(leaves, self.namespace_of(leaves[0]).float64(factors), own)
            return super().multiply(leaves, factors, inplace) if found is None else found
        if isinstance(factors, torch.Tensor) or traced():
            return super().multiply(leaves, factors, inplace)
        if np.ndim(factors) == 0 and len({leaf.device for leaf in leaves}) == 1 and _host.is_plain(leaves, factors):
            return _times_one(leaves, float(factors), inplace)
        each = np.broadcast_to(np.asarray(factors, np.float64), (len(leaves),)).tolist()
        out = list(leaves)
        fused: dict[bool, tuple[list[int], list[float]]] = {True: ([], []), False: ([], [])}
        for i, (leaf, factor) in enumerate(zip(leaves, each, strict=True)):
            if factor == 1:
                continue
            if leaf.is_complex() or (leaf.dtype != torch.float64 and rescale.is_extreme(factor)):
                out[i] = _put(leaf, rescale.times(self.namespace_of(leaf), leaf, factor), inplace)
            elif leaf.itemsize == 2:  # in place, torch would round the factor to the leaf's dtype
                out[i] = _put(leaf, leaf * factor, inplace)
            else:
                places, numbers = fused[inplace and is_writable(leaf)]
                places.append(i)
                numbers.append(factor)
        written, factors_written = fused[True]
        if written:
            _private.foreach_mul_([out[i] for i in written], factors_written)
        fresh, factors_made = fused[False]
        if fresh:
            for i, new in zip(fresh, _private.foreach_mul([out[i] for i in fresh], factors_made), strict=True):
                out[i] = new
        return out

    def norms_over(self, leaves: Sequence[torch.Tensor], axes: Axes, ord: float) -> Any:
        """Norms over some axes; of narrow leaves that may be read, with one copy in float64."""
        if len(leaves) == 1 and axes[0] and ord == 2 and leaves[0].dtype in _fused.REAL and readable(leaves):
            wide = leaves[0].detach().double()
            return wide.mul_(wide).sum(axes[0], keepdim=True).sqrt_()
        return super().norms_over(leaves, axes, ord)

    def multiply_over(
        self, leaves: Sequence[torch.Tensor], axes: Axes, factors: Any, inplace: Sequence[bool]
    ) -> list[torch.Tensor]:
        """Leaves times factors of slices."""
        leaf, given = leaves[0], [*leaves, factors] if isinstance(factors, torch.Tensor) else leaves
        if len(leaves) == 1 and leaf.dtype in (torch.float32, torch.float64) and readable(given):
            by = self.namespace_of(leaf).float64(factors)
            if leaf.dtype == torch.float64 or not _is_extreme(by):
                out = leaf if inplace[0] and is_writable(leaf) else None
                return [torch.mul(leaf, by.to(leaf.dtype), out=out)]
        return list(map(_put, leaves, super().multiply_over(leaves, axes, factors, inplace), inplace))

    def clip(
        self, leaves: Sequence[torch.Tensor], low: Any, high: Any, factors: Any, inplace: bool
    ) -> list[torch.Tensor]:
        """min(max(factor * leaf, low), high)."""
        if factors is None and _fused.are_numbers(low, high) and _fused.on_device(leaves):
            return _fused.clip(leaves, low, high, [inplace and is_writable(leaf) for leaf in leaves])
        eager = not transformed()
        if factors is None and low is high is None:
            return list(leaves)
        if factors is None and eager and _fused.are_numbers(low, high) and all([leaf.is_cpu for leaf in leaves]):
            return _host.between(leaves, low, high, [inplace and is_writable(leaf) for leaf in leaves])
        scaled = list(leaves)
        if factors is not None:
            scaled = self.multiply([rescale.in_single(Namespace, leaf) for leaf in leaves], factors, inplace)
        kinds = {(old.dtype, new.dtype, new.device) for old, new in zip(leaves, scaled, strict=True)}
        bounds = {kind: [_bound(bound, *kind) for bound in (low, high)] for kind in kinds}
        for (_, to, device), pair in bounds.items():
            if any(isinstance(bound, torch.Tensor) for bound in pair):  # torch.clamp takes two numbers or two tensors
                pair[:] = [None if bound is None else torch.as_tensor(bound, dtype=to, device=device) for bound in pair]
        if low is high is None:
            return scaled
        out = []
        for old, new in zip(leaves, scaled, strict=True):
            between = bounds[old.dtype, new.dtype, new.device]
            own = eager and (inplace or new is not old) and is_writable(new)
            out.append(torch.clamp_(new, *between) if own else torch.clamp(new, *between))
        return out

    def elementwise(
        self,
        formula: Formula,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements; on an accelerator, of many small leaves at a time."""
        plain, tensors = super().elementwise, [x for column in columns for x in column if isinstance(x, torch.Tensor)]
        accelerated = _fused.on_device(tensors, narrow=True)
        if isinstance(formula, Combination) and (accelerated or readable(tensors)):
            found = _host.combined(self, formula, columns, numbers, factors, out)
            if found is not None:
                return found
        if not accelerated:
            if not isinstance(formula, OfLeaves):
                return plain(formula, columns, numbers, factors, **static)
            made = []
            for i in range(len(columns[0])):
                by = None if factors is None else [factors[i]]
                made += plain(formula.of(i), [[column[i]] for column in columns], numbers, by, **static)
            return made
        if factors is not None:
            factors = [self._on_device(factor, leaf) for factor, leaf in zip(factors, columns[0], strict=True)]

        on: dict[torch.device, Sequence[Any]] = {}

        def kernel(formula: Callable[..., Any], rows: Any, own: Any) -> list[Any]:
            given = [column for (column,) in rows]
            xp = self.namespace_of(given[0])
            if given[0].is_complex():
                return plain(formula, rows, numbers, own, **static)
            if not isinstance(formula, Combination):
                if own is not None:
                    rows = [[_sums.in_registers(given[:1], own)], *rows[1:]]
                return plain(formula, rows, numbers, **static)
            if xp.device not in on:
                on[xp.device] = formula.weights(xp, *map(xp.float64, numbers))
            first, *others = on[xp.device]
            first = first if own is None else own[0] * first
            return [_sums.in_registers(given, [first, *others])]

        return _packed.in_parts(kernel, formula, columns, factors, out)

    def of_matrices(
        self,
        formula: Callable[..., Any],
        leaves: Sequence[torch.Tensor],
        sides: Sequence[matrices.Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[torch.Tensor]:
        """A formula of each leaf's matrices; on an accelerator, of small leaves of one shape together."""
        plain = super().of_matrices
        if not _fused.on_device(leaves, narrow=True):
            return plain(formula, leaves, sides, dtype, **static)
        out = list(leaves)
        for places in _packed.stackable(leaves, sides):
            some, own = [leaves[i] for i in places], sides[places[0]]
            if len(some) == 1:
                (out[places[0]],) = plain(formula, some, [own], dtype, **static)
                continue
            inner = [tuple(axis + 1 for axis in side) for side in own]
            (stack,) = plain(formula, [torch.stack(some)], [(inner[0], inner[1])], dtype, **static)
            for i, new in zip(places, stack.unbind(), strict=True):
                out[i] = new
        return out

    def largest(self, leaves: Sequence[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
        """Keep so many elements of each leaf; on an accelerator, of small leaves of one shape together."""
        if not _fused.on_device(leaves, narrow=True):
            return super().largest(leaves, counts)
        out = list(leaves)
        for places in _packed.stackable(leaves, counts):
            some = [leaves[i] for i in places]
            stack = torch.stack(some) if len(some) > 1 else some[0].unsqueeze(0)
            made = _packed.largest(self.namespace_of(stack), stack, counts[places[0]])
            for i, new in zip(places, made.unbind(), strict=True):
                out[i] = new
        return out

    def each(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        out: Sequence[Any] | None = None,
    ) -> list[Any]:
        """The same in the leaves' own dtypes."""
        plain, tensors = super().each, [x for column in columns for x in column if isinstance(x, torch.Tensor)]
        if not _fused.on_device(tensors, narrow=True):
            return plain(formula, columns, numbers)
        return _packed.in_parts(lambda own, rows, _: plain(own, rows, numbers), formula, columns, None, out)

    def cast(self, leaves: Sequence[torch.Tensor], likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Leaves rounded to the dtypes of others."""
        return _fused.cast(leaves, likes) if _fused.on_device(leaves) else super().cast(leaves, likes)

    def copied(self, leaves: Sequence[torch.Tensor], out: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The leaves in memory of their own, or in writable tensors."""
        if not out or not _are_writable(out, leaves):
            return _fused.cast(leaves, leaves) if _fused.on_device(leaves) else super().copied(leaves)
        _private.foreach_copy_(list(out), list(leaves))
        return list(out)

    def zeros(self, leaves: Sequence[torch.Tensor], inplace: bool = False) -> list[torch.Tensor]:
        """Fresh zeros; or the leaves, filled with zeros, if they may be written."""
        if inplace and leaves and _are_writable(leaves, leaves):
            _private.foreach_zero_(list(leaves))
            return list(leaves)
        return _fused.zeros(leaves) if _fused.on_device(leaves) else super().zeros(leaves)

    def peer_norm(
        self, function: str, leaves: Sequence[torch.Tensor], ord: float, axes: tuple[int, ...] | None
    ) -> torch.Tensor | None:
        """The norm as torch.nn.utils computes it, for ordinary tensors."""
        there = [leaf for leaf in leaves if leaf.numel()]  # of no elements, PyTorch has no infinity norm
        if function != "torch clip_grad_norm_" or not there or not readable(leaves):
            return None
        return torch.nn.utils.get_total_norm(there, ord).double()


def _times_one(leaves: Sequence[torch.Tensor], factor: float, inplace: bool) -> list[torch.Tensor]:
    """Each leaf times one factor, by one fused call."""
    if factor == 1:
        return list(leaves)
    inplace = inplace and not (torch.is_grad_enabled() and any([leaf.requires_grad for leaf in leaves]))
    return list(_host.times_one(leaves, factor, inplace))


def _is_extreme(factors: torch.Tensor) -> bool:
    """Whether float32 does not hold one of the factors."""
    size = factors.abs()
    return bool(((size > rescale.MOST) & (size < math.inf) | (size < rescale.LEAST) & (size > 0.0)).any())


def _are_writable(tensors: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> bool:
    """Whether the values of eager leaves may be written into tensors."""
    return (readable(leaves) or _fused.on_device(leaves, narrow=True)) and all(map(is_writable, tensors))


def _put(leaf: torch.Tensor, result: torch.Tensor, inplace: bool) -> torch.Tensor:
    if result is leaf or not inplace or not is_writable(leaf):
        return result
    _private.foreach_copy_([leaf], [result])
    return leaf


def _bound(bound: Any, of: torch.dtype, to: torch.dtype, device: torch.device) -> Any:
    """A bound in a leaf's dtype and then in that of its values now; a number stays one, which torch is faster with."""
    if bound is None or isinstance(bound, torch.Tensor):
        return None if bound is None else bound.to(device, of).to(to)
    if isinstance(bound, (int, float)) and not transformed():
        return rounded_number(rounded_number(bound, of), to)
    return torch.as_tensor(bound, dtype=torch.float64, device="cpu").to(of).to(to).to(device)
