"""PyTorch: its devices, torch.nn.utils.clip_grad_norm_ and its like, and the demo's network."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

import gradxform_torch
from gradxform.cli.frameworks.interface import (
    COEFFICIENTS,
    Array,
    Mode,
    OnStep,
    Side,
    Step,
    Task,
    Tree,
    one_by_one,
    transformation,
    waiting,
)
from gradxform.core.transform import GradientTransformation
from gradxform.proof.place import Absent, Cost, Place
from gradxform_torch import _private, backend

# --- devices ---------------------------------------------------------------------------------------------------------

_WITHOUT = {"mps": ("float64", "complex128")}


def find(name: str | None = None, index: int = 0) -> Place:
    """A device by its name and number; without a name PyTorch's default one.

    Raises:
        Absent: PyTorch sees no such device.
    """
    device = torch.get_default_device() if name is None else torch.device(_kind(name), index)
    count = 1 if device.type == "cpu" else torch.accelerator.device_count()
    if name is not None and index >= count:
        raise Absent(f"which sees no {name}:{index}: there {'is' if count == 1 else 'are'} {count}")
    words = f"{torch.cuda.get_device_name(device)} ({device})" if name and device.type == "cuda" else device.type
    return Place(
        device.type,
        words,
        lambda array: backend.from_numpy(array).to(device),
        lies=lambda leaf: leaf.device.type == device.type and leaf.device.index in (None, device.index),
        cost=functools.partial(_cost, device),
        without=_WITHOUT.get(device.type, ()),
    )


def _kind(name: str) -> str:
    """PyTorch's own name of a kind of device; ROCm's is "cuda"."""
    if name == "cpu":
        return "cpu"
    if name in ("cuda", "rocm"):
        if not torch.cuda.is_available():
            raise Absent(f"which sees no {name} device: torch.cuda.is_available() is False")
        here = "cuda" if torch.version.hip is None else "rocm"
        if name != here:
            raise Absent(f"which is built for {here}")
        return "cuda"
    if name in ("mps", "metal"):
        if not torch.backends.mps.is_available():
            raise Absent(f"which sees no {name} device: torch.backends.mps.is_available() is False")
        return "mps"
    if name == "gpu":
        found = torch.accelerator.current_accelerator()
        if found is None:
            raise Absent("which sees no gpu device: torch.accelerator.current_accelerator() is None")
        return found.type
    raise Absent(f"which has no {name} device without torch_xla")


class _Launches(_private.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that launch a kernel: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        name = func.name()
        self.count += name.startswith("aten::") and not (func.is_view or "empty" in name or "unsafe_view" in name)
        return func(*args, **(kwargs or {}))


def _cost(device: torch.device, function: Callable[..., Any], *args: Any) -> Cost:
    """The launches of an eager call, a multi-tensor operation for one, and the memory that CUDA's allocator tells of.

    On the CPU NumPy does part of the work, and counting would change what runs. Code of torch.compile is not seen.
    """
    if device.type == "cpu":
        return Cost()
    peak = _allocated(device, function, *args) if device.type == "cuda" else None
    if _private.is_compiled(function):
        return Cost(None, peak)
    with _Launches() as launches:
        function(*args)
    return Cost(launches.count, peak)


def _allocated(device: torch.device, function: Callable[..., Any], *args: Any) -> int:
    """How far a call raises the memory in use, as CUDA's allocator counts it."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = function(*args)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    del result
    return peak - before


# --- the benchmark ---------------------------------------------------------------------------------------------------

Tensors = list[torch.Tensor]
Named = list[tuple[str, torch.nn.Parameter]]
_transformation = functools.partial(transformation, dtype="bfloat16", like="torch")


