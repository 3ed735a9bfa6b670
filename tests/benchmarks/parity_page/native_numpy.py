"""Gradient clipping in plain NumPy."""

from __future__ import annotations

import numpy as np
from parity_page.native import Call, Leaves, Native

from gradxform.proof.registry import COMPLEX, DTYPES, MIXED


def _clip_value(limit: float) -> Call:
    return lambda grads: [np.clip(g, -limit, limit) for g in grads]


def _clip_norm(limit: float) -> Call:
    return lambda grads: [g * min(1, limit / np.linalg.norm(g)) for g in grads]


def _clip_global_norm(limit: float) -> Call:
    def call(grads: Leaves) -> Leaves:
        factor = min(1, limit / np.sqrt(sum(np.sum(np.square(g)) for g in grads)))
        return [g * factor for g in grads]

    return call


NATIVES = (
    Native(
        "g * min(1, c / np.sqrt(sum(np.sum(np.square(g)) for g in grads)))",
        "numpy",
        "eager",
        "clip_global_norm",
        _clip_global_norm,
        columns=tuple(column for column in (*DTYPES, MIXED) if column not in COMPLEX),
    ),
    Native("g * min(1, c / np.linalg.norm(g))", "numpy", "eager", "clip_norm", _clip_norm),
    Native("np.clip", "numpy", "eager", "clip_value", _clip_value),
)
