"""Elementwise formulas on an accelerator: small leaves together, large leaves in chunks.

This keeps kernel launches few and float64 copies small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform.numerics import ranking
from gradxform_torch import _private
from gradxform_torch._fused import LARGE as LARGE
from gradxform_torch._fused import on_device
from gradxform_torch._namespace import OfLeaves, numbered

PART = 1 << 20
"""Elements at a time; each of their copies in float64 takes 8 MiB, of which a GPU's cache holds several."""
Kernel = Callable[[Callable[..., Any], list[list[Any]], list[Any] | None], list[Any]]
"""Of a formula, columns and factors."""


class _Piece(NamedTuple):
    """Some elements of a leaf, in memory order."""

    leaf: int
    start: int
    size: int


def in_parts(
    kernel: Kernel,
    formula: Any,
    columns: Sequence[Sequence[Any]],
    factors: Sequence[Any] | None,
    into: Sequence[Any] | None,
) -> list[Any]:
    """Apply a kernel to columns of leaves and numbers; write into tensors if given."""
    out: list[Any] = [None] * len(columns[0])
    groups: dict[Any, list[int]] = {}
    for i in range(len(out)):
        groups.setdefault(_kind([column[i] for column in columns], None if factors is None else factors[i]), []).append(
            i
        )
    for kind, places in groups.items():
        if kind is None:
            for i in places:
                own = formula.of(i) if isinstance(formula, OfLeaves) else formula
                out[i] = kernel(own, [[column[i]] for column in columns], None if factors is None else [factors[i]])[0]
            continue
        for pieces in _parts([columns[0][i].numel() for i in places], places):
            _compute(kernel, formula, columns, factors, pieces, into, out)
    return out


def joined(columns: Sequence[Sequence[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Join the tensors of columns, each with those in its place: many small ones in a vector, large ones in pieces.

    A column of tensors that lie differently stays as it is.
    """
    groups: dict[Any, list[int]] = {}
    for i, column in enumerate(columns):
        groups.setdefault(_kind(column, None), []).append(i)
    for kind, places in groups.items():
        if kind is None:
            yield from (list(columns[i]) for i in places)
            continue
        leaves = [column[0] for column in columns]
        for pieces in _parts([leaves[i].numel() for i in places], places):
            some = zip(*[columns[piece.leaf] for piece in pieces], strict=True)
            yield [_together(arrays, pieces, leaves) for arrays in some]


def stackable(leaves: Sequence[torch.Tensor], sides: Sequence[Any]) -> list[list[int]]:
    """Group the positions of leaves with the same shape, dtype, device and matrices; large leaves stay alone."""
    found: list[list[int]] = []
    latest: dict[Any, list[int]] = {}
    for i, (leaf, own) in enumerate(zip(leaves, sides, strict=True)):
        kind = leaf.shape, leaf.dtype, leaf.device, own
        places = latest.get(kind)
        if places is None or (len(places) + 1) * leaf.numel() > PART:
            found.append(places := [])
            latest[kind] = places
        places.append(i)
    return found


def largest(xp: Any, stack: torch.Tensor, count: int) -> torch.Tensor:
    """Keep so many elements of each leaf of a stack. On GPUs, `kthvalue` has one block for a leaf."""
    sizes = ranking.in_order(xp, stack)
    least = sizes.reshape(len(stack), -1).topk(count, sorted=False).values.amin(1)
    return ranking.kept(xp, stack, sizes, least.reshape(-1, *[1] * (stack.ndim - 1)))


def _kind(column: Sequence[Any], factor: Any) -> Any:
    """What leaves must share to be computed together; None for a leaf on its own."""
    leaf = column[0]
    if not on_device([leaf], narrow=True) or not leaf.numel():
        return None
    given = column if factor is None else [*column, factor]
    if not all([isinstance(x, torch.Tensor) and x.is_contiguous() and x.device == leaf.device for x in given]):
        return None
    if not all([x.shape == leaf.shape or not x.ndim for x in given]):
        return None
    return leaf.device, *[(x.dtype, x.ndim == leaf.ndim) for x in given]


def _parts(counts: Sequence[int], places: Sequence[int]) -> Iterator[list[_Piece]]:
    """Pieces of leaves to compute together."""
    pending: list[_Piece] = []
    free = PART
    for i, count in zip(places, counts, strict=True):
        if count > LARGE:
            for start in range(0, count, PART):
                yield [_Piece(i, start, min(PART, count - start))]
            continue
        if count > free:
            yield pending
            pending, free = [], PART
        pending.append(_Piece(i, 0, count))
        free -= count
    if pending:
        yield pending


def _compute(
    kernel: Kernel,
    formula: Any,
    columns: Sequence[Sequence[Any]],
    factors: Sequence[Any] | None,
    pieces: Sequence[_Piece],
    into: Sequence[Any] | None,
    out: list[Any],
) -> None:
    """Apply a kernel to some pieces, and store the results."""
    leaves = columns[0]

    def iota(xp: Any, x: Any) -> torch.Tensor:
        kind = torch.int32 if xp.widest == "float32" and pieces[0].start + pieces[0].size < 2**31 else torch.int64
        if len(pieces) == 1:
            alone = torch.arange(pieces[0].start, pieces[0].start + pieces[0].size, dtype=kind, device=x.device)
            return formula.numbers[pieces[0].leaf](alone) if isinstance(formula, OfLeaves) else alone
        numbers = torch.arange(max([piece.size for piece in pieces]), dtype=kind, device=x.device)
        each = [(piece.leaf, numbers.narrow(0, 0, piece.size)) for piece in pieces]
        return torch.cat([formula.numbers[i](own) if isinstance(formula, OfLeaves) else own for i, own in each])

    rows = [[_together([column[piece.leaf] for piece in pieces], pieces, leaves)] for column in columns]
    given = None if factors is None else [_together([factors[piece.leaf] for piece in pieces], pieces, leaves)]
    whole = formula.formula if isinstance(formula, OfLeaves) else formula
    new = kernel(numbered(whole, iota), rows, given)[0]
    for piece in pieces:
        if into is not None and _is_for(into[piece.leaf], new):
            out[piece.leaf] = into[piece.leaf]
    if len(pieces) == 1 and pieces[0].size == leaves[pieces[0].leaf].numel() and out[pieces[0].leaf] is None:
        out[pieces[0].leaf] = new.reshape(leaves[pieces[0].leaf].shape)
        return
    for piece in pieces:
        if out[piece.leaf] is None:
            out[piece.leaf] = torch.empty_like(leaves[piece.leaf], dtype=new.dtype)
    here = [out[piece.leaf].reshape(-1).narrow(0, piece.start, piece.size) for piece in pieces]
    _private.foreach_copy_(here, list(new.split([piece.size for piece in pieces])))


def _is_for(given: torch.Tensor | None, new: torch.Tensor) -> bool:
    """Whether results can be written to a tensor."""
    return given is not None and given.dtype == new.dtype and given.is_contiguous()


def _together(arrays: Sequence[torch.Tensor], pieces: Sequence[_Piece], leaves: Sequence[torch.Tensor]) -> Any:
    """Concatenate pieces of leaves; numbers are repeated for each element of their leaf."""
    if not arrays[0].ndim and all([array is arrays[0] for array in arrays]) and leaves[pieces[0].leaf].ndim:
        return arrays[0]
    flat = [
        array.reshape(-1).narrow(0, piece.start, piece.size)
        if array.numel() > 1
        else array.reshape(-1).expand(piece.size)
        for array, piece in zip(arrays, pieces, strict=True)
    ]
    return flat[0] if len(flat) == 1 else torch.cat(flat)
