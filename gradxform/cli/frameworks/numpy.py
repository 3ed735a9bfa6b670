"""NumPy: the CPU, and clipping as people write it, pure and in place."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

import gradxform_numpy
from gradxform.cli.frameworks.interface import COEFFICIENTS, Array, Mode, chosen, each
from gradxform.proof.place import Place


def find(name: str | None = None, index: int = 0) -> Place:
    """Return the CPU.

    Raises:
        Absent: Another device is requested.
    """
    chosen({"cpu": ["cpu"]}, name or "cpu", index)
    return Place("cpu", "cpu", np.array)


# --- the benchmark ---------------------------------------------------------------------------------------------------


def _clip_norm(g: Array, limit: float) -> Array:
    return g * min(1.0, limit / np.linalg.norm(g))


def _clip_global_norm(grads: list[Array], limit: float) -> list[Array]:
    factor = min(1.0, limit / np.sqrt(sum(np.sum(np.square(g)) for g in grads)))
    return [g * factor for g in grads]


def _orthogonalize(g: Array, steps: float) -> Array:
    a, b, c = COEFFICIENTS
    x = (g if g.shape[0] <= g.shape[1] else g.T) / np.linalg.norm(g)
    for _ in range(int(steps)):
        squares = x @ x.T
        x = a * x + (b * squares + c * squares @ squares) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


def _clip_global_norm_in_place(grads: list[Array], limit: float) -> None:
    norm = math.sqrt(sum(float(np.dot(g.ravel(), g.ravel())) for g in grads))
    if norm > limit:
        for g in grads:
            np.multiply(g, limit / norm, out=g)


_PURE: dict[str, Any] = {
    "clip_value": each(lambda g, limit: np.clip(g, -limit, limit)),
    "clip_norm": each(_clip_norm),
    "clip_global_norm": _clip_global_norm,
    "scale": each(operator.mul),
    "orthogonalize": each(_orthogonalize),
}
_IN_PLACE: dict[str, Any] = {
    "clip_value": each(lambda g, limit: np.clip(g, -limit, limit, out=g)),
    "clip_norm": each(lambda g, limit: _clip_global_norm_in_place([g], limit)),
    "clip_global_norm": _clip_global_norm_in_place,
    "scale": each(lambda g, factor: np.multiply(g, factor, out=g)),
    "orthogonalize": each(lambda g, steps: np.copyto(g, _orthogonalize(g, steps))),
}
MODES = (
    Mode("pure", "g * min(1, c / norm), matmul", _PURE),
    Mode(
        "in place",
        "np.dot, then np.multiply(g, c / norm, out=g); matmul",
        _IN_PLACE,
        gradxform_numpy.apply_,
        written=list,
    ),
)
