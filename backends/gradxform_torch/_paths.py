"""Paths of objects that hold parameters."""

from __future__ import annotations

from typing import Any

import torch

from gradxform_torch._attach import Attached
from gradxform_torch._optimizers import bare, is_optimizer, named_of
from gradxform_torch._parameters import paths_of


def paths_in(given: Any) -> list[str] | None:
    """Paths of the parameters of a module, an optimizer or an `attach` handle; None for other objects."""
    if isinstance(given, torch.nn.Module):
        return paths_of(list(given.named_parameters()))
    if isinstance(given, Attached):
        return given.paths
    return paths_of(named_of(bare(given))) if is_optimizer(given) else None
