"""Several trees of gradients: read as one list of columns, measured by inner products, and merged into one tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradxform.backend.protocol import Backend
from gradxform.core import fitting
from gradxform.core.flat import Flat
from gradxform.core.source import REAL
from gradxform.numerics import Array, formulas


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
        ValueError: There are no trees, or keys, containers, shapes or dtypes differ; the message gives the first
            different path.
    """
    if not isinstance(trees, (list, tuple)) or hasattr(trees, "_fields"):
        raise TypeError(
            f"{name}: expected a list of trees, one per task, got one tree (a {type(trees).__name__}); write "
            f"{name}([first, second, ...])"
        )
    views = [fitting.gradients_view(name, tree) for tree in trees]
    found = [(rank, view) for rank, view in enumerate(views) if view is not None]
    if not found:
        raise ValueError(f"{name}: expected a list of trees with gradients, found none in {trees!r:.80}")
    lead, first = found[0]
    columns: list[list[Array]] = [[] for _ in first.source.slots]
    owners: list[list[int]] = [[] for _ in first.source.slots]
    for rank, view in found:
        _check_real(name, rank, view)
    for rank, tree in enumerate(trees):
        view = views[rank] or first
        if view.backend is not first.backend:
            raise ValueError(
                f"{name}: tree {lead} has arrays of {first.backend.title}, tree {rank} of "
                f"{view.backend.title}; convert one"
            )
        names = f"{name}: tree {lead}", f"{name}: tree {rank}"
        order = fitting.aligned(first, tree, names, "Give each task the gradients of the same parameters").order
        if views[rank] is None:
            continue
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


def _check_real(name: str, rank: int, view: Flat) -> None:
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


def merged(trees: Several, formula: Callable[..., Any], numbers: Callable[[list[int]], Sequence[Any]]) -> Any:
    """Tree of a formula over several trees' leaves, rounded once."""
    out: list[Any] = []
    for column, owners in zip(trees.columns, trees.owners, strict=True):
        if not column:
            out.append(None)
            continue
        given = [[leaf] for leaf in column]
        (new,) = trees.backend.elementwise(formula, given, numbers(owners), count=len(column))
        out.append(
            new if trees.backend.dtype(new) == trees.backend.dtype(column[0]) else trees.backend.cast(new, column[0])
        )
    return trees.backend.unflatten(trees.structure, out)


def products(name: str, trees: Several) -> list[Any]:
    """Return the inner products of trees i <= j, by rows: each is read once for each other."""
    return [_product(name, trees, i, j) for i in range(trees.number) for j in range(i, trees.number)]


def weighted(trees: Several, weights: Any) -> Any:
    """Return the sum of the trees times a vector of weights, rounded once."""
    numbers = [trees.backend.compute(formulas.take, weights, index=i) for i in range(trees.number)]
    return merged(trees, _combined, lambda owners: [numbers[rank] for rank in owners])


def _product(name: str, trees: Several, i: int, j: int) -> Any:
    """Return the inner product of two trees, as a number."""
    parts = []
    for column, owners in zip(trees.columns, trees.owners, strict=True):
        if i in owners and j in owners:
            first, second = column[owners.index(i)], column[owners.index(j)]
            shape = trees.backend.shape(first)
            if shape is None:
                raise ValueError(f"{name}: the rank of a gradient is unknown in the graph; set its static shape")
            parts.append(trees.backend.sum_over(first, tuple(range(len(shape))), second))
    return trees.backend.compute(_total, *parts) if parts else 0.0


def _total(xp: Any, *parts: Array) -> Array:
    return xp.sum(xp.stack([xp.reshape(part, ()) for part in parts]))


def _combined(xp: Any, *given: Array, count: int) -> Array:
    total = given[count] * given[0]
    for weight, leaf in zip(given[count + 1 :], given[1:count], strict=True):
        total = total + weight * leaf
    return total
