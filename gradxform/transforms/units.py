"""Units of a layer: the axes of a kernel that hold the inputs of one output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradxform.core import arguments
from gradxform.core.flat import Flat
from gradxform.core.readings import by_glob

LAYOUTS = ("keras", "torch")


def check(transform: str, axes: Any) -> Any:
    """Refuse values that cannot be axes, when the transform is built."""
    if isinstance(axes, str) and axes not in LAYOUTS:
        raise ValueError(
            f"{transform}: axes must be 'keras' (all but the last), 'torch' (all but the first), a tuple of ints, a "
            f"mapping from a path glob to one, or a function of path and leaf; got {axes!r}"
        )
    if isinstance(axes, Mapping):
        return {pattern: check(transform, found) for pattern, found in axes.items()}
    if axes is None or isinstance(axes, str) or callable(axes):
        return axes
    return arguments.axes(transform, axes)


def axes(transform: str, given: Any, view: Flat) -> dict[int, tuple[int, ...]]:
    """Axes of each active leaf, by position; all axes if it has fewer than two."""
    found = {}
    for i in view.chosen:
        shape = view.backend.shape(view.leaves[i])
        if shape is not None and len(shape) < 2:
            found[i] = tuple(range(len(shape)))
            continue
        path = view.source.path(i)
        found[i] = _of(transform, given, path, view.leaves[i], None if shape is None else len(shape))
    return found


def _of(transform: str, given: Any, path: str, leaf: Any, rank: int | None) -> tuple[int, ...]:
    """Axes of one leaf with at least two axes."""
    if isinstance(given, Mapping):
        given = _matching(transform, given, path)
    if callable(given):
        given = check(transform, given(path, leaf))
    if given is None:
        raise ValueError(
            f"{transform}: give the input axes of {path!r}, since libraries disagree: axes='keras' (all but the last; "
            "also Flax, Haiku), axes='torch' (all but the first; also Equinox), a tuple, a mapping from a path glob to "
            "a tuple, or a function of path and leaf"
        )
    if rank is None:
        raise ValueError(f"{transform}: the rank of {path!r} is unknown in the graph; set its static shape")
    if given == "keras":
        return tuple(range(rank - 1))
    if given == "torch":
        return tuple(range(1, rank))
    there = sorted({axis % rank for axis in given if -rank <= axis < rank})
    if len(there) < len(given):
        raise ValueError(f"{transform}: axes {given} must be {len(given)} different axes of {path!r}, which has {rank}")
    return tuple(there)


def _matching(transform: str, given: Mapping[str, Any], path: str) -> Any:
    for pattern, found in given.items():
        if by_glob(pattern, [path], rooted=False, alone=True)[0]:
            return found
    patterns: Sequence[str] = list(given)
    raise ValueError(f"{transform}: no pattern of axes matches {path!r}; the patterns are {patterns}")
