"""Kernels for tensors on an accelerator: few launches, no copy of a large leaf in a wider dtype, nothing read or sent.

Small leaves are joined, or stacked where shapes matter; large ones are cut. Where there is a multi-tensor function, it
takes all leaves of one dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform.backend.protocol import Axes, pairs
from gradxform.numerics import formulas, matrices, ranking, rescale, subsets
from gradxform.numerics.elementwise import Combination, Formula
from gradxform.numerics.rescale import is_extreme
from gradxform_torch import _foreach, _namespace, _private
from gradxform_torch._namespace import Namespace, OfLeaves
from gradxform_torch._readable import is_writable
from gradxform_torch.plain import Plain, split

PART = 1 << 20
"""Elements at a time; each of their copies in float64 takes 8 MiB, of which a GPU's cache holds several."""
LARGE = 1 << 18
"""Elements from which a leaf has a launch of its own, which then takes no longer than to read and write it."""
REAL = {torch.float16, torch.bfloat16, torch.float32}
"""Dtypes whose products with a float64 number fit float64."""
_DOUBLE = {torch.float64, torch.complex128}

Reduction = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
"""Reduces an array over axes, which are kept as ones."""


class Batched(Plain):
    """PyTorch for ordinary tensors on an accelerator, possibly one without float64."""

    def norms(self, leaves: Sequence[torch.Tensor], ord: float) -> Any:
        """The vector of the leaves' norms."""
        kinds = REAL | {torch.float64} if ord == math.inf and all([leaf.numel() for leaf in leaves]) else REAL
        narrow = all([leaf.dtype in kinds and _has_float64(leaf.device) for leaf in leaves])
        if narrow and (ord in (1, 2) or torch.float64 in kinds):
            found = _foreach.per_kind(lambda some, _: _private.foreach_norm(some, ord, torch.float64), leaves)
        else:
            found = self._each_norm_over(leaves, [tuple(range(leaf.ndim)) for leaf in leaves], ord)
        return torch.stack([norm.reshape(()).to(leaves[0].device) for norm in found])

    def groups(self, leaves: Sequence[torch.Tensor]) -> Sequence[Sequence[int]]:
        """Group the leaves of a device; float64 leaves form a group of their own."""
        return _foreach.grouped([(leaf.device, leaf.dtype in _DOUBLE) for leaf in leaves])

    def norms_over(self, leaves: Sequence[torch.Tensor], axes: Axes, ord: float) -> Any:
        """Return the norms of slices."""
        each = self._each_norm_over(leaves, axes, ord)
        return each[0] if len(each) == 1 else torch.cat([norm.reshape(-1) for norm in each])

    def _each_norm_over(self, leaves: Sequence[torch.Tensor], axes: Axes, ord: float) -> list[Any]:
        plain = super().norms_over

        def wide(array: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
            return torch.linalg.vector_norm(array, ord, over, True)

        found = _reduced(leaves, axes, wide) if ord in (1, 2, math.inf) else [None] * len(leaves)
        return _completed(found, leaves, axes, lambda array, over: plain([array], [over], ord))

    def multiply(self, leaves: Sequence[torch.Tensor], factors: Any, inplace: bool) -> list[torch.Tensor]:
        """Each leaf times its factor, rounded once."""
        if any([leaf.is_complex() for leaf in leaves]):
            return super().multiply(leaves, factors, inplace)
        if isinstance(factors, float) and not is_extreme(factors) and all([leaf.itemsize > 2 for leaf in leaves]):
            own = [inplace and is_writable(leaf) for leaf in leaves]
            return _foreach.per_kind(functools.partial(_foreach.times, factor=factors), leaves, own)
        vector = self.namespace_of(leaves[0]).float64(factors)
        each = vector.unbind() if vector.ndim else [vector] * len(leaves)
        return _each(torch.mul, leaves, each, _out(leaves, [inplace] * len(leaves)))

    def multiply_over(
        self, leaves: Sequence[torch.Tensor], axes: Axes, factors: Any, inplace: Sequence[bool]
    ) -> list[torch.Tensor]:
        """Multiply leaves by factors of slices."""
        if any([leaf.is_complex() for leaf in leaves]):
            return super().multiply_over(leaves, axes, factors, inplace)
        each = [
            self.namespace_of(leaf).float64(x) for leaf, x in zip(leaves, split(leaves, axes, factors), strict=True)
        ]
        return _each(torch.mul, leaves, each, _out(leaves, inplace))

    def centered(self, leaves: Sequence[torch.Tensor], axes: Axes, inplace: Sequence[bool]) -> list[torch.Tensor]:
        """Subtract the means of slices."""
        found = _reduced(leaves, axes, lambda array, over: array.sum(over, True))
        wide = [i for i, sums in enumerate(found) if sums is not None]
        if wide:
            _private.foreach_div_([found[i] for i in wide], [self.count(leaves[i], axes[i]) for i in wide])
        means = _completed(found, leaves, axes, self._mean_over)
        if not all([leaf.dtype in REAL for leaf in leaves]):
            return self.elementwise(formulas.difference, [leaves, means], ())
        own = [mine and leaf.dtype == torch.float32 for leaf, mine in zip(leaves, inplace, strict=True)]
        return _each(torch.sub, leaves, means, _out(leaves, own, torch.float32))

    def inner_products(self, columns: Sequence[Sequence[torch.Tensor]], factors: Sequence[Any] | None) -> list[Any]:
        """Return inner products, of many small leaves together."""
        found, plain = [], super().inner_products
        for part in _parts(columns):
            row = [part.join(tensors) for tensors in zip(*columns, strict=True)]
            if factors is None and all(map(_fits, row)):
                found.append([torch.dot(x, y) for x, y in pairs([leaf.reshape(-1).double() for leaf in row])])
            else:
                found.append(plain([row], factors))
        return [self.compute(subsets.total, *parts) for parts in zip(*found, strict=True)]

    def clip(
        self, leaves: Sequence[torch.Tensor], low: Any, high: Any, factors: Any, inplace: bool
    ) -> list[torch.Tensor]:
        """min(max(factor * leaf, low), high)."""
        if not _foreach.are_numbers(low, high):
            return super().clip(leaves, low, high, factors, inplace)
        scaled: Sequence[torch.Tensor] = leaves
        if factors is not None:
            scaled = self.multiply([rescale.in_single(Namespace, leaf) for leaf in leaves], factors, inplace)
        own = [(inplace or new is not old) and is_writable(new) for new, old in zip(scaled, leaves, strict=True)]
        kinds = [(leaf.dtype, mine) for leaf, mine in zip(leaves, own, strict=True)]
        return _foreach.per_kind(functools.partial(_foreach.clamped, low=low, high=high), scaled, kinds)

    def elementwise(
        self,
        formula: Formula,
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        factors: Sequence[Any] | None = None,
        out: Sequence[Any] | None = None,
        **static: Any,
    ) -> list[Any]:
        """A formula of each leaf's elements, of many small leaves at a time."""
        if isinstance(formula, Combination):
            found = _foreach.combination(formula, columns, numbers, factors, out)
            if found is not None:
                return found
        plain, weights = super().elementwise, dict[Any, Sequence[Any]]()

        def kernel(formula: Any, row: list[Any]) -> Any:
            elements, factor = (row, None) if factors is None else (row[:-1], row[-1])
            leaf = elements[0]
            if isinstance(formula, Combination) and not leaf.is_complex():
                xp = self.namespace_of(leaf)
                if leaf.device not in weights:
                    weights[leaf.device] = formula.weights(xp, *map(xp.float64, numbers))
                first, *others = weights[leaf.device]
                return _in_registers(elements, [first if factor is None else factor * first, *others])
            own = None if factor is None else [factor]
            if factor is not None and not leaf.is_complex():
                elements, own = [_in_registers([leaf], [factor]), *elements[1:]], None
            return plain(formula, [[x] for x in elements], numbers, own, **static)[0]

        if factors is not None:
            each = [self.namespace_of(leaf).float64(x) for leaf, x in zip(columns[0], factors, strict=True)]
            columns = [*columns, each]
        return _in_parts(kernel, formula, columns, out)

    def each(
        self,
        formula: Callable[..., Any],
        columns: Sequence[Sequence[Any]],
        numbers: Sequence[Any],
        out: Sequence[Any] | None = None,
    ) -> list[Any]:
        """The same in the leaves' own dtypes."""
        plain = super().each
        return _in_parts(lambda own, row: plain(own, [[x] for x in row], numbers)[0], formula, columns, out)

    def of_matrices(
        self,
        formula: Callable[..., Any],
        leaves: Sequence[torch.Tensor],
        sides: Sequence[matrices.Sides],
        dtype: str | None,
        **static: Any,
    ) -> list[torch.Tensor]:
        """A formula of each leaf's matrices, of small leaves of one shape together."""
        plain = super().of_matrices

        def kernel(array: torch.Tensor, own: matrices.Sides) -> torch.Tensor:
            rows, columns = map(_shifted, own)
            return plain(formula, [array], [(rows, columns)], dtype, **static)[0]

        return _stacked(kernel, leaves, sides)

    def largest(self, leaves: Sequence[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
        """Keep so many elements of each leaf; on GPUs, `kthvalue` has one block for a leaf."""

        def kernel(array: torch.Tensor, count: int) -> torch.Tensor:
            xp = self.namespace_of(array)
            sizes = ranking.in_order(xp, array)
            least = sizes.reshape(len(array), -1).topk(count, sorted=False).values.amin(1)
            return ranking.kept(xp, array, sizes, least.reshape(-1, *[1] * (array.ndim - 1)))

        return _stacked(kernel, leaves, counts)

    def cast(self, leaves: Sequence[torch.Tensor], likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Leaves rounded to the dtypes of others."""
        out = [torch.empty_like(leaf, dtype=like.dtype) for leaf, like in zip(leaves, likes, strict=True)]
        return _foreach.copied(leaves, out)

    def copied(self, leaves: Sequence[torch.Tensor], out: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The leaves in memory of their own, or in writable tensors."""
        fits = bool(out) and all(map(is_writable, out or ()))
        return _foreach.copied(leaves, out if out and fits else [torch.empty_like(leaf) for leaf in leaves])

    def zeros(self, leaves: Sequence[torch.Tensor], inplace: bool = False) -> list[torch.Tensor]:
        """Fresh zeros; or the leaves, filled with zeros, if they may be written."""
        own = inplace and all(map(is_writable, leaves))
        out = list(leaves) if own else [torch.empty_like(leaf, requires_grad=False) for leaf in leaves]
        if out:
            _private.foreach_zero_(out)
        return out


# --- groups of leaves ------------------------------------------------------------------------------------------------


def _grouped(sizes: Sequence[int], keys: Sequence[Any]) -> list[list[int]]:
    """Group positions with one key, up to `PART` elements; what is large, or has the key None, is alone."""
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    free: dict[Any, int] = {}
    for i, (size, key) in enumerate(zip(sizes, keys, strict=True)):
        if key is None or size > LARGE:
            found.append([i])
            continue
        if size > free.get(key, -1):
            found.append([])
            latest[key], free[key] = found[-1], PART
        latest[key].append(i)
        free[key] -= size
    return found


def _alike(leaves: Sequence[torch.Tensor], keys: Sequence[Any], layout: bool = True) -> list[list[int]]:
    """Group the positions of leaves of one shape and key, and of one layout without gaps in memory."""
    kinds: list[Any] = []
    for leaf, key in zip(leaves, keys, strict=True):
        lies = leaf.stride() if layout else None
        kinds.append((leaf.device, leaf.dtype, leaf.shape, lies, key) if not layout or is_dense(leaf) else None)
    return _grouped([leaf.numel() for leaf in leaves], kinds)


def _stacked(kernel: Callable[..., torch.Tensor], leaves: Sequence[torch.Tensor], keys: Sequence[Any]) -> list[Any]:
    """Apply a kernel of an array and a key to stacks of leaves of one shape and key."""
    out: list[Any] = list(leaves)
    for places in _alike(leaves, keys, layout=False):
        some = [leaves[i] for i in places]
        array = torch.stack(some) if len(some) > 1 else some[0].unsqueeze(0)
        for i, new in zip(places, kernel(array, keys[places[0]]).unbind(), strict=True):
            out[i] = new
    return out


def _stacks(
    leaves: Sequence[torch.Tensor], groups: Sequence[Sequence[int]], dtype: torch.dtype | None = None
) -> Iterator[list[tuple[Sequence[int], torch.Tensor]]]:
    """Copy groups of leaves of one shape and layout into stacks in a dtype, some groups at a time."""
    sizes = [len(places) * leaves[places[0]].numel() for places in groups]
    kinds = [(leaves[places[0]].device, leaves[places[0]].dtype) for places in groups]
    for some in _grouped(sizes, kinds):
        own = [leaves[i] for k in some for i in groups[k]]
        flat = [x.detach().as_strided((x.numel(),), (1,)) for x in own]
        if dtype in (None, own[0].dtype):
            memory = torch.cat(flat)
        else:
            memory = torch.empty(sum([len(x) for x in flat]), dtype=dtype, device=own[0].device)
            _private.foreach_copy_(list(torch.split(memory, [len(x) for x in flat])), flat)
        found: list[tuple[Sequence[int], torch.Tensor]] = []
        start = 0
        for k in some:
            leaf = leaves[groups[k][0]]
            shape, stride = (len(groups[k]), *leaf.shape), (leaf.numel(), *leaf.stride())
            found.append((groups[k], memory.as_strided(shape, stride, start)))
            start += sizes[k]
        yield found


def is_dense(leaf: torch.Tensor) -> bool:
    """Whether the elements fill a contiguous piece of memory, in any order of axes."""
    if leaf.is_contiguous():
        return True
    step = 1
    for stride, size in sorted(zip(leaf.stride(), leaf.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


# --- slices ----------------------------------------------------------------------------------------------------------


def _each(
    function: Callable[..., torch.Tensor],
    leaves: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Apply a binary function to each leaf and a tensor that broadcasts, in the dtype of the latter, rounded once."""
    one = all([other is others[0] for other in others])
    keys = [(new.dtype, new.stride(), other.dtype, other.shape) for new, other in zip(out, others, strict=True)]
    groups = _alike(leaves, keys)
    for places in groups:
        if len(places) == 1:
            i = places[0]
            function(leaves[i], _beside(others[i].to(leaves[i].device), leaves[i].ndim), out=out[i])
    shared = [places for places in groups if len(places) > 1]
    for dtype in dict.fromkeys([out[places[0]].dtype for places in shared]):
        for part in _stacks(leaves, [places for places in shared if out[places[0]].dtype == dtype], dtype):
            for own, array in part:
                other = others[0]
                if not one:
                    other = torch.stack([others[i] for i in own])
                    other = other.reshape(len(own), *(other.shape[1:] or (1,) * (array.ndim - 1)))
                function(array, _beside(other.to(array.device), array.ndim), out=array)
            rows = [row for _, array in part for row in array.unbind()]
            _private.foreach_copy_([out[i] for own, _ in part for i in own], rows)
    return list(out)


def _beside(number: torch.Tensor, ndim: int) -> torch.Tensor:
    """Give a number axes; PyTorch then computes in its dtype."""
    return number if number.ndim else number.reshape((1,) * ndim)


def _reduced(leaves: Sequence[torch.Tensor], axes: Axes, function: Reduction) -> list[Any]:
    """Reduce in float64 the leaves whose squares fit it, large ones in pieces; None for the others."""
    found: list[Any] = [None] * len(leaves)
    fit = [i for i, over in enumerate(axes) if over and _fits(leaves[i]) and is_dense(leaves[i])]
    some, each = [leaves[i] for i in fit], [_positive(leaves[i], axes[i]) for i in fit]
    groups = _alike(some, each)
    for k in [places[0] for places in groups if some[places[0]].numel() > LARGE]:
        found[fit[k]] = _in_pieces(some[k], each[k], function)
    for part in _stacks(some, [places for places in groups if some[places[0]].numel() <= LARGE], torch.float64):
        for places, array in part:
            for k, new in zip(places, function(array, _shifted(each[places[0]])).unbind(), strict=True):
                found[fit[k]] = new
    return found


def _completed(
    found: list[Any], leaves: Sequence[torch.Tensor], axes: Axes, kernel: Callable[..., Any]
) -> list[torch.Tensor]:
    """Reduce the leaves for which nothing is found with a plain kernel, leaves of one shape in a stack."""
    left = [i for i, new in enumerate(found) if new is None]
    over = [_positive(leaves[i], axes[i]) for i in left]
    made = _stacked(lambda array, own: kernel(array, _shifted(own)), [leaves[i] for i in left], over)
    for i, new in zip(left, made, strict=True):
        found[i] = new
    return found


def _in_pieces(leaf: torch.Tensor, over: tuple[int, ...], function: Reduction) -> torch.Tensor:
    """Reduce one leaf in pieces along its first axis with short enough slices, else its longest axis."""
    rest = [leaf.numel() // size for size in leaf.shape]
    axis = next((a for a, count in enumerate(rest) if count <= PART), rest.index(min(rest)))
    size, step = leaf.shape[axis], max(PART // rest[axis], 1)
    starts = range(0, size, step)
    pieces = [function(leaf.narrow(axis, start, min(step, size - start)).double(), over) for start in starts]
    whole = torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0]
    return function(whole, over) if axis in over and len(pieces) > 1 else whole


# --- elements --------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Leaves whose elements are computed as one vector, or a piece of a large leaf."""

    places: Sequence[int]
    start: int
    sizes: Sequence[int]
    """The numbers of elements, in memory order; none for a leaf that is computed as it is."""

    def join(self, column: Sequence[Any], beside: bool = True) -> Any:
        """Concatenate the elements of leaves, or of what is beside them; a leaf's number is repeated."""
        arrays = [column[i] for i in self.places]
        if not self.sizes:
            return arrays[0]
        if beside and max(self.sizes) > 1 and not arrays[0].ndim and all([x is arrays[0] for x in arrays]):
            return arrays[0]
        flat = [
            x.reshape(-1).narrow(0, self.start, size) if x.numel() > 1 else x.reshape(-1).expand(size)
            for x, size in zip(arrays, self.sizes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def numbered(self, formula: Any) -> Any:
        """A formula in which elements have the indices that they have in their leaves."""
        if isinstance(formula, Combination):
            return formula
        whole = formula if isinstance(formula, OfLeaves) else OfLeaves(formula)
        if not self.sizes:
            return whole.of(lambda xp, x: whole.in_whole(self.places[0], xp.iota(x)))

        def iota(xp: Any, x: Any) -> torch.Tensor:
            end = self.start + max(self.sizes)
            kind = torch.int32 if xp.widest == "float32" and end < 2**31 else torch.int64
            numbers = torch.arange(self.start, end, dtype=kind, device=x.device)
            rows = zip(self.places, self.sizes, strict=True)
            each = [whole.in_whole(i, numbers.narrow(0, 0, size)) for i, size in rows]
            return each[0] if len(each) == 1 else torch.cat(each)

        return whole.of(iota)

    def put(self, new: torch.Tensor, leaves: Sequence[torch.Tensor], into: Sequence[Any] | None, out: Any) -> None:
        """Store results in `out`, if possible in the memory of `into`."""
        first = self.places[0]
        given = [None if into is None else into[i] for i in self.places]
        fit = [x is not None and x.dtype == new.dtype and x.is_contiguous() for x in given]
        if not self.sizes or (len(fit) == 1 and not fit[0] and self.sizes[0] == leaves[first].numel()):
            out[first] = new.reshape(leaves[first].shape) if self.sizes else new
            return
        for i, x, fits in zip(self.places, given, fit, strict=True):
            if out[i] is None:
                out[i] = x if fits else torch.empty_like(leaves[i], dtype=new.dtype)
        here = [out[i].reshape(-1).narrow(0, self.start, n) for i, n in zip(self.places, self.sizes, strict=True)]
        _private.foreach_copy_(here, list(torch.split(new, list(self.sizes))))


def _in_parts(
    kernel: Callable[..., torch.Tensor], formula: Any, columns: Sequence[Sequence[Any]], into: Sequence[Any] | None
) -> list[Any]:
    """Apply a kernel of a formula and a row of arrays to the columns; write into tensors if given."""
    out: list[Any] = [None] * len(columns[0])
    for part in _parts(list(zip(*columns, strict=True))):
        row = [part.join(column, beside=k > 0) for k, column in enumerate(columns)]
        part.put(kernel(part.numbered(formula), row), columns[0], into, out)
    return out


def _parts(rows: Sequence[Sequence[Any]]) -> Iterator[_Part]:
    """Parts of leaves, each the first of a row of arrays that are computed together."""
    sizes, keys = [row[0].numel() for row in rows], [_lies(*row) for row in rows]
    for places in _grouped(sizes, keys):
        size = sizes[places[0]]
        if keys[places[0]] is None:
            yield _Part(places, 0, [])
        elif size <= LARGE:
            yield _Part(places, 0, [sizes[i] for i in places])
        else:
            yield from (_Part(places, start, [min(PART, size - start)]) for start in range(0, size, PART))


def _lies(leaf: torch.Tensor, *others: Any) -> Any:
    """What rows must share to be joined; None for arrays that lie differently."""
    row = leaf, *others
    if not leaf.numel() or not all([isinstance(x, torch.Tensor) and x.is_contiguous() for x in row]):
        return None
    if not all([x.device == leaf.device and (x.shape == leaf.shape or not x.ndim) for x in row]):
        return None
    return leaf.device, *[(x.dtype, x.ndim == leaf.ndim) for x in row]


def _in_registers(elements: Sequence[torch.Tensor], weights: Sequence[Any]) -> torch.Tensor:
    """Add up products of tensors and weights, in the weights' dtype: numbers, or one tensor per element."""
    total: Any = None
    for x, weight in zip(elements, weights, strict=True):
        out = torch.empty_like(x, dtype=_foreach.sums_dtype(x))
        if isinstance(weight, float):
            torch.mul(x.to(out.dtype), weight, out=out)
        else:
            torch.mul(x, weight.reshape(-1), out=out)
        total = out if total is None else total.add_(out)
    return total


def _has_float64(device: torch.device) -> bool:
    return _namespace.widest_on(device) == "float64"


def _fits(leaf: torch.Tensor) -> bool:
    """Whether squares of the elements fit float64, which the device has."""
    return leaf.dtype in REAL and leaf.numel() > 0 and _has_float64(leaf.device)


def _positive(leaf: torch.Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple([axis % leaf.ndim for axis in axes])


def _shifted(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of a leaf in a stack."""
    return tuple([axis + 1 for axis in axes])


def _out(leaves: Sequence[torch.Tensor], own: Sequence[bool], dtype: Any = None) -> list[torch.Tensor]:
    """Return writable leaves themselves, and new memory of the same layout for others."""
    both = zip(leaves, own, strict=True)
    return [leaf if mine and is_writable(leaf) else torch.empty_like(leaf, dtype=dtype) for leaf, mine in both]
