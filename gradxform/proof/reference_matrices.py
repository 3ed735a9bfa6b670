"""Reference implementation of `orthogonalize`: the iteration in extended precision, without matrix products of BLAS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.proof.extended import number
from gradxform.proof.reference_leaf import Leaf

_PUBLISHED = {
    "jordan": [(3.4445, -4.7750, 2.0315)],
    # Amsel et al., 2025, Algorithm 1; its last polynomial is repeated
    "polar_express": [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ],
}
_GUARDS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda n: n or number(1),
    "torch": lambda n: np.maximum(n, 1e-7),
    "keras": lambda n: n + 1e-7,
    "mlx": lambda n: n + 1e-7,
    "optax": lambda n: n + 1e-8,
}


def orthogonalize(
    leaves: Sequence[Leaf],
    steps: int = 5,
    coefficients: Any = "jordan",
    scale: str | None = "shape",
    axes: Any = None,
    dtype: str | None = None,
    like: str | None = None,
) -> None:
    """Iterate on each matrix by itself, without transposing it to be wide."""
    if dtype is not None:
        raise NotImplementedError("the reference rounds no products")
    rows = polynomials(coefficients, steps)
    for leaf in leaves:
        if 0 in leaf.shape:
            continue
        inputs, outputs = leaf.axes(axes)
        stack = [axis for axis in range(len(leaf.shape)) if axis not in (*inputs, *outputs)]
        order = (*stack, *outputs, *inputs)
        count, fan_in, fan_out = (math.prod(leaf.shape[axis] for axis in some) for some in (stack, inputs, outputs))
        size = {
            None: number(1),
            "shape": np.sqrt(number(max(1, fan_out / max(fan_in, 1)))),
            "rms": number(0.2) * np.sqrt(number(max(fan_in, fan_out))),
        }[scale]
        moved = np.transpose(leaf.value, order)
        matrices = (_unit(matrix, like) for matrix in moved.reshape(count, fan_out, fan_in))
        # float64 has digits to spare for float32 gradients, and products are fast
        kind: Any = np.float64 if leaf.is_single else number(0).dtype
        rounded_rows = [[part.astype(kind) for part in row] for row in rows]
        new = [number(_iterated(matrix.astype(kind), rounded_rows)) for matrix in matrices]
        found = np.stack(new).reshape(moved.shape) if new else moved
        old, leaf.value = (
            float(np.abs(leaf.value).max(initial=0)),
            size * leaf.kept(np.transpose(found, np.argsort(order))),
        )
        leaf.term = leaf.term * (float(np.abs(leaf.value).max(initial=0)) / old if old else 0.0)


def polynomials(coefficients: Any, steps: int) -> list[Any]:
    """The polynomial of each step.

    Algorithm 1 of The Polar Express divides by 1.01 at the start, and before each step but the last.
    """
    rows: Any = _PUBLISHED[coefficients] if isinstance(coefficients, str) else coefficients
    rows = [rows] if not isinstance(rows[0], (list, tuple)) else list(rows)
    divisors = [2, *[1] * 6, 0] if coefficients == "polar_express" else [0] * len(rows)
    found = [
        tuple(number(part) / number(1.01) ** (times * power) for part, power in zip(row, (1, 3, 5), strict=True))
        for row, times in zip(rows, divisors, strict=True)
    ]
    return (found + found[-1:] * steps)[:steps]


def _unit(x: Any, like: str | None) -> Any:
    """Divide a matrix by its norm; NaN if that is not finite."""
    if not np.all(np.isfinite(x)):
        return x * number(np.nan)
    largest = max(np.abs(x).max(initial=0), number(np.finfo(np.float64).tiny))
    norm = largest * np.sqrt(((x / largest) ** 2).sum())
    return x / _GUARDS[like](norm)


def _iterated(x: Any, rows: Sequence[Any]) -> Any:
    for a, b, c in rows:
        gram = _times(x, x.T)
        x = a * x + _times(b * gram + c * _times(gram, gram), x)
    return x


def _times(x: Any, y: Any) -> Any:
    """The product of two matrices in any number format."""
    if not x.size or not y.size:
        return np.zeros((x.shape[0], y.shape[1]), x.dtype)
    return x @ y if x.dtype == np.float64 else (x[:, None, :] * y.T[None, :, :]).sum(axis=-1)
