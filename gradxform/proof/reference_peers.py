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


def _by_factor(factor: Callable[..., Any], *widened: str) -> Clip:
    """Multiply by a factor of the norm, the limit and a function that rounds to the dtype of the norm."""

    def clip(leaves: Sequence[Any], c: float, norm: Callable[..., Any]) -> list[Any]:
        dtype = _together(leaves, *widened)
        found = factor(_norm_in(dtype, norm(leaves)), c, lambda value: _as(dtype, value))
        return [_times(leaf, _as(_real(leaf), found)) for leaf in leaves]

    return clip


def _tensorflow(n: Any, c: float, r: Callable[..., Any]) -> Any:
    return r(c) * np.minimum(r(1) / n, r(1) / r(c)) if np.isfinite(n) else r(np.nan)


def _keras(n: Any, c: float, r: Callable[..., Any]) -> Any:
    return r(c) * np.minimum(r(1) / n, r(np.float64(1) / c)) + (n - n) if c > 0 else r(1)


def _paddle(n: Any, c: float, r: Callable[..., Any]) -> Any:
    return r(c) / np.maximum(n, r(c))


def _paddle_each(n: Any, c: float, r: Callable[..., Any]) -> Any:
    return r(1) if n <= r(c) else r(c) / (n + r(1e-6 if n <= 1e-30 else 0))


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


def _one_by_one(clip: Clip) -> Clip:
    return lambda leaves, c, norm: [clip([leaf], c, norm)[0] for leaf in leaves]


TOGETHER: dict[str, Clip] = {
    "tensorflow": _by_factor(_tensorflow),
    "keras": _by_factor(_keras),
    "optax": _optax,
    "torch": _torch,
    "mlx": _mlx,
    "paddle": _by_factor(_paddle, "float16", "bfloat16"),
}
EACH: dict[str, Clip] = {
    "tensorflow": _tensorflow_each,
    "keras": _keras_each,
    "optax": _one_by_one(_optax),
    "torch": _one_by_one(_torch),
    "mlx": _one_by_one(_mlx),
    "paddle": _one_by_one(_by_factor(_paddle_each, "float16", "bfloat16")),
}
