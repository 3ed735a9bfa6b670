"""Other libraries' published clipping formulas, in the gradients' dtypes, with an accurate norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Clip = Callable[[Sequence[Any], float, Callable[..., Any]], list[Any]]
"""Takes gradients, the limit and a function for the accurate norm; returns clipped gradients."""


def _norm_in(dtype: Any, exact: Any) -> Any:
    """Return a norm as the root of its square, each rounded to a dtype; the norm itself if the square overflows."""
    squares = _as(dtype, exact * exact)
    lost = not float(np.finfo(np.float32).tiny if dtype.itemsize != 8 else 0) < squares < np.inf or (
        dtype.name == "float16" and squares <= np.finfo(np.float16).tiny
    )
    return _as(dtype, exact) if lost else np.sqrt(squares)


def _as(dtype: Any, value: Any) -> Any:
    return np.asarray(np.float64(value)).astype(dtype)[()]


def _real(leaf: Any) -> Any:
    return leaf.real.dtype


def _together(leaves: Sequence[Any], *widened: str) -> Any:
    """The dtype of several gradients' norm."""
    kinds = {_real(leaf) for leaf in leaves}
    if np.dtype(np.float64) in kinds:
        return np.dtype(np.float64)
    only = kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)
    return np.dtype(np.float32) if only.name in widened else only


def _times(leaf: Any, factor: Any) -> Any:
    return (leaf * factor).astype(leaf.dtype)


def _tensorflow(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves)
    n, limit, one = _norm_in(dtype, norm(leaves)), _as(dtype, c), _as(dtype, 1)
    scale = limit * np.minimum(one / n, one / limit) if np.isfinite(n) else _as(dtype, np.nan)
    return [_times(leaf, _as(_real(leaf), scale)) for leaf in leaves]


def _keras(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves)
    if not c > 0:
        return list(leaves)
    n = _norm_in(dtype, norm(leaves))
    scale = _as(dtype, c) * np.minimum(_as(dtype, 1) / n, _as(dtype, np.float64(1) / c)) + (n - n)
    return [_times(leaf, _as(_real(leaf), scale)) for leaf in leaves]


def _tensorflow_each(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    clipped = []
    for leaf in leaves:
        limit = _as(_real(leaf), c)
        clipped.append(_times(leaf, limit) / np.maximum(_norm_in(_real(leaf), norm([leaf])), limit))
    return clipped


def _keras_each(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    return _tensorflow_each(leaves, c, norm) if c > 0 else list(leaves)


def _optax(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves)
    n = _norm_in(dtype, norm(leaves))
    if n < _as(dtype, c):
        return list(leaves)
    return [_times(leaf / _as(_real(leaf), n), _as(_real(leaf), c)) for leaf in leaves]


def _torch(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves)
    number = np.float64 if dtype == np.float64 else np.float32
    each = [_as(_real(leaf), _norm_in(np.dtype(number), norm([leaf]))) for leaf in leaves]
    n = number(_as(dtype, _norm_in(np.dtype(number), norm(each)))) + number(1e-6)
    inverse = _as(dtype, number(1) / number(_as(dtype, n)))
    factor = np.minimum(_as(dtype, number(inverse) * number(c)), _as(dtype, 1))
    return [_times(leaf, factor) for leaf in leaves]


def _mlx(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves, "float16")
    n = _norm_in(dtype, norm(leaves))
    factor = np.minimum(_as(dtype, c) / (n + _as(dtype, 1e-6)), _as(dtype, 1))
    return [_times(leaf, np.float32(factor) if leaf.dtype == np.float16 else factor) for leaf in leaves]


def _paddle(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    dtype = _together(leaves, "float16", "bfloat16")
    limit = _as(dtype, c)
    factor = limit / np.maximum(_norm_in(dtype, norm(leaves)), limit)
    return [_times(leaf, _as(_real(leaf), factor)) for leaf in leaves]


def _paddle_each(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
    clipped = []
    for leaf in leaves:
        dtype = _together([leaf], "float16", "bfloat16")
        n, limit = _norm_in(dtype, norm([leaf])), _as(dtype, c)
        epsilon = _as(dtype, 1e-6 if n <= 1e-30 else 0)
        clipped.append(leaf if n <= limit else _times(leaf, _as(_real(leaf), limit / (n + epsilon))))
    return clipped


def _one_by_one(clip: Clip) -> Clip:
    return lambda leaves, c, norm: [clip([leaf], c, norm)[0] for leaf in leaves]


TOGETHER: dict[str, Clip] = {
    "tensorflow": _tensorflow,
    "keras": _keras,
    "optax": _optax,
    "torch": _torch,
    "mlx": _mlx,
    "paddle": _paddle,
}
EACH: dict[str, Clip] = {
    "tensorflow": _tensorflow_each,
    "keras": _keras_each,
    "optax": _one_by_one(_optax),
    "torch": _one_by_one(_torch),
    "mlx": _one_by_one(_mlx),
    "paddle": _paddle_each,
}
