"""Sums of leaves times numbers, by multi-tensor functions: one pass per term.

Products and sums are rounded to the dtype of a leaf's sums.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from gradxform.numerics.rescale import is_extreme
from gradxform_torch import _private
from gradxform_torch._readable import is_writable

Columns = Sequence[Sequence[torch.Tensor]]
Weights = Sequence[Any]
"""For each column, a number, or a list of one per leaf."""


def combined(columns: Columns, weights: Weights, into: Sequence[Any] | None) -> list[torch.Tensor] | None:
    """Add up products of columns and weights; overwrite `into` where it is one of the columns.

    None for what needs another kernel: numbers that float32 does not hold, and leaves that a multi-tensor function
    takes one by one on an accelerator.
    """
    if any([is_extreme(number) for given in weights for number in (given if isinstance(given, list) else [given])]):
        return None
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(zip(*columns, strict=True)):
        groups.setdefault((row[0].device, *[x.dtype for x in row]), []).append(i)
    if any([device.type != "cpu" and {_wide(kinds[0])} != {*kinds} for device, *kinds in groups]):
        return None
    if len(groups) == 1:
        return _alike(columns, weights, into)
    out: list[Any] = [None] * len(columns[0])
    for places in groups.values():
        some = [[column[i] for i in places] for column in columns]
        own = [[given[i] for i in places] if isinstance(given, list) else given for given in weights]
        for i, new in zip(places, _alike(some, own, into and [into[i] for i in places]), strict=True):
            out[i] = new
    return out


def _alike(columns: Columns, weights: Weights, into: Sequence[Any] | None) -> list[torch.Tensor]:
    """`combined` of leaves of the same dtypes."""
    if columns[0][0].is_complex():
        parts = [[torch.view_as_real(x.resolve_conj()) for x in column] for column in columns]
        return list(map(torch.view_as_complex, _alike(parts, weights, None)))
    dtype, terms = _wide(columns[0][0].dtype), list[Any](zip(columns, weights, strict=True))
    if into and len(terms) == 1 and _fits([*columns[0], *into], dtype):
        if not into[0].is_cpu:  # a launch each would take longer than a second pass
            _private.foreach_copy_(list(into), list(columns[0]))
            _private.foreach_mul_(list(into), weights[0])
            return list(into)
        each = weights[0] if isinstance(weights[0], list) else [weights[0]] * len(into)
        return [torch.mul(x, weight, out=y) for x, weight, y in zip(columns[0], each, into, strict=True)]
    same = [into is not None and all(map(operator.is_, into, column)) for column in columns]
    written = [i for i, column in enumerate(columns) if same[i] and _fits(column, dtype)]
    converted = [i for i, column in enumerate(columns) if column[0].dtype != dtype]
    ones = [i for i, weight in enumerate(weights) if weight == 1.0]
    if written or converted:
        column, weight = terms.pop((written or converted)[0])
        total = list(column) if written else [x.to(dtype) for x in column]
        if weight != 1.0:
            _private.foreach_mul_(total, weight)
    elif ones and len(terms) > 1:
        column, _ = terms.pop(ones[0])
        other, weight = terms.pop()
        if isinstance(weight, list):
            other, weight = _private.foreach_mul(other, weight), 1.0
        total = list(_private.foreach_add(column, other, alpha=weight))
    else:
        column, weight = terms.pop(next((i for i, weight in enumerate(weights) if isinstance(weight, list)), -1))
        total = list(_private.foreach_mul(column, weight))
    for column, weight in terms:
        wide = column if column[0].dtype == dtype else [x.to(dtype) for x in column]
        if isinstance(weight, list):
            wide, weight = _private.foreach_mul(wide, weight), 1.0
        _private.foreach_add_(total, wide, alpha=weight)
    return total


def in_registers(columns: Sequence[torch.Tensor], weights: Sequence[Any]) -> torch.Tensor:
    """Add up products of tensors and weights, in the weights' dtype: numbers, or tensors that broadcast."""
    terms = []
    for x, weight in zip(columns, weights, strict=True):
        out = torch.empty_like(x, dtype=_wide(x.dtype))
        if isinstance(weight, float):
            terms.append(torch.mul(x.to(out.dtype), weight, out=out))
        else:
            terms.append(torch.mul(x, weight.reshape(-1), out=out))
    return functools.reduce(torch.Tensor.add_, terms)


def _fits(leaves: Sequence[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether leaves have a dtype and may be overwritten."""
    return all([x.dtype == dtype and is_writable(x) for x in leaves])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the sums of a leaf."""
    return dtype if dtype in (torch.float64, torch.complex128) else torch.float32
