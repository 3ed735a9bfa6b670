"""The runs of each row of the table, in groups that differ only in values.

One compilation of a framework serves a whole group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import optree

from gradxform.proof import parity
from gradxform.proof.gradients import RANDOM, Tree, edge, hard, nested, random, small, zeros
from gradxform.proof.registry import MIXED, Row

_ORDER = ("at the limit", "zeros", "a tiny 3, 4", "huge of both signs", "inf", "NaN", "at the limit")
LEFT_OUT = {"chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))": ("tiny",)}
"""Runs of a row that are left out: XLA flushes each summand of a mean, so losses add up."""


class Run(NamedTuple):
    """The gradients of consecutive steps, and the parameters."""

    steps: list[Tree]
    params: Tree


@dataclass(frozen=True)
class Group:
    """Runs whose trees have the same structure."""

    column: str
    """The dtype, or "mixed"."""
    words: str
    runs: dict[str, Run]
    _wanted: dict[tuple[Row, str], list[parity.Expected]] = field(default_factory=dict, repr=False, compare=False)

    def wanted(self, row: Row, name: str) -> list[parity.Expected]:
        """The reference's results for the steps of a run, computed once for all frameworks and modes."""
        if (row, name) not in self._wanted:
            self._wanted[row, name] = parity.expected_steps(row.tx, *self.runs[name])
        return self._wanted[row, name]


def ordinary_and_hard(
    row: Row, dtype: str, trees: Mapping[str, int] | None = None, large: bool = False, like: Tree = None
) -> Group:
    """Random numbers of every kind and edge cases, in a tree of one dtype; `trees` is how many of each kind, or one.

    A stateful transform gets a run of normal numbers, a run of edge cases, and the first step of the rest.
    """
    like = like or (nested if large else small)(dtype, row.matrix)
    runs = {}
    for kind in RANDOM:
        for seed in range((trees or {}).get(kind, 1)):
            count = 5 if row.tx.stateful and kind == "normal" else 1
            steps = [random(like, kind, 10 * seed + step) for step in range(count)]
            params = random(like, "normal", 99 + seed) if kind == "normal" else steps[0]
            runs[f"{kind} {seed + 1}" if trees else kind] = Run(steps, params)
    kinds = {leaf.dtype.name for leaf in optree.tree_leaves(like)}
    cases = {name: edge(like, name) for name in hard("float64") if any(name in hard(kind) for kind in kinds)}
    if row.tx.stateful:
        params = cases["huge of both signs" if "adaptive" in row.expression else "zeros"]
        runs["hard numbers one after the other"] = Run([cases[name] for name in _ORDER], params)
        if len(kinds) > 1:
            steps = [edge(like, name, turned=True) for name in _ORDER]
            runs["hard numbers one after the other, the leaves turned"] = Run(steps, params)
    else:
        if len(kinds) > 1:
            cases |= {f"{name}, the leaves turned": edge(like, name, turned=True) for name in cases}
        runs |= {name: Run([tree], tree) for name, tree in cases.items()}
    left_out = LEFT_OUT.get(row.expression, ())
    return Group(dtype, "small", {name: run for name, run in runs.items() if not name.startswith(left_out)})


def mixed(row: Row) -> Group:
    """Float32, float16, bfloat16 and float64 in one tree."""
    parts = {"v": zeros("float32", 3, 5), "w": zeros("float16", 7)}
    like = {"a": parts, "b": [zeros("float64", 4), None], "c": {"w": zeros("bfloat16", 6)}}
    trees = {kind: random(like, kind) for kind in ("normal", "uneven leaves")}
    trees |= {name: edge(like, name, dtype="float16") for name in ("at the limit", "300")}
    return Group(MIXED, "mixed", {name: Run([tree], tree) for name, tree in trees.items()})
