"""The runs that the parity page has of each row."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import optree

from gradxform.proof.cases import Group, Run, mixed, ordinary_and_hard
from gradxform.proof.gradients import Tree, random, zeros
from gradxform.proof.registry import Row

_CHAIN = "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"
_MANY = ("clip_norm(1.0)", "clip_global_norm(1.0)", _CHAIN)
"""The rows that also run on many leaves."""


KINDS = {
    "normal": ("normally distributed", 6),
    "heavy tails": ("Student's t with 1.2 degrees of freedom", 4),
    "all exponents": ("all normal numbers, uniform in the exponent", 4),
    "uneven leaves": ("each leaf with its own magnitude, over half of the exponents", 4),
    "tiny": ("4 to 8 times the smallest normal number", 2),
    "huge": ("up to half of the largest number (float64: up to 1e300)", 2),
    "within the limit": ("below every limit", 2),
}
"""The kinds of random numbers in words, and how many trees there are of each."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    share: float = 1.0
    """The share of random trees; at least one of each kind."""
    many: int = 64
    """Number of leaves of the large tree."""
    large: tuple[int, int] = (1536, 2000)
    embedding: tuple[int, int] = (50257, 768)
    """GPT-2's token embedding."""


def available(dtypes: Sequence[str]) -> tuple[str, ...]:
    """The available dtypes; bfloat16 comes with a framework."""
    if importlib.util.find_spec("ml_dtypes") is None:
        return tuple(dtype for dtype in dtypes if dtype != "bfloat16")
    importlib.import_module("ml_dtypes")
    return tuple(dtypes)


def groups(row: Row, sizes: Sizes) -> Iterator[Group]:
    """The groups that the parity page has of a row."""
    for dtype in available(row.dtypes):
        yield ordinary_and_hard(
            row, dtype, {kind: max(1, int(sizes.share * most)) for kind, (_, most) in KINDS.items()}
        )
    if row.expression in _MANY:
        many = {f"layer{i}": {"w": zeros("float32", 9)} for i in range(sizes.many)}
        yield _random("float32", "many leaves", many, ("normal", "heavy tails", "uneven leaves"))
    if row.mixed and "bfloat16" in available(row.dtypes):
        yield mixed(row)
    if not row.tx.stateful:
        large = {"a": {"w": zeros("float32", *sizes.large)}, "b": {"v": zeros("float32", 2, 3)}}
        yield _random("float32", "one large leaf", large, ("normal", "heavy tails"))
    if row.expression == "clip_global_norm(1.0)":
        yield _random("float32", "GPT-2's embedding", [zeros("float32", *sizes.embedding)], ("normal",))


def _random(column: str, words: str, like: Tree, kinds: Sequence[str]) -> Group:
    trees = {f"{kind} in {words}": random(like, kind) for kind in kinds}
    return Group(column, words, {name: Run([tree], tree) for name, tree in trees.items()})


def elements(run: Run) -> int:
    """The number of elements of all steps."""
    return sum(leaf.size for leaf in optree.tree_leaves(run.steps))
