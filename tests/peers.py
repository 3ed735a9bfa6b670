"""The frameworks' and other libraries' own clipping functions, on NumPy arrays, for the tests of `like`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.backend import lookup

Native = Callable[[Sequence[Any], float], list[Any]]


def _of(name: str) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    backend = lookup.backend(name)
    return importlib.import_module(name), backend.from_numpy, backend.to_numpy


def _tensorflow(clip: Callable[[Any, list[Any], float], Any], compiled: bool) -> Native:
    tf, given, back = _of("tensorflow")

    def native(leaves: Sequence[Any], c: float) -> list[Any]:
        def run(tensors: list[Any]) -> Any:
            return clip(tf, tensors, c)

        return [back(leaf) for leaf in (tf.function(run) if compiled else run)(list(map(given, leaves)))]

    return native


def _keras(argument: str, compiled: bool) -> Native:
    make = importlib.import_module("keras").optimizers.SGD

    def native(leaves: Sequence[Any], c: float) -> list[Any]:
        optimizer = make(**{argument: c})
        return _tensorflow(lambda tf, tensors, c: optimizer._clip_gradients(tensors), compiled)(leaves, c)

    return native


def _optax(compiled: bool) -> Native:
    jax, given, back = _of("jax")
    optax = importlib.import_module("optax")

    def native(leaves: Sequence[Any], c: float) -> list[Any]:
        tx = optax.clip_by_global_norm(c)
        update = jax.jit(tx.update) if compiled else tx.update
        with jax.enable_x64(any(leaf.dtype in (np.float64, np.complex128) for leaf in leaves)):
            return [back(leaf) for leaf in update(list(map(given, leaves)), tx.init(leaves))[0]]

    return native


def _torch() -> Native:
    torch, given, back = _of("torch")

    def native(leaves: Sequence[Any], c: float, **options: Any) -> list[Any]:
        gradients = list(map(given, leaves))
        parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, c, **options)
        return [back(parameter.grad) for parameter in parameters]

    return native


def _mlx() -> Native:
    mx, clip = importlib.import_module("mlx.core"), importlib.import_module("mlx.optimizers").clip_grad_norm

    def native(leaves: Sequence[Any], c: float) -> list[Any]:
        clipped = clip([mx.array(leaf) for leaf in leaves], c)[0]
        return [np.array(leaf) for leaf in clipped]

    return native


def _paddle(make: str) -> Native:
    paddle = importlib.import_module("paddle")

    def native(leaves: Sequence[Any], c: float) -> list[Any]:
        pairs = [(paddle.create_parameter([1], "float32"), paddle.to_tensor(leaf)) for leaf in leaves]
        return [gradient.numpy() for _, gradient in getattr(paddle.nn, make)(c)(pairs)]

    return native


def _one_by_one(native: Native) -> Native:
    return lambda leaves, c: [native([leaf], c)[0] for leaf in leaves]


def find(transform: str, like: str, compiled: bool = False) -> Native:
    """The native function that a transform with `like` reproduces."""
    each = transform == "clip_norm"
    if like == "tensorflow" and each:
        return _tensorflow(lambda tf, leaves, c: [tf.clip_by_norm(leaf, c) for leaf in leaves], compiled)
    if like == "tensorflow":
        return _tensorflow(lambda tf, leaves, c: tf.clip_by_global_norm(leaves, c)[0], compiled)
    if like == "keras":
        return _keras("clipnorm" if each else "global_clipnorm", compiled)
    if like == "paddle":
        return _paddle("ClipGradByNorm" if each else "ClipGradByGlobalNorm")
    native = _optax(compiled) if like == "optax" else _torch() if like == "torch" else _mlx()
    return _one_by_one(native) if each else native


INF, NAN = float("inf"), float("nan")
HARD: dict[str, tuple[float, list[Any]]] = {
    "[3 4], c = 5": (5.0, [np.float32([3, 4])]),
    "[0.3 0.4], c = 5": (5.0, [np.float32([0.3, 0.4])]),
    "[NaN 1], [2]": (1.0, [np.float32([NAN, 1]), np.float32([2])]),
    "[inf 1], [2]": (1.0, [np.float32([INF, 1]), np.float32([2])]),
    "[1e30], [3]": (1.0, [np.float32([1e30]), np.float32([3])]),
    "float16 [300], [3]": (1.0, [np.float16([300]), np.float16([3])]),
    "[3e-30 4e-30], c = 1e-31": (1e-31, [np.float32([3e-30, 4e-30])]),
    "[3e-8 4e-8], c = 1e-8": (1e-8, [np.float32([3e-8, 4e-8])]),
    "[3], float16 [4]": (1.0, [np.float32([3]), np.float16([4])]),
    "complex64 [3j], [4]": (1.0, [np.complex64([3j]), np.complex64([4])]),
    "[0 0]": (1.0, [np.float32([0, 0])]),
    "[0 0], c = 0": (0.0, [np.float32([0, 0])]),
    "[3 4], c = inf": (INF, [np.float32([3, 4])]),
}
"""Limits and gradients of the edge cases; the limit is 1 unless named."""


def shown(clip: Native, case: str) -> str:
    """Format a function's result for an edge case, for the table in the documentation."""
    limit, leaves = HARD[case]
    try:
        with np.errstate(all="ignore"):
            clipped = clip([leaf.copy() for leaf in leaves], limit)
    except Exception:  # libraries raise different errors
        return "refused"
    return ", ".join("[" + " ".join(map(_number, leaf.ravel())) + "]" for leaf in clipped)


def _number(value: Any) -> str:
    text = f"{value.imag:.8g}j" if np.iscomplexobj(value) and value.imag else str(value.real)
    return text.removesuffix(".0").replace("nan", "NaN")


def gradxform_clip(transform: str) -> Native:
    """Wrap a gradxform clip as a native function."""
    import gradxform as gx

    return lambda leaves, c: list(getattr(gx, transform)(c)(list(leaves)))


def table(transform: str, likes: Sequence[str]) -> str:
    """The edge cases by library, in Markdown."""
    columns = [("gradxform", gradxform_clip(transform)), *((like, find(transform, like)) for like in likes)]
    rows = [["g", *(name for name, _ in columns)], ["---"] * (len(columns) + 1)]
    rows += [[case, *(shown(clip, case) for _, clip in columns)] for case in HARD]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
