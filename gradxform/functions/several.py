"""Several trees of gradients: read as one list of columns, measured by inner products, and merged into one tree."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend, pairs
from gradxform.core import align
from gradxform.core.leaves import REAL, put
from gradxform.core.tree import Tree
from gradxform.numerics import Array, elementwise, formulas, subsets


class Several(NamedTuple):
    """Trees of one structure; for each leaf, the arrays of the trees that have it."""

    backend: Backend
    structure: Any
    number: int
    """How many trees there are."""
    columns: list[list[Array]]
    """For each leaf, one array per tree that has it; None counts as zero."""
    owners: list[list[int]]


def several(name: str, trees: Any) -> Several:
    """Flatten a list of trees.

    Raises:
        TypeError: The argument is one tree, or not a list of trees.
        ValueError: There are no trees, or keys, shapes or dtypes differ; the message gives the first
            different path.
    """
    if not isinstance(trees, (list, tuple)) or hasattr(trees, "_fields"):
        raise TypeError(
            f"{name}: expected a list of trees, one per task, got one tree (a {type(trees).__name__}); write "
            f"{name}([first, second, ...])"
        )
    views = [align.gradients_view(name, tree) for tree in trees]
    found = [(rank, view) for rank, view in enumerate(views) if view is not None]
    if not found:
        raise ValueError(f"{name}: expected a list of trees with gradients, found none in {trees!r:.80}")
    lead, first = found[0]
    columns: list[list[Array]] = [[] for _ in first.source.slots]
    owners: list[list[int]] = [[] for _ in first.source.slots]
    for rank, tree in enumerate(trees):
        view = views[rank] or first
        if view.backend is not first.backend:
            raise ValueError(
                f"{name}: tree {lead} has arrays of {first.backend.title}, tree {rank} of "
                f"{view.backend.title}; convert one"
            )
        names = f"{name}: tree {lead}", f"{name}: tree {rank}"
        order = align.aligned(first, tree, names, "Give each task the gradients of the same parameters").order
        if views[rank] is None:
            continue
        _check_real(name, rank, view)
        whole = view.dense()
        for given, leaf in zip(whole.source.kept, whole.leaves, strict=True):
            slot = given if order is None else order.index(given)
            if columns[slot] and not _alike(view.backend, leaf, columns[slot][0]):
                path = whole.source.find_paths()[given]
                both = ", ".join(f"{view.backend.dtype(g)} {view.backend.shape(g)}" for g in (columns[slot][0], leaf))
                raise ValueError(f"{name}: the gradients at {path!r} differ in shape or dtype: {both}")
            columns[slot].append(leaf)
            owners[slot].append(rank)
    return Several(first.backend, first.source.structure, len(trees), columns, owners)


def _check_real(name: str, rank: int, view: Tree) -> None:
    """Reject gradients that are not real floating-point numbers."""
    source = view.source
    for i in view.chosen:
        if source.dtypes[i] not in REAL:
            raise TypeError(
                f"{name}: the gradient at {source.path(i)!r} of tree {rank} has dtype {source.dtypes[i]}; gradients of "
                "tasks are combined as real floating-point numbers: cast it, or put None there in every tree"
            )


def _alike(backend: Backend, leaf: Array, other: Array) -> bool:
    shapes = backend.shape(leaf), backend.shape(other)
    return (None in shapes or shapes[0] == shapes[1]) and backend.dtype(leaf) == backend.dtype(other)


def weighted(trees: Several, weights: Any) -> Any:
    """Return the sum of the trees times a vector or a list of weights."""
    backend = trees.backend
    out: list[Any] = [None] * len(trees.columns)
    each = weights
    if not isinstance(weights, list):
        each = [backend.compute(formulas.take, weights, index=rank) for rank in range(trees.number)]
    for (owners, _), places in _groups(trees).items():
        columns = [list(column) for column in zip(*[trees.columns[i] for i in places], strict=True)]
        made = backend.elementwise(elementwise.weighted, columns, [each[rank] for rank in owners])
        likes = columns[0]
        if any(backend.dtype(new) != backend.dtype(like) for new, like in zip(made, likes, strict=True)):
            made = backend.cast(made, likes)
        out = put(out, places, backend.as_given(likes, made))
    return backend.unflatten(trees.structure, out)


def products(name: str, trees: Several) -> list[Any]:
    """Return the inner products of trees i <= j, by rows, as numbers; in a common unit if there are float64 leaves.

    Each leaf is read once for each product, and beside float64 leaves also for its largest element.
    """
    backend, groups = trees.backend, _groups(trees)
    inverse = None
    if any(is_wide for _, is_wide in groups):
        every = [leaf for places in groups.values() for i in places for leaf in trees.columns[i]]
        inverse = backend.compute(subsets.inverse_unit, backend.norms(every, math.inf))
    found: dict[tuple[int, int], list[Any]] = {pair: [] for pair in pairs(range(trees.number))}
    for (owners, is_wide), places in groups.items():
        columns = [trees.columns[i] for i in places]
        if any(backend.shape(column[0]) is None for column in columns):
            raise ValueError(f"{name}: the rank of a gradient is unknown in the graph; set its static shape")
        parts = backend.inner_products(columns, [inverse] * len(owners) if is_wide else None)
        if inverse is not None and not is_wide:
            parts = [backend.compute(_in_unit, part, inverse) for part in parts]
        for pair, part in zip(pairs(owners), parts, strict=True):
            found[pair].append(part)
    return [_total(backend, parts) for parts in found.values()]


def _in_unit(xp: Any, product: Array, inverse: Array) -> Array:
    return product * inverse * inverse


def _total(backend: Backend, parts: list[Any]) -> Any:
    if len(parts) < 2:
        return parts[0] if parts else 0.0
    return backend.compute(subsets.total, *parts)


def _groups(trees: Several) -> dict[tuple[tuple[int, ...], bool], list[int]]:
    """Group the positions of leaves by the trees that have them, float64 leaves apart."""
    found: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for i, (column, owners) in enumerate(zip(trees.columns, trees.owners, strict=True)):
        if owners:
            found.setdefault((tuple(owners), trees.backend.dtype(column[0]) == "float64"), []).append(i)
    return found
