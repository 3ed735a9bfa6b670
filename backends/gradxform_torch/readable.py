"""Where kernels may run: what may be read or written, which no tracing, autograd or missing device forbids."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from gradxform_torch import private

TENSORS = {torch.Tensor, torch.nn.Parameter}
_ON_DEVICES = TENSORS | {private.FakeTensor}
HOST, DEVICE, SHARDED, PLAIN = "host", "device", "sharded", "plain"
_is_on_host, _needs_gradient = operator.attrgetter("is_cpu"), operator.attrgetter("requires_grad")


def place_of(arguments: Iterable[Any]) -> str:
    """Where kernels of the tensors among some arguments, or in lists of them, run.

    `HOST` reads values, `DEVICE` writes, `SHARDED` has DTensors, `PLAIN` does what a framework records. The first two
    are for ordinary tensors that no derivative is asked of. Beside those of an accelerator, 0-d tensors may be on the
    host.
    """
    given = _tensors_in(arguments)
    kinds = set(map(type, given))
    plain = kinds <= TENSORS
    if not plain and any_sharded(kinds):
        return SHARDED
    if torch.compiler.is_compiling():
        return PLAIN
    if not given:
        return HOST
    if private.is_in_transform() or (torch.is_grad_enabled() and any(map(_needs_gradient, given))):
        return PLAIN
    if all(map(_is_on_host, given)):
        return HOST if plain and not private.is_in_mode() else PLAIN
    there = kinds <= _ON_DEVICES and not any([t.ndim for t in given if _is_on_host(t)])
    return DEVICE if there else PLAIN


def _tensors_in(arguments: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for x in arguments:
        if isinstance(x, (list, tuple)):
            found += x if set(map(type, x)) <= TENSORS else _tensors_in(x)
        elif isinstance(x, torch.Tensor):
            found.append(x)
    return found


def transformed() -> bool:
    """Whether a compiler, a tracer, torch.func or dual numbers transform current code."""
    return torch.compiler.is_compiling() or private.is_in_transform()


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, replicated or not."""
    return type(x) not in TENSORS and hasattr(type(x), "from_local")


def any_sharded(kinds: set[type]) -> bool:
    """Whether one of some types is that of DTensors."""
    return not kinds <= TENSORS and any([hasattr(kind, "from_local") for kind in kinds])


def are_writable(leaves: Iterable[torch.Tensor]) -> list[bool]:
    """For each leaf, whether its elements have memory of their own, which holds their values, and need no gradient."""
    compiling = torch.compiler.is_compiling()  # Dynamo cannot trace some of these questions
    changing = compiling or torch.is_inference_mode_enabled()  # what was made in that mode may not change outside
    differentiated = torch.is_grad_enabled()
    return [
        (compiling or ((changing or not x.is_inference()) and not x.is_neg() and not x.is_conj()))
        and (x.is_contiguous() or all([step or size < 2 for step, size in zip(x.stride(), x.shape, strict=True)]))
        and not (differentiated and x.requires_grad)
        for x in leaves
    ]
