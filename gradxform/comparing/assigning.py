"""Leaves without names in common, assigned one to one by their shapes, values, names and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradxform.comparing import names
from gradxform.comparing.layouts import candidates
from gradxform.comparing.leaves import Leaf, size_of

_FAR = 1e6
"""The cost of two leaves that no layout brings together."""
_BY_NAME, _BY_ORDER = 0.3, 0.2
"""What names and order weigh beside the values, whose cost is between 0 and 1."""
Read = Callable[[Leaf], list[Any]]
"""The values of a leaf in each tree: parameters that begin as zeros tell nothing, and their gradients do."""


def assigned(a: Sequence[Leaf], b: Sequence[Leaf], read_a: Read, read_b: Read) -> list[tuple[int, int]]:
    """The places of leaves that belong together: SciPy's assignment of least cost.

    Raises:
        ImportError: SciPy is missing; it comes with ``gradxform[cli]``.
    """
    if not a or not b:
        return []
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as error:
        raise ImportError("to match leaves by value needs 'scipy': pip install 'gradxform[cli]'") from error
    cost = np.full((len(a), len(b)), _FAR)
    marks_a, marks_b = (
        [list(map(_mark, read(leaf))) for leaf in leaves] for read, leaves in ((read_a, a), (read_b, b))
    )
    names_a, names_b = (names.without_common([names.read(leaf.name) for leaf in leaves]) for leaves in (a, b))
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            if size_of(one) == size_of(other) and next(candidates(one.shape, other.shape), None) is not None:
                values = _apart(marks_a[i], marks_b[j])
                name = 1.0 - names.similarity(names_a[i], names_b[j])
                order = abs(_place(i, a) - _place(j, b))
                cost[i, j] = values + _BY_NAME * name + _BY_ORDER * order
    rows, columns = linear_sum_assignment(cost)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if cost[i, j] < _FAR]


def _place(i: int, leaves: Sequence[Leaf]) -> float:
    return i / max(1, len(leaves) - 1)


def _apart(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The mean distance of two leaves' marks, from 0 to 1; of a tree that one lacks, a half."""
    return float(
        np.mean(
            [
                np.minimum(1.0, np.abs(x - y)).mean() if x is not None and y is not None else 0.5
                for x, y in zip(a, b, strict=True)
            ]
        )
    )


def _mark(array: Any) -> Any:
    """Logarithms of what no permutation of the elements changes, nor a factor, nor the sign."""
    if array is None:
        return None
    flat = np.abs(np.asarray(array, np.float64).ravel())
    flat = flat[np.isfinite(flat)]
    if not flat.any():
        return np.full(4, -30.0)
    flat = flat / flat.max()
    raw = np.asarray(array, np.float64).ravel()
    with np.errstate(all="ignore"):
        total = abs(np.nansum(raw)) / np.nansum(np.abs(raw))
        moments = [flat.mean(), np.sqrt((flat**2).mean()), (flat**4).mean() ** 0.25, total + 1e-3]
    return np.log(np.asarray(moments) + 1e-300)
