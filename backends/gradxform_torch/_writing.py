"""The gradients of parameters, and new values written into them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from gradxform_torch import _private
from gradxform_torch._shards import is_writable, local

Named = Sequence[tuple[str, torch.Tensor]]


def gradients_of(named: Named) -> list[torch.Tensor | None]:
    """The gradients, one that parameters share only once."""
    gradients: list[torch.Tensor | None] = [parameter.grad for _, parameter in named]
    if len(set(map(id, gradients))) < len(gradients):
        once = {id(gradient): i for i, gradient in reversed(list(enumerate(gradients)))}
        gradients = [gradient if once[id(gradient)] == i else None for i, gradient in enumerate(gradients)]
    return gradients


def clear(named: Named) -> None:
    """Replace the gradients by zeros, on which windows are flushed; frozen parameters have none."""
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def write(
    named: Named,
    gradients: Sequence[torch.Tensor | None],
    results: Sequence[Any],
    skipped: Collection[int],
    owned: bool,
) -> None:
    """Write results into the gradients, or replace those that cannot be written; None for the skipped ones."""
    changed = [i for i, old in enumerate(gradients) if old is not None and (i in skipped or results[i] is not old)]
    if not changed:
        return
    owners: dict[int, list[torch.Tensor]] = {}
    for _, parameter in named:
        owners.setdefault(id(parameter.grad), []).append(parameter)
    written: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for i in changed:
        old, result = gradients[i], results[i]
        assert old is not None
        if i not in skipped and old.layout == result.layout == torch.strided and is_writable(old):
            written.append(local(old))
            values.append(local(result))
        else:
            own = None if i in skipped else result.clone() if owned else result  # which may be the state's
            for parameter in owners[id(old)]:
                parameter.grad = own
    if written:
        _private.foreach_copy_(written, values)
