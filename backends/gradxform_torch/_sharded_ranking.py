"""Keep the largest elements of tensors that are sharded over a mesh, by counting.

Only counts travel: for all leaves of a mesh, dtype and sharding at once, one collective for each bit and dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradxform.numerics import dtype_name, ranking
from gradxform_torch._namespace import Namespace
from gradxform_torch._sharded import like, local
from gradxform_torch._sharded_norms import over_processes, split_over


def largest(leaves: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Keep so many elements of each whole leaf."""
    out, alike = list(leaves), dict[Any, list[int]]()
    for i, leaf in enumerate(leaves):
        alike.setdefault((leaf.device_mesh, split_over(leaf), leaf.dtype), []).append(i)
    for (mesh, over, _), places in alike.items():
        own = [local(leaves[i]) for i in places]
        xp, sizes = _sizes(own)
        least = _limits(xp, sizes, [counts[i] for i in places], ranking.bits(dtype_name(own[0])), mesh, over)
        for i, mine, integers, limit in zip(places, own, sizes, least, strict=True):
            out[i] = like(leaves[i], mine, ranking.kept(xp, mine, integers, limit))
    return out


def _sizes(own: Sequence[torch.Tensor]) -> tuple[Namespace, list[torch.Tensor]]:
    xp = Namespace(own[0].device)
    return xp, [ranking.in_order(xp, mine) for mine in own]


def _limits(
    xp: Namespace, sizes: Sequence[torch.Tensor], counts: Sequence[int], digits: int, mesh: Any, over: tuple[int, ...]
) -> list[torch.Tensor]:
    """Find the integer of a rank in each whole leaf."""

    def reaching(least: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        here = torch.stack([(mine >= low).sum() for mine, low in zip(sizes, least, strict=True)])
        return over_processes(here, mesh, over).sum(0).unbind() if over else here.unbind()

    found = [torch.zeros((), dtype=mine.dtype, device=mine.device) for mine in sizes]
    for place in reversed(range(digits)):
        found = ranking.with_bit(xp, 1 << place, found, counts, reaching)
    return found
