"""Where each kernel runs: by NumPy and fused calls on the host, batched on an accelerator, or as it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradxform_torch import readable
from gradxform_torch.batched import Batched
from gradxform_torch.host import Host
from gradxform_torch.plain import Leafwise

_WAYS: dict[str, Leafwise] = {readable.HOST: Host(), readable.DEVICE: Batched()}


def way_of(arguments: Sequence[Any]) -> Leafwise | None:
    """The kernels for the tensors among some arguments; None for the plain ones."""
    return _WAYS.get(readable.place_of(_tensors_in(arguments)))


def _tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for x in arguments:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += x if set(map(type, x)) <= readable.TENSORS else _tensors_in(x)
    return found


class Kernels(Leafwise):
    """PyTorch, with as few operations as may be."""


def _chosen(name: str) -> Any:
    """A kernel that runs where its tensors are."""

    def kernel(self: Kernels, *given: Any, **static: Any) -> Any:
        run: Callable[..., Any] = getattr(way_of(given) or super(Kernels, self), name)
        return run(*given, **static)

    return kernel


for _name in (
    *("norms", "groups", "norms_over", "sum_over", "inner_products", "centered", "multiply", "multiply_over", "clip"),
    *("elementwise", "each", "compute", "of_matrices", "largest", "cast", "copied", "zeros", "peer_norm"),
):
    setattr(Kernels, _name, _chosen(_name))
