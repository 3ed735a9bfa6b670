"""Leaves that are joined, stacked or cut, so that a launch has neither little nor too much to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform.backend.protocol import Columns, Given, Row, grouped, places_of
from gradxform.core.leaves import put
from gradxform_torch import private

PART = 1 << 20
"""Elements at a time; each of their copies in float64 takes 8 MiB, of which a GPU's cache holds several."""
LARGE = 1 << 18
"""Elements from which a leaf has a launch of its own, which then takes no longer than to read and write it."""


def joined(sizes: Sequence[int], keys: Row) -> list[list[int]]:
    """Group the positions of a key; what is large, or has the key None, is alone."""
    return grouped(sizes, keys, LARGE, PART)


def stacks(leaves: Row, keys: Row, dtypes: Row) -> Iterator[list[tuple[list[int], torch.Tensor]]]:
    """Copy leaves of one shape, layout and key into stacks of the given dtypes, some stacks at a time.

    A leaf alone stays where it is, in its own dtype.
    """
    rows = zip(leaves, keys, dtypes, strict=True)
    kinds: Row = [(x.device, x.dtype, to, x.shape, x.stride(), key) if is_dense(x) else None for x, key, to in rows]
    order = [i for places in places_of(kinds).values() for i in places]  # those of one kind are neighbors
    for group in joined([leaves[i].numel() for i in order], [kinds[i] and kinds[i][:3] for i in order]):
        own = [order[k] for k in group]
        first, dtype = leaves[own[0]].detach(), dtypes[own[0]]
        if len(own) == 1:
            yield [(own, first.unsqueeze(0))]
            continue
        flat = [leaves[i].detach().as_strided((leaves[i].numel(),), (1,)) for i in own]
        if dtype == first.dtype:
            memory = torch.cat(flat)
        else:
            memory = torch.empty(sum(map(len, flat)), dtype=dtype, device=first.device)
            private.foreach_copy_(list(torch.split(memory, list(map(len, flat)))), flat)
        found, start = list[tuple[list[int], torch.Tensor]](), 0
        for some in places_of([kinds[i] for i in own]).values():
            leaf = leaves[own[some[0]]]
            stack = memory.as_strided((len(some), *leaf.shape), (leaf.numel(), *leaf.stride()), start)
            found.append(([own[k] for k in some], stack))
            start += stack.numel()
        yield found


def stacked(kernel: Callable[..., torch.Tensor], leaves: Row, keys: Row, dtypes: Given = None) -> list[torch.Tensor]:
    """Apply a kernel of an array and a key to stacks of leaves of one shape and key, in their own dtypes or others."""
    out = list(leaves)
    for part in stacks(leaves, keys, dtypes or [leaf.dtype for leaf in leaves]):
        for places, array in part:
            out = put(out, places, kernel(array, keys[places[0]]).unbind())
    return out


def is_dense(leaf: torch.Tensor) -> bool:
    """Whether the elements fill a contiguous piece of memory, in any order of axes."""
    return leaf.is_contiguous() or torch.empty_like(leaf, device="meta").stride() == leaf.stride()


class Part(NamedTuple):
    """Leaves whose elements are computed as one vector, or a piece of a large leaf."""

    places: list[int]
    start: int
    sizes: list[int]
    """The numbers of elements, in memory order; none for a leaf that is computed as it is."""

    def join(self, column: Row) -> Any:
        """Concatenate the elements of leaves, or of what is beside them; a leaf's number is repeated."""
        arrays = [column[i] for i in self.places]
        if not self.sizes:
            return arrays[0]
        if max(self.sizes) > 1 and not arrays[0].ndim and all([x is arrays[0] for x in arrays]):
            return arrays[0]
        flat = [
            x.reshape(-1).narrow(0, self.start, size) if x.numel() > 1 else x.reshape(-1).expand(size)
            for x, size in zip(arrays, self.sizes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def indices(self, in_whole: Given, xp: Any, x: Any) -> torch.Tensor:
        """The indices of the elements in their leaves; in larger ones, if functions give those of each leaf's."""
        found = xp.iota(x.narrow(0, 0, max(self.sizes)), self.start) if self.sizes else xp.iota(x)
        each = [found.narrow(0, 0, size) for size in self.sizes] or [found]
        if in_whole is not None:
            each = [in_whole[i](own) for i, own in zip(self.places, each, strict=True)]
        return each[0] if len(each) == 1 else torch.cat(each)

    def put(self, new: torch.Tensor, leaves: Row, into: Given, out: list[Any]) -> None:
        """Store results in `out`, if possible in the memory of `into`."""
        for i in self.places:
            if out[i] is None:
                given = None if into is None or not self.sizes else into[i]
                fits = given is not None and given.dtype == new.dtype and given.is_contiguous()
                if not fits and new.numel() == leaves[i].numel():  # this leaf alone
                    out[i] = new.reshape(leaves[i].shape)
                    return
                out[i] = given if fits else torch.empty_like(leaves[i], dtype=new.dtype)
        here = [out[i].reshape(-1).narrow(0, self.start, n) for i, n in zip(self.places, self.sizes, strict=True)]
        private.foreach_copy_(here, list(torch.split(new, self.sizes)))


def in_parts(kernel: Callable[[Part, list[Any]], torch.Tensor], columns: Columns, into: Given) -> list[Any]:
    """Apply a kernel of a part and a row of arrays to the columns; write into tensors if given."""
    out: list[Any] = [None] * len(columns[0])
    for part in of_columns(list(zip(*columns, strict=True))):
        part.put(kernel(part, list(map(part.join, columns))), columns[0], into, out)
    return out


def of_columns(rows: Sequence[Row]) -> Iterator[Part]:
    """Parts of leaves, each the first of a row of arrays that are computed together."""
    sizes, keys = [row[0].numel() for row in rows], [_lies(*row) for row in rows]
    for places in joined(sizes, keys):
        size = sizes[places[0]]
        if keys[places[0]] is None:
            yield Part(places, 0, [])
        elif size <= LARGE:
            yield Part(places, 0, [sizes[i] for i in places])
        else:
            yield from (Part(places, start, [min(PART, size - start)]) for start in range(0, size, PART))


def _lies(leaf: torch.Tensor, *others: Any) -> Any:
    """What rows must share to be joined; None for arrays that lie differently."""
    row = leaf, *others
    joins = [isinstance(x, torch.Tensor) and x.is_contiguous() and x.device == leaf.device for x in row]
    if not leaf.numel() or not all(joins) or not all([x.shape == leaf.shape or not x.ndim for x in row]):
        return None
    return leaf.device, *[(x.dtype, x.ndim == leaf.ndim) for x in row]
