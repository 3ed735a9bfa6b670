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
_is_on_host = operator.attrgetter("is_cpu")


def place_of(arguments: Iterable[Any]) -> str:
    """Where kernels of the tensors among some arguments, or in lists of them, run.

    `HOST` reads values, `DEVICE` writes, `SHARDED` has DTensors, `PLAIN` does what a framework records. The first two
    are for ordinary tensors that no derivative is asked of. Beside those of an accelerator, 0-d tensors may be on the
    host.
    """
    given = _tensors_in(arguments)
    if any_sharded(given):
        return SHARDED
    if torch.compiler.is_compiling():
        return PLAIN
    if not given:
        return HOST
    if private.is_in_transform() or (torch.is_grad_enabled() and any([t.requires_grad for t in given])):
        return PLAIN
    types, on_host = set(map(type, given)), list(map(_is_on_host, given))
    if all(on_host):
        return HOST if types <= TENSORS and not private.is_in_mode() else PLAIN
    there = types <= _ON_DEVICES and not any([t.ndim for t, host in zip(given, on_host, strict=True) if host])
    return DEVICE if there else PLAIN


def _tensors_in(arguments: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for x in arguments:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += x if set(map(type, x)) <= TENSORS else _tensors_in(x)
    return found


def transformed() -> bool:
    """Whether a compiler, a tracer, torch.func or dual numbers transform current code."""
    return torch.compiler.is_compiling() or private.is_in_transform()


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, replicated or not."""
    return type(x) not in TENSORS and hasattr(type(x), "from_local")


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether any is a DTensor."""
    kinds = {type(x) for x in tensors if x is not None}  # of whose type torch.compile cannot ask
    return not kinds <= TENSORS and any([hasattr(kind, "from_local") for kind in kinds])


def is_writable(leaf: torch.Tensor) -> bool:
    """Whether each element has memory of its own, which holds its value, and no gradient is asked of it."""
    compiling = torch.compiler.is_compiling()  # Dynamo cannot trace these questions
    made_before = not compiling and leaf.is_inference() and not torch.is_inference_mode_enabled()  # may not change now
    if made_before or (not compiling and (leaf.is_neg() or leaf.is_conj())):
        return False
    if not leaf.is_contiguous():
        if not all([stride or size < 2 for stride, size in zip(leaf.stride(), leaf.shape, strict=True)]):
            return False
    return not (torch.is_grad_enabled() and leaf.requires_grad)
