"""PyTorch's devices."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from gradxform.proof.place import Absent, Cost, Place
from gradxform_torch import _private, backend
from gradxform_torch.counting import Counted

_WITHOUT = {"mps": ("float64", "complex128")}


def find(name: str | None = None, index: int = 0) -> Place:
    """A device by its name and number; without a name PyTorch's default one.

    Raises:
        Absent: PyTorch sees no such device.
    """
    device = torch.get_default_device() if name is None else torch.device(_kind(name), index)
    if name is not None and index >= (count := _count(device.type)):
        raise Absent(f"which sees no {name}:{index}: there {'is' if count == 1 else 'are'} {count}")
    return Place(
        device.type,
        device.type if name is None else _words(device),
        functools.partial(_put, device),
        lies=lambda leaf: leaf.device.type == device.type and leaf.device.index in (None, device.index),
        cost=functools.partial(cost, device),
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


def _count(kind: str) -> int:
    return 1 if kind == "cpu" else torch.accelerator.device_count()


def _words(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return device.type


def _put(device: torch.device, array: Any) -> torch.Tensor:
    return backend.from_numpy(array).to(device)


def cost(device: torch.device, function: Callable[..., Any], *args: Any) -> Cost:
    """The launches of an eager call, and the memory that CUDA's allocator tells of, or else that tensors take.

    On the CPU NumPy does part of the work, and counting would change what runs. Code of torch.compile is not seen.
    """
    if device.type == "cpu":
        return Cost()
    peak = _allocated(device, function, *args) if device.type == "cuda" else None
    if _private.is_compiled(function):
        return Cost(None, peak)
    with Counted() as count:
        function(*args)
    return Cost(count.launches.total(), count.peak if peak is None else peak)


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
