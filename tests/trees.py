"""Trees of gradients, and the rows of the registry that tests choose."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradxform as gx
from gradxform.proof.gradients import nested, random, small, zeros
from gradxform.proof.registry import ROWS, TABLE, Row

STATELESS = tuple(row for row in ROWS if row.stateless)
STATEFUL = tuple(row for row in ROWS if not row.stateless)
"""Rows with parameters, a state, or sums; stateful ones run over several steps."""


def first() -> tuple[Row, ...]:
    """The first row of each transform."""
    return tuple(rows[0] for rows in TABLE.values())


def gradients(dtype: str, seed: int = 0, matrix: bool = False) -> Any:
    """Normal numbers in seven leaves."""
    return random(nested(dtype, matrix), "normal", seed)


def few(dtype: str, seed: int = 0) -> Any:
    """Normal numbers in three leaves."""
    return random(small(dtype), "normal", seed)


def least(dtype: str, second: str = "") -> Any:
    """Two leaves, which may be of two dtypes, for compilers that take seconds for each."""
    return {"a": {"v": zeros(dtype, 3, 5), "w": zeros(second or dtype, 37, 41)}}


class Momentum(NamedTuple):
    """Object of another library, or of a user: init and update."""

    decay: float

    def init(self, params: Any) -> Any:
        return gx.tree_map(lambda p: 0 * p, params)

    def update(self, updates: Any, trace: Any, params: Any = None) -> Any:
        trace = gx.tree_map(lambda t, g: self.decay * t + g, trace, updates)
        return gx.tree_map(lambda g, t: t, updates, trace), trace


class Same:
    """The same, which changes nothing."""

    def init(self, params: Any) -> int:
        return 0

    def update(self, updates: Any, state: int, params: Any = None) -> Any:
        return updates, state
