"""Kernels that overwrite memory, and multi-tensor functions: one call for all leaves of one device and dtype."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform.backend.protocol import Columns, Given, Row, Steps, grouped, places_of
from gradxform.core.leaves import put
from gradxform.numerics import elementwise
from gradxform_torch import private
from gradxform_torch.namespace import Namespace, rounded_number
from gradxform_torch.plain import Leafwise
from gradxform_torch.readable import are_writable

_KIND = operator.attrgetter("device", "dtype")
_SUMS = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32) | {torch.float64: torch.float64}
"""The dtypes of the sums of real leaves."""
CACHED = 1 << 17
"""Elements at a time: those of three columns stay in a core's cache from one step to the next."""
Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]


class Eager(Leafwise):
    """PyTorch for tensors whose operations nothing records, so that memory may be overwritten."""

    def clip(self, leaves: Row, low: Any, high: Any, factors: Any, inplace: bool) -> list[torch.Tensor]:
        """min(max(factor * leaf, low), high)."""
        if not all([bound is None or isinstance(bound, (int, float)) for bound in (low, high)]):
            return super().clip(leaves, low, high, factors, inplace)
        scaled = leaves
        if factors is not None:
            scaled = self.multiply([elementwise.in_single(Namespace, leaf) for leaf in leaves], factors, inplace)
        free = are_writable(scaled) if inplace or scaled is not leaves else [False] * len(leaves)
        rows = zip(leaves, scaled, free, strict=True)
        kinds = [(leaf.dtype, own and (inplace or new is not leaf)) for leaf, new, own in rows]
        return per_kind(functools.partial(self._clamped, low=low, high=high), scaled, kinds)

    def _clamped(self, leaves: Tensors, kind: tuple[torch.dtype, bool], low: Any, high: Any) -> Tensors:
        """Leaves between two numbers or None, rounded to a dtype; NaN stays."""
        dtype, own = kind
        for bound, fresh, in_place in (
            (low, private.foreach_clamp_min, private.foreach_clamp_min_),
            (high, private.foreach_clamp_max, private.foreach_clamp_max_),
        ):
            if bound is not None:
                near = rounded_number(bound, dtype)
                if own:
                    in_place(leaves, near)
                else:
                    leaves, own = fresh(leaves, near), True
        return leaves

    def cast(self, leaves: Row, likes: Row) -> list[torch.Tensor]:
        """Leaves rounded to the dtypes of others."""
        out = [torch.empty_like(leaf, dtype=like.dtype) for leaf, like in zip(leaves, likes, strict=True)]
        return copied(leaves, out)

    def copied(self, leaves: Row, out: Given = None) -> list[torch.Tensor]:
        """The leaves in memory of their own, or in writable tensors."""
        fits = out is not None and all(are_writable(out))
        return copied(leaves, out if out is not None and fits else list(map(torch.empty_like, leaves)))

    def zeros(self, leaves: Row, inplace: bool = False) -> list[torch.Tensor]:
        """Fresh zeros; or the leaves, filled with zeros, if they may be written."""
        own = inplace and all(are_writable(leaves))
        out = list(leaves) if own else [torch.empty_like(leaf, requires_grad=False) for leaf in leaves]
        if out:
            private.foreach_zero_(out)
        return out


def per_kind(function: Callable[..., Any], leaves: Row, own: Row, *columns: Row) -> list[Any]:
    """Apply a function of leaves of one device and dtype, of what they have in common, and of what is beside them."""
    if len({*own}) == len({*map(_KIND, leaves)}) == 1:
        return list(function(leaves, own[0], *columns))
    out = list[Any](leaves)
    for places in places_of(zip(map(_KIND, leaves), own, strict=True)).values():
        given = [[column[i] for i in places] for column in (leaves, *columns)]
        out = put(out, places, function(given[0], own[places[0]], *given[1:]))
    return out


def times(leaves: Tensors, own: bool, factor: Any) -> Tensors:
    """Leaves times one number, or one each."""
    if not own:
        return private.foreach_mul(leaves, factor)
    private.foreach_mul_(leaves, factor)
    return leaves


def copied(leaves: Row, out: Row) -> list[torch.Tensor]:
    """Copy leaves into other tensors."""
    if leaves:
        private.foreach_copy_(list(out), list(leaves))
    return list(out)


# --- sums of leaves times numbers: one pass per term, rounded to the dtype of a leaf's sums --------------------------


def combination(columns: Columns, numbers: Row, factors: Given, into: Given) -> list[torch.Tensor] | None:
    """Add up products of columns and weights, in the memory of `into` if it fits; None as for `sums`."""
    target = len(columns)
    if into is not None and are_fit(columns[0], [into]):
        target = next((k for k, column in enumerate(columns) if all(map(operator.is_, column, into))), target)
        columns = [*columns, into] if target == 1 == len(columns) else columns
    return sums(columns, [(target, dict(enumerate(numbers)))], factors)


