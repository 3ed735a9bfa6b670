"""MLX: its devices, which share one memory."""

from __future__ import annotations

import functools

import mlx.core as mx

from gradxform.cli.frameworks.interface import chosen
from gradxform.proof.place import Place
from gradxform_mlx.backend import backend


def find(name: str | None = None, index: int = 0) -> Place:
    """Return a device by name and number; by default, MLX's default device.

    Raises:
        Absent: MLX has no such device.
    """
    device = mx.default_device() if name is None else chosen(_devices(), name, index)
    gpu = device.type == mx.gpu
    words = f"{mx.device_info(device)['device_name']} ({device})" if gpu else "cpu"
    with mx.stream(device), backend.scope():
        kernels = mx.default_device()
    if kernels != device:
        words += f", kernels on {kernels}"
    without = ("complex128", *(("float64",) if gpu else ()))
    return Place(
        "gpu" if gpu else "cpu",
        words,
        backend.from_numpy,
        functools.partial(mx.stream, device),
        without=without,
    )


def _devices() -> dict[str, list[mx.Device]]:
    kinds = {"cpu": mx.cpu}
    if mx.metal.is_available() or mx.is_available(mx.gpu):
        kinds |= dict.fromkeys(("gpu", *(("metal", "mps") if mx.metal.is_available() else ("cuda",))), mx.gpu)
    return {name: [mx.Device(kind, i) for i in range(mx.device_count(kind))] for name, kind in kinds.items()}
