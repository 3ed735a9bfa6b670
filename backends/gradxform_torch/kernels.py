"""Where each kernel runs: by NumPy and fused calls on the host, batched on an accelerator, on shards, or as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradxform.backend.host import kernels, namespace
from gradxform.backend.lookup import register
from gradxform_torch import readable
from gradxform_torch.batched import Batched
from gradxform_torch.dtensor import Sharded
from gradxform_torch.host import Host
from gradxform_torch.plain import Leafwise

_WAYS: dict[str, Leafwise] = {readable.HOST: Host(), readable.DEVICE: Batched(), readable.PLAIN: Leafwise()}


def _chosen(name: str) -> Any:
    """A kernel that runs where its tensors are."""
    ways: dict[str, Callable[..., Any]] = {place: getattr(way, name) for place, way in _WAYS.items()}

    def kernel(self: Torch, *given: Any, **static: Any) -> Any:
        return (ways.get(readable.place_of(given)) or getattr(super(Torch, self), name))(*given, **static)

    return kernel


_anywhere = _chosen("compute")


class Torch(Sharded):
    """PyTorch: each kernel runs where its tensors are; those of DTensors call it again on their shards."""

    def compute(self, formula: Callable[..., Any], *operands: Any, **static: Any) -> Any:
        """Compute a formula of numbers and vectors; of known ones on the host."""
        if not torch.compiler.is_compiling() and kernels.NUMBERS.issuperset(map(type, operands)):
            return namespace.compute(formula, *operands, **static)
        return _anywhere(self, formula, *operands, **static)


for _name in (
    *("norms", "groups", "norms_over", "sum_over", "inner_products", "centered", "multiply", "multiply_over", "divide"),
    *("clip", "elementwise", "overwrite", "each", "of_matrices", "largest", "cast", "copied", "zeros", "peer_norm"),
    *("alongside", "custom_backward"),
):
    setattr(Torch, _name, _chosen(_name))
backend = Torch()
register(backend)
