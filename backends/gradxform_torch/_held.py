"""The state of an attached transformation, and what it was made for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gradxform import GradientTransformation
from gradxform_torch._optimizers import device_of, named_of
from gradxform_torch._parameters import paths_of, started
from gradxform_torch.dtensor import backend


class Held(NamedTuple):
    """A state, and what it was made for: the parameters' paths, and where they are."""

    paths: list[str]
    device: Any
    state: Any


def held(tx: GradientTransformation, optimizer: torch.optim.Optimizer) -> Held:
    """The first state for the parameters that an optimizer has now, where they are now."""
    named = named_of(optimizer)
    return Held(paths_of(named), device_of(named), started(tx, named))


def by_path(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state by their paths, as a state_dict holds them."""
    leaves = zip(backend.paths(state), backend.flatten(state)[0], strict=True)
    return {path: leaf for path, leaf in leaves if leaf is not None}
