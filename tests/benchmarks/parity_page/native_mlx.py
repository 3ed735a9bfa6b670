"""MLX's own clip."""

from __future__ import annotations

import numpy as np
from mlx.optimizers import clip_grad_norm
from parity_page.native import Call, Leaves, Native

from gradxform.proof.registry import DTYPES
from gradxform_mlx.backend import backend


def _clip_grad_norm(limit: float) -> Call:
    def call(leaves: Leaves) -> Leaves:
        clipped, _ = clip_grad_norm([backend.from_numpy(leaf) for leaf in leaves], limit)  # type: ignore[no-untyped-call]
        return [np.asarray(backend.to_numpy(leaf)) for leaf in clipped]

    return call


NATIVES = (
    Native(
        "mlx.optimizers.clip_grad_norm",
        "mlx",
        "eager",
        "clip_global_norm",
        _clip_grad_norm,
        columns=tuple(column for column in DTYPES if column != "complex128"),
    ),
)
