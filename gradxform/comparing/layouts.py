"""Where the values of a leaf stand: a part of it, its blocks in another order, its axes permuted, its shape changed."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import EXACT, FEWEST, SAME_VALUES
from gradxform.functions.conventions import usual_axes

Shape = tuple[int, ...]
Gates = tuple[int, ...]
"""An axis, and the order in which blocks of one length along it are taken."""
_MOST_AXES, _MOST, _BLOCK = 5, 1 << 20, 1 << 11
"""Axes that are permuted, and elements that are enough to tell layouts, and to tell blocks."""
COUNTS = (2, 3, 4, 6, 8, 12, 16)
"""Numbers of blocks that are looked for: gates, heads, queries with keys and values."""


class Layout(NamedTuple):
    """What is done to an array, in this order, so that it stands beside another."""

    part: tuple[int, ...] | None = None
    """Axis, start and stop of what is taken of it; a fourth number says in how many equal sections, such as heads."""
    gates: Gates | None = None
    axes: tuple[int, ...] | None = None
    shape: Shape | None = None

    def of(self, array: Any) -> Any:
        """The array in this layout, without a copy where there need be none.

        Raises:
            ValueError: the layout does not fit; or IndexError or ZeroDivisionError.
        """
        if self.part is not None:
            axis, start, stop, count = (*self.part, 1)[:4]
            before, size, after = array.shape[:axis], array.shape[axis] // count, array.shape[axis + 1 :]
            if not 0 <= start < stop <= size:
                raise ValueError(f"a part from {start} to {stop} of {size}")
            array = array.reshape(*before, count, size, *after)
            array = array[(slice(None),) * (axis + 1) + (slice(start, stop),)]
            array = array.reshape(*before, count * (stop - start), *after)
        if self.gates is not None:
            axis, *order = self.gates
            if sorted(order) != list(range(len(order))):
                raise ValueError(f"{order} are not all blocks, each once")
            parts = np.split(array, len(order), axis=axis)
            array = np.concatenate([parts[i] for i in order], axis=axis)
        if self.axes is not None:
            array = array.transpose(self.axes)
        return array if self.shape is None else array.reshape(self.shape)

    @property
    def words(self) -> str:
        """What is done, for people; empty if nothing is."""
        words = [f"part {self.slices}"] if self.part else []
        words += [f"blocks {self.gates[1:]} of axis {self.gates[0]}"] if self.gates else []
        words += ["transposed" if self.axes == (1, 0) else f"axes {self.axes}"] if self.axes else []
        return ", ".join([*words, *([f"reshaped to {self.shape}"] if self.shape else [])])

    @property
    def slices(self) -> str:
        """The part that is meant, as it is written in Python; empty if it is the whole."""
        if self.part is None:
            return ""
        axis, start, stop, *sections = self.part
        of = f", {sections[0]} times" if sections else ""
        return f"[{', '.join([':'] * axis + [f'{start}:{stop}'])}{of}]"


SAME = Layout()


def candidates(shape: Shape, wanted: Shape) -> Iterator[Layout]:
    """The layouts that make one shape of another: no change first, then permutations of axes, heads split or merged."""
    same = tuple(range(len(shape)))
    if math.prod(shape) != math.prod(wanted):
        return
    for axes in itertools.permutations(same) if len(shape) <= _MOST_AXES else [same]:
        moved = tuple(shape[axis] for axis in axes)
        one, other = ({1, *itertools.accumulate(sizes, operator.mul)} for sizes in (moved, wanted))
        if one <= other or one >= other:  # the sizes of one are products of adjacent sizes of the other
            yield Layout(axes=None if axes == same else axes, shape=None if moved == wanted else wanted)


def conventional(name_a: str, name_b: str, shape: Shape, wanted: Shape) -> Layout | None:
    """The layout that the last names of two paths stand for; None where the shapes do not fit."""
    found = {layout.axes or tuple(range(len(shape))): layout for layout in candidates(shape, wanted)}
    return next((found[x] for x in usual_axes(name_a, name_b, len(shape), len(wanted)) if x in found), None)


def few(items: Any, count: int) -> Any:
    """Some of many items or elements, evenly spaced."""
    return items[:: max(1, len(items) // count)]


def reals(array: Any) -> Any:
    """An array in float64; complex numbers are two along the last axis."""
    array = np.asarray(array)
    if array.dtype.kind == "c":
        return np.atleast_1d(array.astype(np.complex128, order="C")).view(np.float64)
    return array.astype(np.float64, copy=False)


def cosine(a: Any, b: Any) -> float:
    """The cosine of two arrays as vectors; 1.0 of two zeros, 0.0 of one; of large ones, by some elements."""
    a, b = (reals(few(x.reshape(-1), _MOST)).ravel() for x in (a, b))
    if a.size != b.size:  # one is complex
        return 0.0
    with np.errstate(all="ignore"):
        scale = np.sqrt(a @ a) * np.sqrt(b @ b)
        return float(a @ b / scale if scale else a.any() == b.any())


def apart(a: Any, b: Any) -> float:
    """The distance of two arrays, relative to the second; 1 beside zeros."""
    scale = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / scale if scale else 1.0


def hold_the_same(one: Any, other: Any, limit: float) -> bool:
    """Whether two arrays of one size hold the same values, in any order."""
    one, other = (np.sort(np.asarray(x, np.float64), axis=None) for x in (one, other))
    largest = max(np.abs(one).max(initial=0.0), np.abs(other).max(initial=0.0))
    return np.allclose(one, other, rtol=0, atol=limit * largest, equal_nan=True)


def blocks(a: Any, b: Any) -> Gates | None:
    """The order of blocks of `a` along an axis that gives `b`; None if there is none but the order that they have."""
    for axis, count in itertools.product(range(a.ndim), COUNTS):
        if a.shape[axis] % count == 0:
            parts, wanted = ([few(x.reshape(-1), _BLOCK) for x in np.split(side, count, axis)] for side in (a, b))
            like = np.array([[cosine(part, block) for part in parts] for block in wanted])
            order = like.argmax(1).tolist()
            if like.max(1).min() >= SAME_VALUES and sorted(order) == [*range(count)] != order:
                return (axis, *order)
    return None


def moved(a: Any, b: Any, limit: float) -> tuple[Callable[[Any], Any], str] | None:
    """What leads from `a` to `b`, and words for it, if something does to within a relative distance."""
    if apart(a, b) <= limit:
        return None
    for layout in candidates(a.shape, b.shape):
        if layout.axes is not None and apart(layout.of(a), b) <= limit:
            return layout.of, "transposed" if layout.axes == (1, 0) else f"with its axes in order {layout.axes}"
    gates = blocks(a, b)
    if gates is not None and apart(Layout(gates=gates).of(a), b) <= limit:
        order = ", ".join(map(str, gates[1:]))
        return Layout(gates=gates).of, f"with its blocks along axis {gates[0]} in order {order}: gates or heads"
    orders = [np.argsort(x, axis=None) for x in (a, b)]
    values, others = (x.reshape(-1)[order] for x, order in zip((a, b), orders, strict=True))
    apart_from_next = np.diff(others) > EXACT * np.abs(others).max(initial=0.0)
    if not hold_the_same(values, others, EXACT) or np.count_nonzero(apart_from_next) < FEWEST:
        return None
    places = orders[0][np.argsort(orders[1])]
    words = "with its elements in another order: heads or gates, rows, or a convolution for a correlation"
    return lambda x: x.reshape(-1)[places].reshape(x.shape), words
