"""Where the values of a leaf stand: a part of it, its blocks in another order, its axes permuted, its shape changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gradxform.comparing.constants import SAME_VALUES
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
            ValueError: the layout does not fit.
        """
        try:
            return self._of(array)
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise ValueError(f"the layout {self.words!r} does not fit the shape {array.shape}") from error

    def _of(self, array: Any) -> Any:
        if self.part is not None:
            axis, start, stop, *sections = self.part
            before, size, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
            count = sections[0] if sections else 1
            if not 0 <= start < stop <= size // count:
                raise ValueError(f"a part from {start} to {stop} of {size // count}")
            array = array.reshape(*before, count, size // count, *after)
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
    if math.prod(shape) != math.prod(wanted):
        return
    for axes in itertools.permutations(range(len(shape))) if len(shape) <= _MOST_AXES else [tuple(range(len(shape)))]:
        moved = tuple(shape[axis] for axis in axes)
        if moved == wanted or _refines(moved, wanted) or _refines(wanted, moved):
            same = axes == tuple(range(len(shape)))
            yield Layout(axes=None if same else axes, shape=None if moved == wanted else wanted)


def _refines(fine: Shape, coarse: Shape) -> bool:
    """Whether each size of one shape is the product of adjacent sizes of the other."""
    sizes = list(fine)
    for size in coarse:
        product = 1
        while sizes and product < size:
            product *= sizes.pop(0)
        if product != size:
            return False
    return all(size == 1 for size in sizes)


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


def blocks(a: Any, b: Any, least: float = SAME_VALUES) -> Gates | None:
    """The order of blocks of `a` along an axis that gives `b`; None if there is none but the order that they have."""
    for axis in range(a.ndim):
        for count in COUNTS:
            if a.shape[axis] % count == 0:
                parts, wanted = ([few(x.reshape(-1), _BLOCK) for x in np.split(side, count, axis)] for side in (a, b))
                like = np.array([[cosine(part, block) for part in parts] for block in wanted])
                order = like.argmax(1).tolist()
                if like.max(1).min() >= least and sorted(order) == [*range(count)] != order:
                    return (axis, *order)
    return None


def moved(a: Any, b: Any, limit: float) -> tuple[Callable[[Any], Any], str] | None:
    """What leads from `a` to `b`, and words for it, if something does to within a relative distance."""
    if apart(a, b) <= limit:
        return None
    return next((found for found in _ways(a, b) if apart(found[0](a), b) <= limit), None)


def _ways(a: Any, b: Any) -> Iterator[tuple[Callable[[Any], Any], str]]:
    """Layouts, heads, blocks and directions."""
    for layout in candidates(a.shape, b.shape):
        if layout.axes is not None:
            yield layout.of, "transposed" if layout.axes == (1, 0) else f"with its axes in order {layout.axes}"
    for axis, heads in itertools.product(range(a.ndim), COUNTS):
        size = a.shape[axis]
        for outer in {heads, size // heads} if size % heads == 0 and size > heads else ():
            split = (*a.shape[:axis], outer, size // outer, *a.shape[axis + 1 :])
            words = f"with {heads} heads split the other way along axis {axis}"
            yield partial(_swapped, split=split, axis=axis), words
    if (found := blocks(a, b)) is not None:
        axis, *order = found
        words = f"with its {len(order)} blocks along axis {axis} in order {', '.join(map(str, order))}: gates or heads"
        yield Layout(gates=found).of, words
    for count in range(1, min(a.ndim, 4) + 1):
        for axes in itertools.combinations(range(a.ndim), count):
            words = f"flipped along axes {axes}: a convolution in one, a correlation in the other"
            yield partial(np.flip, axis=axes), words


def _swapped(x: Any, split: Shape, axis: int) -> Any:
    return x.reshape(split).swapaxes(axis, axis + 1).reshape(x.shape)
