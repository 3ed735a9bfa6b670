"""PyTorch: its devices, torch.nn.utils.clip_grad_norm_ and its like, and the demo's network."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import gradxform_torch
from gradxform.cli.frameworks.interface import COEFFICIENTS, Clip, Mode, Task, chosen, each, native
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Place
from gradxform_torch import backend, private

# --- devices ---------------------------------------------------------------------------------------------------------

_WITHOUT = {"mps": ("float64", "complex128")}


def find(name: str | None = None, index: int = 0) -> Place:
    """A device by its name and number; without a name PyTorch's default one.

    Raises:
        Absent: PyTorch sees no such device.
    """
    device = torch.get_default_device() if name is None else chosen(_devices(), name, index)
    words = f"{torch.cuda.get_device_name(device)} ({device})" if name and device.type == "cuda" else device.type
    return Place(
        device.type,
        words,
        lambda array: backend.from_numpy(array).to(device),
        lies=lambda leaf: leaf.device.type == device.type and leaf.device.index in (None, device.index),
        without=_WITHOUT.get(device.type, ()),
        wait=lambda result: None if device.type == "cpu" else torch.accelerator.synchronize(),
    )


def _devices() -> dict[str, list[torch.device]]:
    """PyTorch calls ROCm's devices "cuda"."""
    kinds: dict[str, str] = {}
    if (accelerator := torch.accelerator.current_accelerator()) is not None:
        kinds["gpu"] = accelerator.type
    if torch.cuda.is_available():
        kinds["cuda" if torch.version.hip is None else "rocm"] = "cuda"
    if torch.backends.mps.is_available():
        kinds |= {"mps": "mps", "metal": "mps"}
    numbers = range(torch.accelerator.device_count()) if kinds else ()
    found = {name: [torch.device(kind, number) for number in numbers] for name, kind in kinds.items()}
    return {"cpu": [torch.device("cpu")], **found}


# --- the benchmark ---------------------------------------------------------------------------------------------------

Tensors = list[torch.Tensor]
Parameters = list[torch.nn.Parameter]


def _with_gradients(gradients: Tensors) -> Parameters:
    """Parameters with gradients; their own values are not looked at."""
    parameters = [torch.nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def _gradients(parameters: Parameters) -> Tensors:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _clip_norm(g: torch.Tensor, limit: float) -> torch.Tensor:
    return g * (limit / torch.linalg.vector_norm(g)).clamp(max=1.0)


def _clip_global_norm(grads: Tensors, limit: float) -> Tensors:
    factor = (limit / get_total_norm(grads)).clamp(max=1.0)
    return [g * factor for g in grads]


def _orthogonalize(g: torch.Tensor, steps: float) -> torch.Tensor:
    return private.muon_iteration()(g, COEFFICIENTS, steps, 1e-7).to(g.dtype)


_IN_PLACE: dict[str, Callable[[Any, float], Any]] = {
    "clip_value": clip_grad_value_,
    "clip_norm": each(clip_grad_norm_),
    "clip_global_norm": clip_grad_norm_,
    "scale": each(lambda p, factor: p.grad.mul_(factor)),
    "orthogonalize": each(lambda p, steps: p.grad.copy_(_orthogonalize(p.grad, steps))),
}
_PURE: dict[str, Callable[[Any, float], Any]] = {
    "clip_value": each(lambda g, limit: g.clamp(-limit, limit)),
    "clip_norm": each(_clip_norm),
    "clip_global_norm": _clip_global_norm,
    "scale": each(operator.mul),
    "orthogonalize": each(_orthogonalize),
}
_MUON = {"dtype": "bfloat16", "like": "torch"}
MODES = (
    Mode(
        "in place",
        "clip_grad_norm_, clip_grad_value_, mul_, Muon",
        _IN_PLACE,
        gradxform_torch.apply_,
        _with_gradients,
        _gradients,
        muon=_MUON,
    ),
    Mode("pure", "get_total_norm, then g * factor; Muon", _PURE, muon=_MUON),
)


# --- the demo --------------------------------------------------------------------------------------------------------


def train(task: Task, chain: Clip, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Train by backward(), with the chain in place on .grad before the optimizer.

    On one thread: for matrices as small as these, threads would mostly wait for one another.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights = {path: torch.nn.Parameter(put(weight)) for path, weight in task.weights.items()}
    optimizer = torch.optim.SGD(weights.values(), task.learning_rate, task.momentum)
    try:
        for images, labels in task.batches:
            optimizer.zero_grad()
            logits = task.logits(weights, put(images))
            loss = torch.nn.functional.cross_entropy(logits, put(labels).long(), reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = {path: weight.grad.clone() for path, weight in weights.items() if weight.grad is not None}
            if isinstance(chain, GradientTransformation):
                gradxform_torch.apply_(chain, weights.items())
            else:
                native(MODES[0], chain, list(weights.values()))
            optimizer.step()
            yield loss, gradients, {path: weight.grad for path, weight in weights.items()}, weights
    finally:
        torch.set_num_threads(threads)
