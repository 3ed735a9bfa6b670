"""Keep the largest elements of tensors that are sharded over a mesh, by counting."""

from __future__ import annotations

from typing import Any

import torch

from gradxform.numerics import dtype_name, ranking
from gradxform_torch._namespace import Namespace
from gradxform_torch._sharded import axis_of, like, local


def largest(leaf: Any, count: int) -> Any:
    """Keep so many elements of the whole leaf."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    own = local(leaf)
    xp = Namespace(own.device)
    sizes = ranking.in_order(xp, own)
    placements = [Replicate() if axis_of(placement) is None else Partial() for placement in leaf.placements]

    def reaching(sizes: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
        """Add up the counts of all processes."""
        here = (sizes >= least).sum()
        return DTensor.from_local(here, leaf.device_mesh, placements, run_check=False).full_tensor().to(own.device)

    found = [torch.zeros((), dtype=sizes.dtype, device=own.device)]
    for place in reversed(range(ranking.bits(dtype_name(own)))):
        found = ranking.with_bit(xp, 1 << place, found, [sizes], [count], reaching)
    return like(leaf, own, ranking.kept(xp, own, sizes, found[0]))
