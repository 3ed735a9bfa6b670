"""Faults as people make them, each planted alone in one of two runs, and the cause that the diagnosis must name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch_runs import BATCH


class Fault(NamedTuple):
    """Options of the run that has it, those of both, and what must be found."""

    kind: str
    options: dict[str, Any]
    both: Mapping[str, Any] = MappingProxyType({})
    numbers: Mapping[str, float] = MappingProxyType({})
    leaf: str = ""


def on(name: str, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Change the gradient of one leaf."""

    def change(step: int, gradients: dict[str, Any]) -> None:
        gradients[name].copy_(function(gradients[name].clone()))

    return {"change": change}


def each(function: Callable[[Any], Any]) -> dict[str, Any]:
    """Change every gradient."""

    def change(step: int, gradients: dict[str, Any]) -> None:
        for gradient in gradients.values():
            gradient.copy_(function(gradient))

    return {"change": change}


def clip_global(limit: float) -> dict[str, Any]:
    """Clip all gradients together."""

    def change(step: int, gradients: dict[str, Any]) -> None:
        norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
        for gradient in gradients.values():
            gradient.mul_(min(1.0, limit / float(norm)))

    return {"change": change}


def nan_from(step: int, name: str) -> dict[str, Any]:
    """Make one element NaN from a step on."""

    def change(now: int, gradients: dict[str, Any]) -> None:
        if now >= step:
            gradients[name].view(-1)[0] = float("nan")

    return {"change": change}


def blocks(x: Any, order: list[int]) -> Any:
    """Permute the blocks of the first axis."""
    parts = x.chunk(len(order))
    return torch.cat([parts[i] for i in order])


def heads(x: Any, count: int = 4) -> Any:
    """Split heads from the inner part of the first axis."""
    return x.reshape(count, len(x) // count, -1).transpose(0, 1).reshape(x.shape)


def begin_with(name: str, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Change one initial parameter."""

    def begin(model: Any) -> None:
        parameter = model.get_parameter(name)
        parameter.copy_(function(parameter))

    return {"begin": begin}


def decayed(model: Any, before: list[Any]) -> None:
    """Decay parameters beside the step, by 0.1 % each."""
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.sub_(1e-3 * old)


def still(name: str) -> Callable[[Any, Any], None]:
    """Put one parameter back."""

    def after(model: Any, before: list[Any]) -> None:
        for (path, parameter), old in zip(model.named_parameters(), before, strict=True):
            if path == name:
                parameter.copy_(old)

    return after


def uncorrected(options: dict[str, Any]) -> dict[str, Any]:
    """Write Adam's step anew without its bias correction."""
    first: list[Any] = []
    second: list[Any] = []

    def begin(model: Any) -> None:
        first.clear()
        second.clear()

    def after(model: Any, before: list[Any]) -> None:
        for i, (parameter, old) in enumerate(zip(model.parameters(), before, strict=True)):
            if len(first) <= i:
                first.append(torch.zeros_like(old))
                second.append(torch.zeros_like(old))
            first[i].mul_(0.9).add_(0.1 * parameter.grad)
            second[i].mul_(0.999).add_(0.001 * parameter.grad**2)
            parameter.copy_(old - 1e-3 * first[i] / (second[i].sqrt() + 1e-8))

    return {"begin": begin, "after": after, **options}


def l2() -> dict[str, Any]:
    """L2 in the gradient, by the optimizer's own code, before it is recorded."""
    held: list[Any] = []

    def begin(model: Any) -> None:
        held.append(model)

    def change(step: int, gradients: dict[str, Any]) -> None:
        for name, parameter in held[-1].named_parameters():
            gradients[name].add_(0.01 * parameter)

    return {"begin": begin, "change": change}


OUT = "blocks.0.attention.out_proj.weight"
LSTM, TEXT = {"network": "lstm"}, {"network": "transformer"}
ADAM = {"optimizer": "adam"}
FAULTS = {
    "the loss is summed": Fault("factor", {"reduction": "sum"}, {}, {"factor": BATCH}),
    "the loss is halved": Fault("factor", each(lambda g: g / 2), TEXT, {"factor": 0.5}),
    "a sign": Fault("sign", each(lambda g: -g)),
    "the sign of one leaf": Fault("leaf_sign", on("hidden.weight", lambda g: -g), leaf="hidden/weight"),
    "one leaf scaled": Fault("leaf_factor", on("conv2.weight", lambda g: 3 * g), {}, {"factor": 3}, "conv2/weight"),
    "a square kernel transposed": Fault(
        "layout", on(OUT, lambda g: g.T), TEXT, leaf="blocks/0/attention/out_proj/weight"
    ),
    "axes of a convolution": Fault("layout", on("conv2.weight", lambda g: g.transpose(2, 3)), leaf="conv2/weight"),
    "a kernel flipped": Fault("layout", on("conv2.weight", lambda g: g.flip(2, 3)), leaf="conv2/weight"),
    "gates": Fault("layout", on("lstm.weight_ih_l0", lambda g: blocks(g, [0, 2, 1, 3])), LSTM),
    "heads": Fault("layout", on("blocks.1.attention.out_proj.weight", heads), TEXT),
    "a leaf without a gradient": Fault("frozen", on("conv1.weight", lambda g: 0 * g), leaf="conv1/weight"),
    "a leaf that does not move": Fault("frozen", {"after": still("hidden.weight")}, ADAM, leaf="hidden/weight"),
    "tied embeddings": Fault("tied", {"tied": True}, TEXT),
    "a missing bias": Fault("missing", {"bias": False}, leaf="conv2/bias"),
    "weight decay in the gradient": Fault("weight_decay", l2(), {}, {"rate": 0.01}),
    "weight decay in the optimizer": Fault("weight_decay", {"after": decayed}, ADAM, {"b": 1e-3}),
    "a clip by value": Fault("clip_value", each(lambda g: g.clamp(-0.02, 0.02)), {}, {"limit": 0.02}),
    "a clip by norm": Fault("clip_norm", each(lambda g: g * min(1.0, 0.3 / float(g.norm()))), TEXT, {"limit": 0.3}),
    "a clip by the global norm": Fault("clip_global_norm", clip_global(1.0), {}, {"limit": 1.0}),
    "dropout": Fault("unrelated", {"dropout": 0.3}),
    "other batches": Fault("unrelated", {"data": 1}),
    "the order of the batches": Fault("unrelated", {"shift": 1}),
    "mixed precision": Fault("precision", {"autocast": torch.bfloat16}, TEXT),
    "NaN": Fault("nonfinite", nan_from(3, "hidden.weight"), leaf="hidden/weight"),
    "the epsilon of a norm": Fault("constant", {"epsilon": 1e-3}),
    "the epsilon of Adam": Fault("epsilon", {"options": {"eps": 1e-3}}, ADAM, {"b": 1e-3}),
    "Adam without bias correction": Fault("bias_correction", uncorrected({}), ADAM, {"b": -1}),
    "the learning rate": Fault("learning_rate", {"options": {"lr": 0.05}}, {}, {"b": 0.05}),
    "another seed": Fault("initial", {"seed": 1}),
    "gates of the initial weights": Fault(
        "initial", begin_with("lstm.weight_hh_l0", lambda p: blocks(p, [0, 2, 1, 3])), LSTM
    ),
}
