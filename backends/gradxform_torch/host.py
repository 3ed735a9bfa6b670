"""Kernels for ordinary dense tensors on the CPU outside of compilers, which NumPy reads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradxform.backend.host import namespace as host
from gradxform.backend.host import threads
from gradxform.backend.host.kernels import Readable
from gradxform.backend.protocol import Axes, Columns, Given, Row, Steps
from gradxform.core.leaves import put
from gradxform.numerics import elementwise
from gradxform.numerics.elementwise import Formula, in_steps, weighted
from gradxform_torch import foreach
from gradxform_torch.namespace import Namespace, rounded_number
from gradxform_torch.readable import are_writable


class Host(Readable, foreach.Eager):
    """PyTorch for ordinary tensors on the CPU that no gradient is asked of."""

    def view(self, array: torch.Tensor) -> Any:
        """The memory of a tensor; bfloat16 is copied to float32."""
        seen = array.float() if array.dtype == torch.bfloat16 else array
        try:
            return seen.numpy()
        except RuntimeError:  # a parameter, or one that negates or conjugates what it sees
            return seen.detach().resolve_conj().resolve_neg().numpy()

    def taken(self, array: Any) -> torch.Tensor:
        """A tensor of the array's memory."""
        return torch.from_numpy(array)

    def norms(self, leaves: Sequence[torch.Tensor], ord: float) -> Any:
        """The vector of the leaves' norms."""
        return host.norms([self.view(leaf.float() if leaf.itemsize == 2 else leaf) for leaf in leaves], ord)

    def multiply(self, leaves: Sequence[torch.Tensor], factors: Any, inplace: bool) -> list[torch.Tensor]:
        """Each leaf times its factor, by one call for many; a leaf with the factor one comes back as it is."""
        given = factors if type(factors) is float else np.asarray(factors, np.float64).tolist()
        own = are_writable(leaves) if inplace else [False] * len(leaves)
        if isinstance(given, float):
            return foreach.per_kind(functools.partial(_times, factors=given), leaves, own)
        due = [i for i, factor in enumerate(given) if factor != 1]
        some = [[column[i] for i in due] for column in (leaves, own, given)]
        return put(leaves, due, foreach.per_kind(_times, *some))

    def norms_over(self, leaves: Row, axes: Axes, ord: float, of: Any = None) -> Any:
        """Norms over some axes."""
        return host.norms_over(list(map(self._seen, leaves)), axes, ord)

    def multiply_over(self, leaves: Row, axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Leaves times factors of slices; one that float32 can multiply, in one pass."""
        leaf, by = leaves[0], np.asarray(self._seen(factors))
        one = leaf.dtype == torch.float64 or (leaf.dtype == torch.float32 and len(in_steps(host.NUMPY, by)) == 1)
        if len(leaves) > 1 or not one:
            return super().multiply_over(leaves, axes, factors, inplace)
        out = leaf if inplace[0] and all(are_writable(leaves)) else None
        return [torch.mul(leaf, torch.from_numpy(by).to(leaf.dtype), out=out)]

    def _clamped(self, leaves: foreach.Tensors, kind: tuple[torch.dtype, bool], low: Any, high: Any) -> foreach.Tensors:
        """Large leaves in one pass over memory."""
        if all([leaf.numel() <= threads.SMALL for leaf in leaves]):
            return super()._clamped(leaves, kind, low, high)
        dtype, own = kind
        bounds = [None if bound is None else rounded_number(bound, dtype) for bound in (low, high)]
        return [(leaf.clamp_ if own else leaf.clamp)(*bounds) for leaf in leaves]

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's elements."""
        found = foreach.combination(columns, numbers, factors, out) if formula is weighted else None
        if found is not None:
            return found
        own = out if out is not None and foreach.are_fit(columns[0], [out]) else None
        new = super().elementwise(formula, columns, numbers, factors, own, **static)
        for written in own or ():  # older versions of PyTorch take one
            torch.autograd.graph.increment_version(written)
        return new

    def overwrite(self, columns: Columns, steps: Steps, factors: Any = None) -> bool:
        """Overwrite real columns with sums; not in half precision, nor by numbers that float32 does not hold."""
        if not foreach.are_fit(columns[0], columns):
            return False
        each = None if factors is None else np.broadcast_to(np.asarray(factors, "d"), len(columns[0])).tolist()
        pieces = [(i, piece) for i, row in enumerate(zip(*columns, strict=True)) for piece in _pieces(row)]
        cut = [[piece[k] for _, piece in pieces] for k in range(len(columns))]
        return foreach.sums(cut, steps, each and [each[i] for i, _ in pieces], foreach.CACHED) is not None

    def peer_norm(self, function: str, leaves: Row, ord: float, axes: tuple[int, ...] | None) -> torch.Tensor | None:
        """The norm as torch.nn.utils computes it."""
        there = [leaf for leaf in leaves if leaf.numel()]  # of no elements, PyTorch has no infinity norm
        if function != "torch clip_grad_norm_" or not there:
            return None
        return torch.nn.utils.get_total_norm(there, ord).double()


def _pieces(row: tuple[torch.Tensor, ...]) -> Sequence[tuple[torch.Tensor, ...]]:
    """A row of tensors, in pieces that stay in the cache from one step to the next."""
    if row[0].numel() <= foreach.CACHED or not all([x.is_contiguous() for x in row]):
        return [row]
    return list(zip(*[torch.split(x.view(-1), foreach.CACHED) for x in row], strict=True))


def _times(leaves: foreach.Tensors, own: bool, factors: float | list[float]) -> Any:
    """Leaves of one dtype times a number, or one each."""
    dtype, distinct = leaves[0].dtype, {factors} if isinstance(factors, float) else {*factors}
    if distinct == {1.0}:
        return leaves
    if dtype.is_complex or (dtype != torch.float64 and any(map(elementwise.is_extreme, distinct))):
        each = [factors] * len(leaves) if isinstance(factors, float) else factors
        return map(functools.partial(elementwise.times, Namespace(leaves[0].device)), leaves, each)
    if dtype.itemsize == 2:  # in place, torch would round the factors to half precision
        return foreach.times(leaves, False, factors)
    numbers = factors if len(distinct) > 1 else distinct.pop()  # of floats, torch would make a tensor for each leaf
    by = torch.from_numpy(np.array(numbers, "f" if dtype == torch.float32 else "d"))
    return foreach.times(leaves, own, by.unbind() if by.ndim else by)
