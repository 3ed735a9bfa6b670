"""Leaves that are joined, stacked or cut, so that a launch has neither little nor too much to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradxform.backend.protocol import Given, places_of
from gradxform.core.leaves import put
from gradxform_torch import private

PART = 1 << 20
"""Elements at a time; each of their copies in float64 takes 8 MiB, of which a GPU's cache holds several."""
LARGE = 1 << 18
"""Elements from which a leaf has a launch of its own, which then takes no longer than to read and write it."""


def grouped(sizes: Sequence[int], keys: Sequence[Any]) -> list[list[int]]:
    """Group positions with one key, up to `PART` elements; what is large, or has the key None, is alone."""
    found: list[list[int]] = []
    rows = enumerate(zip(sizes, keys, strict=True))
    for places in places_of([i if key is None or size > LARGE else key for i, (size, key) in rows]).values():
        free = -1
        for i in places:
            if sizes[i] > free:
                found.append([])
                free = PART
            found[-1].append(i)
            free -= sizes[i]
    return found


def stacks(
    leaves: Sequence[torch.Tensor], keys: Sequence[Any], dtypes: Sequence[torch.dtype]
) -> Iterator[list[tuple[Sequence[int], torch.Tensor]]]:
    """Copy leaves of one shape, layout and key into stacks of the given dtypes, some stacks at a time.

    A leaf alone stays where it is, in its own dtype.
    """
    rows = list(zip(leaves, keys, dtypes, strict=True))
    kinds: list[Any] = [
        (x.device, x.dtype, dtype, x.shape, x.stride(), key) if is_dense(x) else None for x, key, dtype in rows
    ]
    groups = grouped([leaf.numel() for leaf in leaves], kinds)
    sizes = [len(places) * leaves[places[0]].numel() for places in groups]
    for some in grouped(sizes, [kinds[places[0]] and kinds[places[0]][:3] for places in groups]):
        own = [i for k in some for i in groups[k]]
        first, _, dtype = rows[own[0]]
        if len(own) == 1:
            yield [(own, first.detach().unsqueeze(0))]
            continue
        flat = [leaves[i].detach().as_strided((leaves[i].numel(),), (1,)) for i in own]
        if dtype == first.dtype:
            memory = torch.cat(flat)
        else:
            memory = torch.empty(sum([len(x) for x in flat]), dtype=dtype, device=first.device)
            private.foreach_copy_(list(torch.split(memory, [len(x) for x in flat])), flat)
        found = list[tuple[Sequence[int], torch.Tensor]]()
        for k, part in zip(some, torch.split(memory, [sizes[k] for k in some]), strict=True):
            leaf = leaves[groups[k][0]]
            stack = part.as_strided((len(groups[k]), *leaf.shape), (leaf.numel(), *leaf.stride()))
            found.append((groups[k], stack))
        yield found


def stacked(
    kernel: Callable[..., torch.Tensor], leaves: Sequence[torch.Tensor], keys: Sequence[Any], dtypes: Given = None
) -> list[Any]:
    """Apply a kernel of an array and a key to stacks of leaves of one shape and key, in their own dtypes or others."""
    out: list[Any] = list(leaves)
    for part in stacks(leaves, keys, dtypes or [leaf.dtype for leaf in leaves]):
        for places, array in part:
            out = put(out, places, kernel(array, keys[places[0]]).unbind())
    return out


def is_dense(leaf: torch.Tensor) -> bool:
    """Whether the elements fill a contiguous piece of memory, in any order of axes."""
    return leaf.is_contiguous() or torch.empty_like(leaf, device="meta").stride() == leaf.stride()


class Part(NamedTuple):
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

    def indices(self, in_whole: Sequence[Callable[[Any], Any]] | None, xp: Any, x: Any) -> torch.Tensor:
        """The indices of the elements in their leaves; in larger ones, if functions give those of each leaf's."""
        found = xp.iota(x.narrow(0, 0, max(self.sizes)), self.start) if self.sizes else xp.iota(x)
        each = [found.narrow(0, 0, size) for size in self.sizes] or [found]
        if in_whole is not None:
            each = [in_whole[i](own) for i, own in zip(self.places, each, strict=True)]
        return each[0] if len(each) == 1 else torch.cat(each)

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
        private.foreach_copy_(here, list(torch.split(new, list(self.sizes))))


def in_parts(
    kernel: Callable[[Part, list[Any]], torch.Tensor], columns: Sequence[Sequence[Any]], into: Sequence[Any] | None
) -> list[Any]:
    """Apply a kernel of a part and a row of arrays to the columns; write into tensors if given."""
    out: list[Any] = [None] * len(columns[0])
    for part in of_columns(list(zip(*columns, strict=True))):
        row = [part.join(column, beside=k > 0) for k, column in enumerate(columns)]
        part.put(kernel(part, row), columns[0], into, out)
    return out


def of_columns(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """Parts of leaves, each the first of a row of arrays that are computed together."""
    sizes, keys = [row[0].numel() for row in rows], [_lies(*row) for row in rows]
    for places in grouped(sizes, keys):
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
    if not leaf.numel() or not all([isinstance(x, torch.Tensor) and x.is_contiguous() for x in row]):
        return None
    if not all([x.device == leaf.device and (x.shape == leaf.shape or not x.ndim) for x in row]):
        return None
    return leaf.device, *[(x.dtype, x.ndim == leaf.ndim) for x in row]
