"""Values that are the same ones in another place: axes, blocks, heads, directions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradxform.comparing.layouts import COUNTS, Layout, Shape, apart, blocks, candidates

Way = Callable[[Any], Any]


def moved(a: Any, b: Any, limit: float) -> tuple[Way, str] | None:
    """What leads from `a` to `b`, and words for it, if something does to within a relative distance."""
    if a.shape != b.shape or not a.any() or apart(a, b) <= limit:
        return None
    return next((found for found in _ways(a, b) if apart(found[0](a), b) <= limit), None)


def _ways(a: Any, b: Any) -> Iterator[tuple[Way, str]]:
    """Layouts, heads, blocks and directions."""
    for layout in candidates(a.shape, b.shape):
        if layout.axes is not None:
            yield layout.of, "transposed" if layout.axes == (1, 0) else f"with its axes in order {layout.axes}"
    for axis, heads in itertools.product(range(a.ndim), COUNTS):
        size = a.shape[axis]
        for outer in {heads, size // heads} if size % heads == 0 and size > heads else ():
            split = (*a.shape[:axis], outer, size // outer, *a.shape[axis + 1 :])
            words = f"with {heads} heads split the other way along axis {axis}"
            yield functools.partial(_swapped, split=split, axis=axis), words
    if (found := blocks(a, b)) is not None:
        axis, *order = found
        words = f"with its {len(order)} blocks along axis {axis} in order {', '.join(map(str, order))}: gates or heads"
        yield Layout(gates=found).of, words
    for count in range(1, min(a.ndim, 4) + 1):
        for axes in itertools.combinations(range(a.ndim), count):
            words = f"flipped along axes {axes}: a convolution in one, a correlation in the other"
            yield functools.partial(np.flip, axis=axes), words


def _swapped(x: Any, split: Shape, axis: int) -> Any:
    return x.reshape(split).swapaxes(axis, axis + 1).reshape(x.shape)