def _in_place(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """In place on the gradients of parameters."""
    tx = _transformation(steps)

    def native(named: Named) -> None:
        parameters = [parameter for _, parameter in named]
        for name, value in steps:
            _IN_PLACE[name](parameters, value)

    def clip(named: Named) -> None:
        gradxform_torch.apply_(tx, named)

    return _writing(clip, tree, place), _writing(native, tree, place)


def _writing(work: Callable[[Named], None], tree: Tree, place: Place) -> Side:
    """A side that writes to the gradients of parameters of its own."""
    named = [(path.replace("/", "."), _parameter(place.put(leaf))) for path, leaf in tree.items()]
    given = [torch.from_numpy(leaf) for leaf in tree.values()]

    def restore() -> None:
        for (_, parameter), gradient in zip(named, given, strict=True):
            _gradient(parameter).copy_(gradient)

    run = waiting(work, named, place, torch.accelerator.synchronize)

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


def _pure(steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """New tensors for every step."""
    grads = [place.put(leaf) for leaf in tree.values()]

    def side(work: Callable[[Tensors], Tensors]) -> Side:
        run = waiting(work, grads, place, torch.accelerator.synchronize)
        return Side(run, _values, cost=lambda: place.cost(work, grads))

    return side(_transformation(steps)), side(one_by_one(_PURE, steps))


def _values(grads: Tensors) -> list[Array]:
    return [leaf.cpu().numpy() for leaf in grads]


def _clip_global_norm(grads: Tensors, limit: float) -> Tensors:
    factor = (limit / get_total_norm(grads)).clamp(max=1.0)
    return [g * factor for g in grads]


def _orthogonalize(grads: Tensors, steps: float) -> Tensors:
    iterate = _private.muon_iteration()
    return [iterate(g, COEFFICIENTS, steps, 1e-7).to(g.dtype) for g in grads]


_PURE: Mapping[str, Callable[[Tensors, float], Tensors]] = {
    "clip_value": lambda grads, limit: [g.clamp(-limit, limit) for g in grads],
    "clip_norm": lambda grads, limit: [g * (limit / torch.linalg.vector_norm(g)).clamp(max=1.0) for g in grads],
    "clip_global_norm": _clip_global_norm,
    "scale": lambda grads, factor: [g * factor for g in grads],
    "orthogonalize": _orthogonalize,
}

GIVES_MEMORY_BACK = True
MODES = (
    Mode("in place", "clip_grad_norm_, clip_grad_value_, mul_, Muon", _in_place),
    Mode("pure", "get_total_norm, then g * factor; Muon", _pure),
)


# --- the demo --------------------------------------------------------------------------------------------------------


def train(task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]) -> Any:
    """Train by backward(), with the chain in place on .grad before the optimizer; the logits of the test images.

    On one thread: for matrices as small as these, threads would mostly wait for one another.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(Network(task, put), task, chain, on_step, put)
    finally:
        torch.set_num_threads(threads)


def _train(
    model: torch.nn.Module, task: Task, chain: GradientTransformation, on_step: OnStep, put: Callable[[Any], Any]
) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), task.learning_rate, task.momentum)
    for images, labels in task.batches:
        optimizer.zero_grad()
        logits = model(put(images))
        loss = torch.nn.functional.cross_entropy(logits, put(labels).long(), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = _copied(model)
        gradxform_torch.apply_(chain, model.named_parameters())
        optimizer.step()
        on_step(loss.item(), gradients, _copied(model))
    with torch.no_grad():
        return model(put(task.test_images)).cpu().numpy()


class Network(torch.nn.Module):
    """The parameter "rnn/input" of the task is `self.rnn.input`, and so on."""

    def __init__(self, task: Task, put: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        for path, weight in task.weights.items():
            layer, name = path.split("/")
            if not hasattr(self, layer):
                self.add_module(layer, torch.nn.ParameterDict())
            getattr(self, layer)[name] = torch.nn.Parameter(put(weight))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits [n, 10] of images [n, 64]."""
        rnn: Any = self.rnn
        head: Any = self.head
        h = images.new_zeros(len(images), len(rnn["bias"]))
        for pixel in images.T:
            h = torch.tanh(pixel.unsqueeze(1) * rnn["input"] + h @ rnn["recurrent"] + rnn["bias"])
        return h @ head["kernel"] + head["bias"]


def _copied(model: torch.nn.Module) -> Any:
    """Copies of the gradients, by path."""
    named = model.named_parameters()
    return {name.replace(".", "/"): np.array(p.grad.cpu()) for name, p in named if p.grad is not None}
