"""Units of a layer: over which axes of a kernel the inputs of one output lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradxform.core import arguments
from gradxform.core.flat import Flat
from gradxform.core.readings import by_glob

LAYOUTS = ("keras", "torch")


def check(transform: str, axes: Any) -> Any:
    """Refuse what can be no axes, when the transform is built."""
    if isinstance(axes, str) and axes not in LAYOUTS:
        raise ValueError(
            f"{transform}: axes must be 'keras' (a kernel's last axis is its outputs), 'torch' (its first one is), a "
            f"tuple of ints, a mapping from a glob to one, or a function of path and leaf; got {axes!r}"
        )
    if isinstance(axes, Mapping):
        return {pattern: check(transform, found) for pattern, found in axes.items()}
    if axes is None or isinstance(axes, str) or callable(axes):
        return axes
    return arguments.axes(transform, axes)


def axes(transform: str, given: Any, view: Flat) -> dict[int, tuple[int, ...]]:
    """The axes for each active leaf, by its place; all axes for one that has fewer than two."""
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
    """The axes for one leaf of two axes and more."""
    if isinstance(given, Mapping):
        given = _matching(transform, given, path)
    if callable(given):
        given = check(transform, given(path, leaf))
    if given is None:
        raise ValueError(
            f"{transform}: which axes of {path!r} are its inputs? Libraries disagree: give axes='keras' (the last axis "
            "is the outputs; Flax, Haiku), axes='torch' (the first one is; Equinox), a tuple, a mapping from a glob on "
            "the path, or a function of path and leaf"
        )
    if rank is None:
        raise ValueError(f"{transform}: the number of axes of {path!r} is not known before it runs; set its shape")
    if given == "keras":
        return tuple(range(rank - 1))
    if given == "torch":
        return tuple(range(1, rank))
    there = sorted({axis % rank for axis in given if -rank <= axis < rank})
    if len(there) < len(given):
        raise ValueError(f"{transform}: axes {given} are not {len(given)} axes of {path!r}, which has {rank}")
    return tuple(there)


def _matching(transform: str, given: Mapping[str, Any], path: str) -> Any:
    for pattern, found in given.items():
        if by_glob(pattern, [path], rooted=False, alone=True)[0]:
            return found
    patterns: Sequence[str] = list(given)
    raise ValueError(f"{transform}: axes has no pattern for {path!r}; its patterns are {patterns}")
