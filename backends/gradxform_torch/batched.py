"""Kernels for tensors on an accelerator: few launches, no copy of a large leaf in a wider dtype, nothing read or sent.

Small leaves are joined, or stacked where shapes matter; large ones are cut. Where there is a multi-tensor function, it
takes all leaves of one dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.backend.protocol import Axes, Columns, Given, Row, pairs, places_of
from gradxform.numerics import ranking, subsets
from gradxform.numerics.elementwise import Formula, is_extreme, weighted
from gradxform.numerics.matrices import Sides
from gradxform_torch import foreach, namespace, parts, private
from gradxform_torch.plain import split
from gradxform_torch.readable import are_writable

REAL = {torch.float16, torch.bfloat16, torch.float32}
"""Dtypes whose products with a float64 number fit float64."""
_DOUBLE = {torch.float64, torch.complex128}


class Batched(foreach.Eager):
    """PyTorch for ordinary tensors on an accelerator, possibly one without float64."""

    def norms(self, leaves: Row, ord: float) -> torch.Tensor:
        """The vector of the leaves' norms."""
        largest = ord == math.inf and all([leaf.numel() for leaf in leaves])
        kinds = REAL | {torch.float64} if largest else REAL if ord in (1, 2) else set()
        if all([leaf.dtype in kinds and _has_float64(leaf.device) for leaf in leaves]):
            own = [None] * len(leaves)
            found = foreach.per_kind(lambda some, _: private.foreach_norm(some, ord, torch.float64), leaves, own)
        else:
            found = self._each_norm_over(leaves, [tuple(range(leaf.ndim)) for leaf in leaves], ord)
        return torch.stack([norm.reshape(()).to(leaves[0].device) for norm in found])

    def groups(self, leaves: Row) -> Sequence[Sequence[int]]:
        """Group the leaves of a device; float64 leaves form a group of their own."""
        return list(places_of([(leaf.device, leaf.dtype in _DOUBLE) for leaf in leaves]).values())

    def norms_over(self, leaves: Row, axes: Axes, ord: float, of: Any = None) -> torch.Tensor:
        """Return the norms of slices, repeated for each of several leaves' numbers."""
        given = leaves if of is None else split(of[0], of[1], leaves[0])
        each = self._each_norm_over(given, axes, ord)
        if len(each) == 1:
            return each[0]
        each = each if of is None else [norm.expand_as(own) for norm, own in zip(each, given, strict=True)]
        return torch.cat([norm.reshape(-1) for norm in each])

    def _each_norm_over(self, leaves: Row, axes: Axes, ord: float) -> list[torch.Tensor]:
        plain = super().norms_over
        wide = functools.partial(torch.linalg.vector_norm, ord=ord, keepdim=True) if ord in (1, 2, math.inf) else None
        return _reduced(leaves, axes, wide, lambda array, over: plain([array], [over], ord))

    def multiply(self, leaves: Row, factors: Any, inplace: bool) -> list[torch.Tensor]:
        """Each leaf times its factor, rounded once."""
        if any([leaf.is_complex() for leaf in leaves]):
            return super().multiply(leaves, factors, inplace)
        if isinstance(factors, float) and not is_extreme(factors) and all([leaf.itemsize > 2 for leaf in leaves]):
            own = are_writable(leaves) if inplace else [False] * len(leaves)
            return foreach.per_kind(functools.partial(foreach.times, factor=factors), leaves, own)
        vector = self.namespace_of(leaves[0]).float64(factors)
        each = vector.unbind() if vector.ndim else [vector] * len(leaves)
        return _each(torch.mul, leaves, each, _out(leaves, [inplace] * len(leaves)))

    def multiply_over(self, leaves: Row, axes: Axes, factors: Any, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Multiply leaves by factors of slices."""
        if any([leaf.is_complex() for leaf in leaves]):
            return super().multiply_over(leaves, axes, factors, inplace)
        return _each(torch.mul, leaves, self._wide(split(leaves, axes, factors), leaves), _out(leaves, inplace))

    def _wide(self, numbers: Row, leaves: Row) -> list[torch.Tensor]:
        """The numbers beside leaves, on their devices."""
        return [self.namespace_of(leaf).float64(x) for leaf, x in zip(leaves, numbers, strict=True)]

    def centered(self, leaves: Row, axes: Axes, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Subtract the means of slices."""
        fit = all(map(_fits, leaves))
        means = _reduced(leaves, axes, functools.partial(torch.sum, keepdim=True) if fit else None, self._mean_over)
        if fit:
            private.foreach_div_(means, list(map(self.count, leaves, axes)))
        return _each(torch.sub, leaves, means, _out(leaves, inplace, wide=True))

    def inner_products(self, columns: Columns, factors: Given) -> list[Any]:
        """Return inner products, of many small leaves together."""
        found, plain = [], super().inner_products
        for part in parts.of_columns(columns):
            row = [part.join(tensors) for tensors in zip(*columns, strict=True)]
            if factors is None and all(map(_fits, row)):
                found.append([torch.dot(x, y) for x, y in pairs([leaf.reshape(-1).double() for leaf in row])])
            else:
                found.append(plain([row], factors))
        return [self.compute(subsets.total, *each) for each in zip(*found, strict=True)]

    def elementwise(
        self, formula: Formula, columns: Columns, numbers: Row, factors: Given = None, out: Given = None, **static: Any
    ) -> list[Any]:
        """A formula of each leaf's elements, of many small leaves at a time; `in_whole` as in `Part.indices`."""
        found = foreach.combination(columns, numbers, factors, out) if formula is weighted else None
        if found is not None:
            return found
        plain, in_whole, by = super().elementwise, static.pop("in_whole", None), [] if factors is None else [factors]

        @functools.cache
        def weights(device: torch.device) -> list[Any]:
            return [1.0 if x is None else namespace.Namespace(device, False).float64(x) for x in numbers]

        def kernel(part: parts.Part, row: list[Any]) -> Any:
            elements, own = row[: len(columns)], row[len(columns) :]
            leaf = elements[0]
            if formula is weighted and not leaf.is_complex():
                first, *others = weights(leaf.device)
                return _in_registers(elements, [first * own[0] if own else first, *others])
            if own and not leaf.is_complex():
                elements, own = [_in_registers([leaf], own), *elements[1:]], []
            index = {"index": functools.partial(part.indices, in_whole)} if "index" in static else {}
            return plain(formula, [[x] for x in elements], numbers, own or None, **static | index)[0]

        return parts.in_parts(kernel, [*columns, *[self._wide(x, columns[0]) for x in by]], out)

    def each(self, formula: Callable[..., Any], columns: Columns, numbers: Row, out: Given = None) -> list[Any]:
        """The same in the leaves' own dtypes."""
        plain = super().each
        return parts.in_parts(lambda _, row: plain(formula, [[x] for x in row], numbers)[0], columns, out)

    def of_matrices(
        self, formula: Callable[..., Any], leaves: Row, sides: Sequence[Sides], dtype: str | None, **static: Any
    ) -> list[torch.Tensor]:
        """A formula of each leaf's matrices, of small leaves of one shape together."""
        plain = super().of_matrices

        def kernel(array: torch.Tensor, own: Sides) -> torch.Tensor:
            rows, columns = map(_shifted, own)
            return plain(formula, [array], [(rows, columns)], dtype, **static)[0]

        return parts.stacked(kernel, leaves, sides)

    def largest(self, leaves: Row, counts: Sequence[int]) -> list[torch.Tensor]:
        """Keep so many elements of each leaf; on GPUs, `kthvalue` has one block for a leaf."""

        def kernel(array: torch.Tensor, count: int) -> torch.Tensor:
            xp = self.namespace_of(array)
            sizes = ranking.in_order(xp, array)
            least = sizes.reshape(len(array), -1).topk(count, sorted=False).values.amin(1)
            return ranking.kept(xp, array, sizes, least.reshape(-1, *[1] * (array.ndim - 1)))

        return parts.stacked(kernel, leaves, counts)


def _each(function: Callable[..., torch.Tensor], leaves: Row, others: Row, out: Row) -> list[torch.Tensor]:
    """Apply a binary function to each leaf and a tensor that broadcasts, in the dtype of the latter, rounded once."""
    one = all([other is others[0] for other in others])
    keys = [(new.stride(), other.dtype, other.shape) for new, other in zip(out, others, strict=True)]
    for part in parts.stacks(leaves, keys, [new.dtype for new in out]):
        made, into = list[torch.Tensor](), list[torch.Tensor]()
        for places, array in part:
            some = [others[i] for i in (places[:1] if one else places)]
            # PyTorch computes in the dtype of a number only if it has axes.
            shape = len(some), *(some[0].shape or (1,) * (array.ndim - 1))
            other = (torch.stack(some) if len(some) > 1 else some[0]).to(array.device).reshape(shape)
            if len(part) == len(places) == 1:
                function(array, other, out=out[places[0]].unsqueeze(0))
            else:
                made += function(array, other, out=array).unbind()
                into += [out[i] for i in places]
        foreach.copied(made, into)
    return list(out)


def _reduced(leaves: Row, axes: Axes, wide: Any, plain: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Reduce leaves over axes, which stay as ones; of one shape in stacks, large ones in pieces.

    In float64 by `wide`, if given, where squares fit it; else by a plain kernel.
    """

    def kernel(array: torch.Tensor, key: tuple[tuple[int, ...], bool]) -> torch.Tensor:
        over, fits = _shifted(key[0]), key[1]
        return _in_pieces(array, over, wide) if fits else plain(array, over)

    over = [tuple([axis % leaf.ndim for axis in own]) for leaf, own in zip(leaves, axes, strict=True)]
    fit = [wide is not None and bool(own) and _fits(leaf) for leaf, own in zip(leaves, over, strict=True)]
    dtypes = [torch.float64 if fits else leaf.dtype for leaf, fits in zip(leaves, fit, strict=True)]
    return parts.stacked(kernel, leaves, list(zip(over, fit, strict=True)), dtypes)


def _in_pieces(array: torch.Tensor, over: tuple[int, ...], function: Any) -> torch.Tensor:
    """Reduce an array in float64, in pieces along its first axis with short enough slices, else its longest axis."""
    rest = [array.numel() // size for size in array.shape]
    axis = next((a for a, count in enumerate(rest) if count <= parts.PART), rest.index(min(rest)))
    step = max(parts.PART // rest[axis], 1)
    pieces = [function(piece.double(), dim=over) for piece in torch.split(array, step, axis)]
    whole = torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0]
    return function(whole, dim=over) if axis in over and len(pieces) > 1 else whole


def _in_registers(elements: Row, weights: Row) -> torch.Tensor:
    """Add up products of tensors and weights, in the weights' dtype: numbers, or one tensor per element."""
    total: Any = None
    for x, weight in zip(elements, weights, strict=True):
        out = torch.empty_like(x, dtype=foreach.sums_dtype(x))
        if isinstance(weight, float):
            torch.mul(x.to(out.dtype), weight, out=out)
        else:
            torch.mul(x, weight.reshape(-1), out=out)
        total = out if total is None else total.add_(out)
    return total


def _has_float64(device: torch.device) -> bool:
    return namespace.widest_on(device) == "float64"


def _fits(leaf: torch.Tensor) -> bool:
    """Whether squares of the elements fit float64, which the device has."""
    return leaf.dtype in REAL and leaf.numel() > 0 and _has_float64(leaf.device)


def _shifted(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of a leaf in a stack."""
    return tuple([axis + 1 for axis in axes])


def _out(leaves: Row, own: Sequence[bool], wide: bool = False) -> list[torch.Tensor]:
    """Return writable leaves themselves, and new memory like the others; all in the dtypes of their sums if `wide`."""
    dtypes = [foreach.sums_dtype(leaf) if wide else leaf.dtype for leaf in leaves]
    rows = zip(leaves, dtypes, own, are_writable(leaves), strict=True)
    return [
        x if mine and free and x.dtype == dtype else torch.empty_like(x, dtype=dtype) for x, dtype, mine, free in rows
    ]
