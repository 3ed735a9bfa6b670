"""Leaves without names in common, assigned one to one by their shapes, roles, names and order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradxform.backend.errors import install
from gradxform.comparing.align import names
from gradxform.comparing.align.layouts import candidates
from gradxform.comparing.align.parts import Leaf

_FAR = 1e6
"""The cost of two leaves that cannot belong together."""
_BY_ROLE, _BY_NAME, _BY_ORDER = 1.0, 1.0, 1.0
"""What another role, no name in common and the other end of the network cost."""


def assigned(a: Sequence[Leaf], b: Sequence[Leaf], allowed: Any) -> list[tuple[int, int]]:
    """The places of leaves that belong together: SciPy's assignment of least cost.

    Args:
        a: leaves of one recording.
        b: leaves of the other.
        allowed: a matrix of bools: which may belong together at all.

    Raises:
        ImportError: SciPy is missing; it comes with ``gradxform[compare]``.
    """
    if not a or not b:
        return []
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as error:
        raise ImportError(f"to match leaves by shape needs 'scipy': {install('compare')}") from error
    known = _same_role(a, b)
    fits = fitting(a, b) & allowed & (known > 0)
    names_a, names_b = names.ranked(*(names.without_common([names.read(leaf.name) for leaf in s]) for s in (a, b)))
    order = np.abs(_ranks(a, fits)[:, None] - _ranks(b, fits.T))
    cost = _BY_ROLE * (1.0 - known) + _BY_NAME * (1.0 - names.similar(names_a, names_b)) + _BY_ORDER * order
    cost = np.where(fits, cost, _FAR)
    rows, columns = linear_sum_assignment(cost)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if cost[i, j] < _FAR]


def fitting(a: Sequence[Leaf], b: Sequence[Leaf]) -> Any:
    """Which leaves some layout brings together, as a matrix of bools."""
    shapes = [sorted({leaf.shape for leaf in side}) for side in (a, b)]
    table = np.array([[next(candidates(x, y), None) is not None for y in shapes[1]] for x in shapes[0]], bool)
    places = [[side.index(leaf.shape) for leaf in leaves] for side, leaves in zip(shapes, (a, b), strict=True)]
    return table.reshape(len(shapes[0]), len(shapes[1]))[np.ix_(*places)]


def _same_role(a: Sequence[Leaf], b: Sequence[Leaf]) -> Any:
    """1 for leaves of one role, 0 for leaves of two, and a half where a role is none that the frameworks name."""
    roles = [[names.role_in(names.read(leaf.name), len(leaf.shape)) for leaf in side] for side in (a, b)]
    kinds = sorted({role for side in roles for role in side}, key=sorted)
    table = np.array(
        [[1.0 if x & y else 0.0 if names.is_known(x) and names.is_known(y) else 0.5 for y in kinds] for x in kinds]
    )
    return table[np.ix_(*([kinds.index(role) for role in side] for side in roles))]


def _ranks(leaves: Sequence[Leaf], fits: Any) -> Any:
    """The place of each leaf among those that fit the same ones, from 0 to 1, in the order of the network."""
    order = in_order([leaf.name for leaf in leaves])
    groups: dict[bytes, list[int]] = {}
    for i in order:
        groups.setdefault(fits[i].tobytes(), []).append(i)
    found = np.zeros(len(leaves))
    for group in groups.values():
        found[group] = np.arange(len(group)) / max(1, len(group) - 1)
    return found


def in_order(paths: Sequence[str]) -> list[int]:
    """The places of paths in the order of the network: as recorded, or by their numbers if they are merely sorted."""
    places = list(range(len(paths)))
    if list(paths) != sorted(paths):
        return places
    return sorted(
        places, key=lambda i: [(int(t), "") if t.isdecimal() else (-1, t) for t in re.split(r"(\d+)", paths[i])]
    )
