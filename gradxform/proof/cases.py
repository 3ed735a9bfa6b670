"""The runs of each row of the table, in groups that differ only in values.

One compilation of a framework serves a whole group.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from gradxform.proof.gradients import (
    HARD,
    RANDOM,
    Leaf,
    Shapes,
    Tree,
    Values,
    chosen,
    dtypes,
    hard,
    held,
    nested,
    random,
    small,
)
from gradxform.proof.registry import MIXED, Row

_AFTER = "hard numbers one after the other"
_TURNED = ", the leaves turned"
_CENTRALIZED = "chain(scale(3.0), centralize(axes='keras'), clip_norm(1.0))"
LEFT_OUT: dict[tuple[str, str | None], tuple[str, ...]] = {
    # XLA flushes each summand of a mean, so losses add up.
    (_CENTRALIZED, None): ("tiny",),
}
"""Runs of a row that are left out, in one dtype or in all."""


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


def ordinary_and_hard(
    row: Row, dtype: str, share: float = 0.0, large: bool = False, shapes: Shapes | None = None
) -> Group:
    """Random numbers of every kind and edge cases, in a tree of one dtype.

    A stateful transform gets a run of normal numbers, a run of edge cases, and the first step of the rest.
    """
    shapes = shapes or (nested if large else small)(dtype, row.matrix)
    kinds = dtypes(shapes)
    left_out = {name for column in (*kinds, None) for name in LEFT_OUT.get((row.expression, column), ())}
    runs = {}
    for kind, (_, _, trees) in RANDOM.items():
        if kind in left_out:
            continue
        for seed in range(max(1, int(share * trees))):
            steps = [random(shapes, kind, 10 * seed + step) for step in range(row.steps if kind == "normal" else 1)]
            params = random(shapes, "normal", 99 + seed) if kind == "normal" else steps[0]
            runs[f"{kind} {seed + 1}" if share else kind] = Run(steps, params)
    there = [name for name in HARD if any(held(hard(name, kind), kind) for kind in kinds)]
    cases = {name: chosen(shapes, functools.partial(_held, name)) for name in there}
    if not row.tx.stateful:
        if len(kinds) > 1:
            turned = {name: chosen(shapes, functools.partial(_held, name), True) for name in there}
            cases |= {name + _TURNED: tree for name, tree in turned.items()}
        runs |= {name: Run([tree], tree) for name, tree in cases.items() if name.removesuffix(_TURNED) not in left_out}
    elif _AFTER not in left_out:
        params = cases["huge of both signs" if "adaptive" in row.expression else "zeros"]
        order = ("at the limit", "zeros", "a tiny 3, 4", "huge of both signs", "inf", "NaN", "at the limit")
        runs[_AFTER] = Run([cases[name] for name in order], params)
    return Group(dtype, "small", runs)


def _held(name: str, dtype: str) -> Values:
    """The numbers of an edge case; None if the dtype cannot represent them."""
    values = hard(name, dtype)
    return values if held(values, dtype) else ((), ())


def mixed(row: Row) -> Group:
    """Float32, float16, bfloat16 and float64 in one tree."""
    left_out = LEFT_OUT.get((row.expression, MIXED), ())
    parts = {"v": Leaf("float32", 3, 5), "w": Leaf("float16", 7)}
    shapes = {"a": parts, "b": [Leaf("float64", 4), None], "c": {"w": Leaf("bfloat16", 6)}}
    trees = {kind: random(shapes, kind) for kind in ("normal", "uneven leaves")}
    trees |= {name: chosen(shapes, functools.partial(_halves, name)) for name in ("at the limit", "300")}
    return Group(MIXED, "mixed", {name: Run([tree], tree) for name, tree in trees.items() if name not in left_out})


def _halves(name: str, _: str) -> Values:
    """The numbers of an edge case that all dtypes can represent."""
    return hard(name, "float16")
