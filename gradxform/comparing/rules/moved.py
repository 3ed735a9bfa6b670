"""Values that are the same ones in another place: axes, blocks, heads, directions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gradxform.comparing.layouts import blocks

_HEADS = (2, 3, 4, 6, 8, 12, 16)
_GATES = (3, 4)


def moved(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    """A kind and words for what leads from `a` to `b`, if something does to within a relative distance."""
    if a.shape != b.shape or not a.any() or _apart(a, b) <= limit:
        return None
    return _axes(a, b, limit) or _heads(a, b, limit) or _blocks(a, b, limit) or _flipped(a, b, limit)


def _apart(a: Any, b: Any) -> float:
    scale = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / scale if scale else 1.0


def _axes(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    for axes in itertools.permutations(range(a.ndim)) if 1 < a.ndim <= 5 else ():
        if tuple(a.shape[axis] for axis in axes) == b.shape and axes != tuple(range(a.ndim)):
            if _apart(a.transpose(axes), b) <= limit:
                return ("transposed", "transposed") if axes == (1, 0) else ("axes", f"with its axes in order {axes}")
    return None


def _blocks(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    found = blocks(a, b)
    if found is None:
        return None
    order = ", ".join(map(str, found.order))
    words = f"with its {len(found.order)} blocks along axis {found.axis} in order {order}"
    return ("gates", f"{words}: gates") if len(found.order) in _GATES else ("heads", f"{words}: heads")


def _heads(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    """Heads that are the outer part of an axis in one, and the inner part in the other."""
    for axis, heads in itertools.product(range(a.ndim), _HEADS):
        size = a.shape[axis]
        for outer in {heads, size // heads} if size % heads == 0 and size > heads else ():
            split = a.reshape(*a.shape[:axis], outer, size // outer, *a.shape[axis + 1 :])
            if _apart(split.swapaxes(axis, axis + 1).reshape(a.shape), b) <= limit:
                return "heads", f"with {heads} heads split the other way along axis {axis}"
    return None


def _flipped(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    for count in range(1, min(a.ndim, 4) + 1):
        for axes in itertools.combinations(range(a.ndim), count):
            if _apart(np.flip(a, axes), b) <= limit:
                return "flipped", f"flipped along axes {axes}: a convolution in one, a correlation in the other"
    return None
