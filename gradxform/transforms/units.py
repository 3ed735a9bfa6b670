"""Units of a layer: the axes of a kernel that hold the inputs of one output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform.core import arguments
from gradxform.core.tree import Tree
from gradxform.core.where import matches
from gradxform.numerics.matrices import Sides

LAYOUTS: dict[str, Callable[[int], Sequence[int]]] = {
    "keras": lambda rank: range(rank - 1),
    "torch": lambda rank: range(1, rank),
}
"""The input axes of kernels of some rank."""
_FORMS = (
    "'keras' (all axes but the last; also Flax, Haiku), 'torch' (all but the first; also Equinox), a tuple of ints, a "
    "mapping from a path glob to one, or a function of path and leaf"
)


def check(transform: str, axes: Any, pairs: bool = False) -> Any:
    """Refuse values that cannot be axes, when the transform is built; with `pairs`, allow (inputs, outputs)."""
    if pairs and _is_pair(axes):
        return tuple(arguments.axes(transform, side) for side in axes)
    if isinstance(axes, str) and axes not in LAYOUTS:
        raise ValueError(f"{transform}: axes must be {_FORMS}; got {axes!r}")
    if isinstance(axes, Mapping):
        return {pattern: check(transform, found, pairs) for pattern, found in axes.items()}
    if axes is None or isinstance(axes, str) or callable(axes):
        return axes
    return arguments.axes(transform, axes)


def shape_of(transform: str, view: Tree, i: int, whole: bool = False) -> tuple[int | None, ...]:
    """Static shape of a leaf; with `whole`, all lengths must be known.

    Raises:
        ValueError: the rank or a length is unknown; names the path.
    """
    shape = view.shape(i)
    if shape is None or (whole and None in shape):
        what, path = "rank" if shape is None else "shape", view.source.path(i)
        raise ValueError(f"{transform}: the {what} of {path!r} is unknown in the graph; set its static shape")
    return shape


def axes(transform: str, given: Any, view: Tree) -> dict[int, tuple[int, ...]]:
    """Axes of each active leaf, by position; all axes if it has fewer than two."""
    shapes = {i: shape_of(transform, view, i) for i in view.chosen}
    own = _given(transform, given, view, [i for i, shape in shapes.items() if len(shape) > 1])
    return {i: _of(transform, own[i], view, i) if i in own else tuple(range(len(shape))) for i, shape in shapes.items()}


def sides(transform: str, given: Any, view: Tree) -> list[Sides]:
    """Input and output axes of each active leaf's matrices; those in neither stack matrices.

    Raises:
        ValueError: a vector or a number, an unknown shape, or axes that leave no input or no output; names the path.
    """
    for i in view.chosen:
        if len(shape := shape_of(transform, view, i, whole=True)) < 2:
            what = f"the gradient at {view.source.path(i)!r} of shape {shape} is not a matrix"
            raise ValueError(f"{transform}: {what}; choose with masked({transform}(...), where) or partition(...)")
    own = _given(transform, given, view, view.chosen, pairs=True)
    return [_sides(transform, own[i], view, i) for i in view.chosen]


def _sides(transform: str, given: Any, view: Tree, i: int) -> Sides:
    """Input and output axes of one leaf."""
    shape = shape_of(transform, view, i)
    rank = len(shape)
    if given is None and rank > 2:
        raise ValueError(
            f"{transform}: {view.source.path(i)!r} of shape {shape} is not one matrix; give its axes: 'keras' (the "
            "last is the output), 'torch' (the first is), or ((inputs), (outputs)), whose other axes stack matrices"
        )
    pair = given if _is_pair(given) else ("torch" if given is None else given,)
    there = all(isinstance(side, str) or all(-rank <= axis < rank for axis in side) for side in pair)
    own = [_of(transform, side, view, i) for side in pair] if there else [()]
    inputs, outputs = own if len(own) == 2 else (own[0], tuple(axis for axis in range(rank) if axis not in own[0]))
    if not inputs or not outputs or set(inputs) & set(outputs):
        path = view.source.path(i)
        hint = f"; write axes='torch' (rows are outputs), 'keras' (columns are) or {{{path!r}: 'torch', '**': ...}}"
        raise ValueError(
            f"{transform}: axes {given} must give inputs and outputs of {path!r} of shape {shape}, different axes from "
            f"0 to {rank - 1}{hint * (rank == 2)}"
        )
    return inputs, outputs


def _is_pair(axes: Any) -> bool:
    """Whether these are input and output axes."""
    return isinstance(axes, (list, tuple)) and len(axes) == 2 and all(isinstance(side, (list, tuple)) for side in axes)


def _of(transform: str, given: Any, view: Tree, i: int) -> tuple[int, ...]:
    """Axes of one leaf with at least two axes."""
    if given is None:
        raise ValueError(f"{transform}: libraries disagree on the input axes of {view.source.path(i)!r}; axes={_FORMS}")
    shape = shape_of(transform, view, i)
    rank = len(shape)
    own = LAYOUTS[given](rank) if isinstance(given, str) else given
    there = sorted({axis % rank for axis in own if -rank <= axis < rank})
    if len(there) < len(own):
        must = f"must be different axes of {view.source.path(i)!r} of shape {shape}, from 0 to {rank - 1}"
        raise ValueError(f"{transform}: axes {given} {must}")
    return tuple(there)


def _given(transform: str, given: Any, view: Tree, places: Sequence[int], pairs: bool = False) -> dict[int, Any]:
    """What a mapping of patterns or a function gives for each of some leaves; other axes for all of them."""
    if not (isinstance(given, Mapping) or callable(given)):
        return dict.fromkeys(places, given)
    paths, found = view.source.paths, {}
    for i in places:
        path, own = paths[i] or view.source.path(i), given
        if isinstance(given, Mapping):
            fitting = [axes for pattern, axes in given.items() if matches(pattern, [path], alone=True)[0]]
            if not fitting:
                raise ValueError(f"{transform}: no pattern of axes matches {path!r}; the patterns are {list(given)}")
            own = fitting[0]
        found[i] = check(transform, own(path, view.leaves[i]), pairs) if callable(own) else own
    return found
