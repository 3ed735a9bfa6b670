"""Values that are the same ones in another place: axes, blocks, heads, directions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradxform.comparing.layouts import COUNTS, apart, blocks, candidates, reordered

_GATES = (3, 4)


def moved(a: Any, b: Any, limit: float) -> tuple[str, str] | None:
    """A kind and words for what leads from `a` to `b`, if something does to within a relative distance."""
    if a.shape != b.shape or not a.any() or apart(a, b) <= limit:
        return None
    return next(((kind, words) for array, kind, words in _ways(a, b) if apart(array, b) <= limit), None)


def _ways(a: Any, b: Any) -> Iterator[tuple[Any, str, str]]:
    """The array in other places, a kind and words."""
    for layout in candidates(a.shape, b.shape):
        if layout.axes is not None:
            transposed = layout.axes == (1, 0)
            words = "transposed" if transposed else f"with its axes in order {layout.axes}"
            yield layout.of(a), "transposed" if transposed else "axes", words
    for axis, heads in itertools.product(range(a.ndim), COUNTS):
        size = a.shape[axis]
        for outer in {heads, size // heads} if size % heads == 0 and size > heads else ():
            split = a.reshape(*a.shape[:axis], outer, size // outer, *a.shape[axis + 1 :])
            words = f"with {heads} heads split the other way along axis {axis}"
            yield split.swapaxes(axis, axis + 1).reshape(a.shape), "heads", words
    found = blocks(a, b)
    if found is not None:
        axis, *order = found
        kind, shown = "gates" if len(order) in _GATES else "heads", ", ".join(map(str, order))
        words = f"with its {len(order)} blocks along axis {axis} in order {shown}: {kind}"
        yield reordered(a, found), kind, words
    for count in range(1, min(a.ndim, 4) + 1):
        for axes in itertools.combinations(range(a.ndim), count):
            words = f"flipped along axes {axes}: a convolution in one, a correlation in the other"
            yield np.flip(a, axes), "flipped", words
