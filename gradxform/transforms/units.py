"""Units of a layer: the axes of a kernel that hold the inputs of one output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradxform.core import arguments
from gradxform.core.tree import Tree
from gradxform.core.where import matches

LAYOUTS = ("keras", "torch")


def check(transform: str, axes: Any, pairs: bool = False) -> Any:
    """Refuse values that cannot be axes, when the transform is built; with `pairs`, allow (inputs, outputs)."""
    if pairs and _is_pair(axes):
        return tuple(arguments.axes(transform, side) for side in axes)
    if isinstance(axes, str) and axes not in LAYOUTS:
        raise ValueError(
            f"{transform}: axes must be 'keras' (all but the last), 'torch' (all but the first), a tuple of ints, a "
            f"mapping from a path glob to one, or a function of path and leaf; got {axes!r}"
        )
    if isinstance(axes, Mapping):
        return {pattern: check(transform, found, pairs) for pattern, found in axes.items()}
    if axes is None or isinstance(axes, str) or callable(axes):
        return axes
    return arguments.axes(transform, axes)


def axes(transform: str, given: Any, view: Tree) -> dict[int, tuple[int, ...]]:
    """Axes of each active leaf, by position; all axes if it has fewer than two."""
    found = {}
    for i in view.chosen:
        shape = view.backend.shape(view.leaves[i])
        if shape is not None and len(shape) < 2:
            found[i] = tuple(range(len(shape)))
        else:
            path = view.source.path(i)
            found[i] = _of(transform, _given(transform, given, path, view.leaves[i]), path, shape)
    return found


def sides(transform: str, given: Any, view: Tree) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Input and output axes of each active leaf's matrices; those in neither stack matrices.

    Raises:
        ValueError: a vector or a number, an unknown shape, or axes that leave no input or no output; names the path.
    """
    found = []
    for i in view.chosen:
        path, shape = view.source.path(i), view.backend.shape(view.leaves[i])
        if shape is None or None in shape:
            raise ValueError(f"{transform}: the shape of {path!r} is unknown in the graph; set its static shape")
        if len(shape) < 2:
            raise ValueError(
                f"{transform}: the gradient at {path!r} has shape {shape} and is not a matrix; choose the matrices "
                f"with masked({transform}(...), where) or partition(...)"
            )
        own = _given(transform, given, path, view.leaves[i], pairs=True)
        if own is None and len(shape) > 2:
            raise ValueError(
                f"{transform}: {path!r} of shape {shape} is not one matrix; give its axes: 'keras' (the last is the "
                "output), 'torch' (the first is), or ((inputs), (outputs)), whose other axes stack matrices"
            )
        found.append(_sides(transform, own, path, shape))
    return found


def _sides(
    transform: str, given: Any, path: str, shape: tuple[int | None, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Input and output axes of one leaf."""
    rank = len(shape)
    pair = given if _is_pair(given) else ("torch" if given is None else given,)
    there = all(isinstance(side, str) or all(-rank <= axis < rank for axis in side) for side in pair)
    own = [_of(transform, side, path, shape) for side in pair] if there else [()]
    inputs, outputs = own if len(own) == 2 else (own[0], tuple(axis for axis in range(rank) if axis not in own[0]))
    if not inputs or not outputs or set(inputs) & set(outputs):
        hint = f"; write axes='torch' (rows are outputs), 'keras' (columns are) or {{{path!r}: 'torch', '**': ...}}"
        raise ValueError(
            f"{transform}: axes {given} must give inputs and outputs of {path!r} of shape {shape}, different axes from "
            f"0 to {rank - 1}{hint * (rank == 2)}"
        )
    return inputs, outputs


def _is_pair(axes: Any) -> bool:
    """Whether these are input and output axes."""
    return isinstance(axes, (list, tuple)) and len(axes) == 2 and all(isinstance(side, (list, tuple)) for side in axes)


def _of(transform: str, given: Any, path: str, shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    """Axes of one leaf with at least two axes."""
    if given is None:
        raise ValueError(
            f"{transform}: give the input axes of {path!r}, since libraries disagree: axes='keras' (all but the last; "
            "also Flax, Haiku), axes='torch' (all but the first; also Equinox), a tuple, a mapping from a path glob to "
            "a tuple, or a function of path and leaf"
        )
    if shape is None:
        raise ValueError(f"{transform}: the rank of {path!r} is unknown in the graph; set its static shape")
    rank = len(shape)
    if given == "keras":
        return tuple(range(rank - 1))
    if given == "torch":
        return tuple(range(1, rank))
    there = sorted({axis % rank for axis in given if -rank <= axis < rank})
    if len(there) < len(given):
        raise ValueError(
            f"{transform}: axes {given} must be different axes of {path!r} of shape {shape}, from 0 to {rank - 1}"
        )
    return tuple(there)


def _given(transform: str, given: Any, path: str, leaf: Any, pairs: bool = False) -> Any:
    """What a mapping of patterns or a function gives for a leaf; other axes unchanged."""
    if isinstance(given, Mapping):
        own = [each for pattern, each in given.items() if matches(pattern, [path], alone=True)[0]]
        if not own:
            raise ValueError(f"{transform}: no pattern of axes matches {path!r}; the patterns are {list(given)}")
        given = own[0]
    return check(transform, given(path, leaf), pairs) if callable(given) else given