def are_fit(leaves: Row, columns: Columns) -> bool:
    """Whether columns can be overwritten with sums of the leaves, which are real."""
    kinds, every = [_SUMS.get(leaf.dtype) for leaf in leaves], [*itertools.chain(*columns)]
    return [x.dtype for x in every] == kinds * len(columns) and all(are_writable(every))


def sums(columns: Columns, steps: Steps, factors: Given, most: float = math.inf) -> list[torch.Tensor] | None:
    """Overwrite columns that fit, step by step, and return the sums of the last step; those of the temporary are new.

    Rows of up to `most` elements are computed together, step by step.

    None for what needs another kernel: numbers on a device or that float32 does not hold, and leaves that a
    multi-tensor function takes one by one on an accelerator.
    """
    numbers = [*itertools.chain(*[terms.values() for _, terms in steps]), *(factors or ())]
    if any([isinstance(x, torch.Tensor) and not x.is_cpu for x in numbers]):
        return None
    one = [1.0]  # a number for all leaves
    each = one if factors is None else list(map(float, factors))
    rows = [[(1.0 if x is None else float(x), one if k else each) for k, x in terms.items()] for _, terms in steps]
    by = [[[weight * factor for factor in own] for weight, own in row] for row in rows]
    extreme = any(map(elementwise.is_extreme, itertools.chain(*itertools.chain(*by))))
    kinds = list(zip(*[map(_KIND, column) for column in columns], strict=True))
    groups = grouped([x.numel() for x in columns[0]], kinds, most, most)
    if extreme or not all([_is_fused(columns[0][places[0]], kinds[places[0]]) for places in groups]):
        return None
    out: list[Any] = [None] * len(kinds)
    for places in groups:
        some: list[Any] = [*[[column[i] for i in places] for column in columns], None]
        for (target, terms), weights in zip(steps, by, strict=True):
            if terms:
                here = [[weight[i] for i in places] if len(weight) > 1 else weight for weight in weights]
                rank = list(terms).index(target) if target in terms else None
                some[target] = added([some[term] for term in terms], here, some[target], rank)
            else:
                private.foreach_zero_(some[target])
        for i, new in zip(places, some[target], strict=True):
            out[i] = new
    return out


def _is_fused(leaf: torch.Tensor, kinds: Sequence[tuple[torch.device, torch.dtype]]) -> bool:
    """Whether a multi-tensor function takes such leaves, and arrays of some kinds beside them, together."""
    return leaf.is_cpu or {dtype for _, dtype in kinds} == {sums_dtype(leaf)}


def added(columns: Columns, weights: Sequence[list[float]], into: Tensors | None, place: int | None = None) -> Tensors:
    """Add up columns of one dtype each, times one number or one each.

    Overwrites `into`, which fits: the column at a place, if it is one of them.
    """
    if columns[0][0].is_complex():
        parts = [[torch.view_as_real(x.resolve_conj()) for x in column] for column in columns]
        return list(map(torch.view_as_complex, added(parts, weights, None)))
    dtype = sums_dtype(columns[0][0])
    wide = [column if column[0].dtype == dtype else [x.to(dtype) for x in column] for column in columns]
    terms: list[Any] = [(x, by if len({*by}) > 1 else by[0]) for x, by in zip(wide, weights, strict=True)]
    if into is not None and place is None:  # then there is one term
        if into[0].is_cpu and terms[0][1] != 1.0:
            each = zip(wide[0], into, itertools.cycle(weights[0]), strict=False)
            return [torch.mul(x, by, out=new) for x, new, by in each]
        terms, place = [(copied(wide[0], into), terms[0][1])], 0
    own = [k for k, column in enumerate(columns) if wide[k] is not column] if place is None else [place]
    first = own or [k for k, (_, by) in enumerate(terms) if isinstance(by, list)]
    first = first or [k for k, (_, by) in enumerate(terms) if by == 1.0]
    # Of an average it is the state, as in place; a product with -1 rounds nothing.
    first = first or [k for k, (_, by) in enumerate(terms) if by != -1.0][-1:] or [0]
    total, weight = terms.pop(first[0])
    if not own and weight == 1.0 and terms:
        other, by = terms.pop()
        total = private.foreach_add(total, other, alpha=by)
    elif own and weight != 1.0 and len(terms) == 1 == terms[0][1] and total[0].is_cpu:
        each_weight = weight if isinstance(weight, list) else [weight] * len(total)
        return [torch.add(x, y, alpha=by, out=y) for x, y, by in zip(terms[0][0], total, each_weight, strict=True)]
    elif not own or weight != 1.0:
        total = times(total, bool(own), weight)
    for other, by in terms:
        if isinstance(by, list):
            other, by = private.foreach_mul(other, by), 1.0
        private.foreach_add_(total, other, alpha=by)
    return total


def sums_dtype(leaf: torch.Tensor) -> torch.dtype:
    """The dtype of the sums of a leaf."""
    return leaf.dtype if leaf.dtype in (torch.float64, torch.complex128) else torch.float32
