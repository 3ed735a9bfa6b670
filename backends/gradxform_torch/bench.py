"""PyTorch's half of the benchmark: torch.nn.utils.clip_grad_norm_ and its like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import gradxform_torch
from gradxform.cli.bench.task import COEFFICIENTS, Array, Mode, Side, Step, Tree, transformation
from gradxform.proof.place import Place
from gradxform_torch import _private

Tensors = list[torch.Tensor]


def versions() -> dict[str, str]:
    """PyTorch's version."""
    return {"torch": torch.__version__}


def _waiting(place: Place) -> Callable[[], None]:
    """What waits for the device; on the processor, a tensor that has been returned has its values."""
    return torch.accelerator.synchronize if place.name != "cpu" else _is_there


def _is_there() -> None:
    """Nothing to wait for."""


def _transformation(steps: Sequence[Step]) -> Any:
    return transformation(steps, dtype="bfloat16", like="torch")


# --- in place on the gradients of parameters -------------------------------------------------------------------------


def _in_place(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    tx = _transformation(steps)

    def native(named: list[tuple[str, torch.nn.Parameter]]) -> None:
        parameters = [parameter for _, parameter in named]
        for name, value in steps:
            _IN_PLACE[name](parameters, value)

    def clip(named: list[tuple[str, torch.nn.Parameter]]) -> None:
        gradxform_torch.apply_(tx, named)

    return _writing(clip, tree, place), _writing(native, tree, place)


def _writing(work: Callable[[list[tuple[str, torch.nn.Parameter]]], None], tree: Tree, place: Place) -> Side:
    """A side that writes to the gradients of parameters of its own."""
    named = [(path.replace("/", "."), _parameter(place.put(leaf))) for path, leaf in tree.items()]
    given = [torch.from_numpy(leaf) for leaf in tree.values()]
    wait = _waiting(place)

    def run() -> None:
        work(named)
        wait()

    def restore() -> None:
        for (_, parameter), gradient in zip(named, given, strict=True):
            _gradient(parameter).copy_(gradient)

    def leaves(_: None) -> list[Array]:
        return [_gradient(parameter).cpu().numpy() for _, parameter in named]

    return Side(run, leaves, restore, lambda: place.cost(work, named))


def _parameter(gradient: torch.Tensor) -> torch.nn.Parameter:
    """A parameter with a gradient; its own values are not looked at."""
    parameter = torch.nn.Parameter(torch.empty_like(gradient))
    parameter.grad = gradient
    return parameter


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _clip_norm_in_place(parameters: list[torch.nn.Parameter], limit: float) -> None:
    for parameter in parameters:
        clip_grad_norm_(parameter, limit)


def _orthogonalize_in_place(parameters: list[torch.nn.Parameter], steps: float) -> None:
    iterate = _private.muon_iteration()
    for parameter in parameters:
        _gradient(parameter).copy_(iterate(_gradient(parameter), COEFFICIENTS, steps, 1e-7))


def _scale_in_place(parameters: list[torch.nn.Parameter], factor: float) -> None:
    for parameter in parameters:
        _gradient(parameter).mul_(factor)


_IN_PLACE: Mapping[str, Callable[[Any, float], Any]] = {
    "clip_value": clip_grad_value_,
    "clip_norm": _clip_norm_in_place,
    "clip_global_norm": clip_grad_norm_,
    "scale": _scale_in_place,
    "orthogonalize": _orthogonalize_in_place,
}


# --- pure: new tensors for every step --------------------------------------------------------------------------------


def _pure(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    grads = [place.put(leaf) for leaf in tree.values()]
    tx = _transformation(steps)

    def native(grads: Tensors) -> Tensors:
        for name, value in steps:
            grads = _PURE[name](grads, value)
        return grads

    return _making(tx, grads, place), _making(native, grads, place)


def _making(work: Callable[[Tensors], Tensors], grads: Tensors, place: Place) -> Side:
    wait = _waiting(place)

    def run() -> Tensors:
        result = work(grads)
        wait()
        return result

    def leaves(result: Tensors) -> list[Array]:
        return [leaf.cpu().numpy() for leaf in result]

    return Side(run, leaves, cost=lambda: place.cost(work, grads))


def _clip_value(grads: Tensors, limit: float) -> Tensors:
    return [g.clamp(-limit, limit) for g in grads]


def _clip_norm(grads: Tensors, limit: float) -> Tensors:
    return [g * (limit / torch.linalg.vector_norm(g)).clamp(max=1.0) for g in grads]


def _clip_global_norm(grads: Tensors, limit: float) -> Tensors:
    factor = (limit / get_total_norm(grads)).clamp(max=1.0)
    return [g * factor for g in grads]


def _orthogonalize(grads: Tensors, steps: float) -> Tensors:
    iterate = _private.muon_iteration()
    return [iterate(g, COEFFICIENTS, steps, 1e-7).to(g.dtype) for g in grads]


def _scale(grads: Tensors, factor: float) -> Tensors:
    return [g * factor for g in grads]


_PURE: Mapping[str, Callable[[Tensors, float], Tensors]] = {
    "clip_value": _clip_value,
    "clip_norm": _clip_norm,
    "clip_global_norm": _clip_global_norm,
    "scale": _scale,
    "orthogonalize": _orthogonalize,
}

GIVES_MEMORY_BACK = True
MODES = (
    Mode("in place", "clip_grad_norm_, clip_grad_value_, mul_, Muon", _in_place),
    Mode("pure", "get_total_norm, then g * factor; Muon", _pure),
)
