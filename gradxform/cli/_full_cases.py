"""What `gradxform parity --full` measures: the transforms, their budgets, and the trees of gradients."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from gradxform import _parse
from gradxform._transformation import GradientTransformation
from gradxform.cli._full_values import (
    DTYPES,
    HARD,
    MIXED,
    PARTS,
    RANDOM,
    SMALL_DTYPES,
    Array,
    Kind,
    Values,
    held,
    range_of,
)

Tree = Any
"""A tree of NumPy arrays, None among them."""
Shapes = Any
"""A tree of shapes, each in a `Leaf`."""


# --- transforms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One transform, and how near its results must come."""

    expression: str
    ulp: float = 2
    """The budget, in units in the last place."""
    real: bool = False
    """For real gradients only."""
    only: tuple[str, ...] = ()
    """The columns it is measured in, if not all."""
    kept: float = 1.0
    """The part of a gradient that it computes with on its way: a tenth, if it keeps a tenth."""

    @property
    def tx(self) -> GradientTransformation:
        """The transform."""
        return _parse.parse(self.expression)

    @property
    def narrow(self) -> float:
        """The budget in float16 and bfloat16."""
        return min(self.ulp, 1)


CHAIN = "chain(clip_norm(5.0), clip_global_norm(1.0), scale(-0.1))"
ROWS = (
    Row("identity()", ulp=0),
    Row("stop()", ulp=0),
    Row("scale(0.3)"),
    Row("scale(-0.25)", ulp=0),
    Row("clip_value(0.5)", ulp=0, real=True),
    Row("clip_value(low=-0.25, high=0.7)", ulp=0, real=True),
    Row("clip_norm(1.0)"),
    Row("clip_norm(0.7, axes=-1)"),
    Row("clip_norm(1.0, ord=1)"),
    Row("clip_norm(1.0, ord=3)", ulp=4),
    Row("clip_norm(1.0, ord=float('inf'))"),
    Row("clip_global_norm(1.0)"),
    Row("clip_global_norm(1e-31)", only=("float32",)),
    Row("clip_global_norm(1.0, ord=1)"),
    Row("clip_global_norm(1.0, ord=3)", ulp=4),
    Row("clip_global_norm(1.0, ord=float('inf'))"),
    Row(CHAIN),
    Row("chain(clip_value(0.5), clip_global_norm(1.0), scale(-0.1))", real=True),
    Row("masked(clip_global_norm(1.0), '**/w')"),
    Row("partition({'**/w': clip_global_norm(0.5), '**/v': stop()}, default=scale(0.3))"),
    Row("freeze('**/w')", ulp=0),
    Row("add_noise(0.1, 7)", only=("float32",)),
    Row("centralize()", only=("float32", "float64"), real=True, kept=0.01),
    Row("ema(0.9)", only=("float32", "float64"), real=True, kept=0.1),
    *(
        Row(expression, only=("float32", "float64"), real=True)
        for expression in (
            "clip_rms(0.5)",
            "clip_average_norm(0.01)",
            "clip_adaptive(0.1, axes='keras')",
            "clip_percentile(50.0, 4)",
            "clip_zscore(1.0, 0.9, 2)",
            "normalize_norm()",
            "normalize_global_norm()",
            "sign()",
            "zero_nonfinite()",
            "add_decayed_weights(0.3)",
            "trace(0.9)",
            "accumulate(clip_global_norm(1.0), 1)",
            "skip_nonfinite(trace(0.5))",
            "skip_large(trace(0.5), 10.0)",
            "measure(clip_global_norm(1.0))",
        )
    ),
)
_COSTLY = ("clip_norm(1.0)", "clip_global_norm(1.0)", CHAIN)
"""The transforms measured on many leaves and on mixed dtypes: compilers take a minute for each."""


# --- trees -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A gradient that is still without values."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    share: float = 1.0
    """How many of the random trees; at least one of each kind."""
    many: int = 64
    """The leaves of the tree with many."""
    large: tuple[int, int] = (1536, 2000)
    embedding: tuple[int, int] = (50257, 768)
    """GPT-2's token embedding."""


@dataclass(frozen=True)
class Group:
    """Trees of one structure, by name, so that one compilation serves them all."""

    column: str
    words: str
    trees: dict[str, Tree]


def groups(row: Row, sizes: Sizes) -> Iterator[Group]:
    """All that a transform is measured on."""
    matrices = "axes" in row.expression
    for dtype in _columns(row):
        kinds = {name: max(1, int(sizes.share * random.trees)) for name, random in RANDOM.items()}
        yield Group(dtype, "small", _trees(_small(dtype, matrices), kinds, HARD))
    if row.expression in _COSTLY:
        leaf = Leaf((9,), "float32")
        many = {f"layer{i}": {"w": leaf} for i in range(sizes.many)}
        yield _group("float32", "many leaves", _trees(many, {"normal": 1, "heavy tails": 1, "uneven leaves": 1}))
        if "bfloat16" in available():
            parts = {"v": Leaf((3, 5), "float32"), "w": Leaf((7,), "float16")}
            mixed = {"a": parts, "b": [Leaf((4,), "float64"), None], "c": {"w": Leaf((6,), "bfloat16")}}
            yield Group(MIXED, "mixed", _trees(mixed, {"normal": 2, "uneven leaves": 2}, ("at the limit", "300")))
    if not row.only:
        large = {"a": {"w": Leaf(sizes.large, "float32")}, "b": {"v": Leaf((2, 3), "float32")}}
        yield _group("float32", "one large leaf", _trees(large, {"normal": 1, "heavy tails": 1}))
    if row.expression == "clip_global_norm(1.0)":
        embedding = [Leaf(sizes.embedding, "float32")]
        yield _group("float32", "GPT-2's embedding", _trees(embedding, {"normal": 1}))


def _group(column: str, words: str, trees: dict[str, Tree]) -> Group:
    """A group whose trees have its words in their names."""
    return Group(column, words, {f"{name} in {words}": tree for name, tree in trees.items()})


def available() -> tuple[str, ...]:
    """The dtypes; bfloat16 comes with a framework."""
    here = importlib.util.find_spec("ml_dtypes") is not None
    if here:
        importlib.import_module("ml_dtypes")
    return tuple(dtype for dtype in DTYPES if here or dtype != "bfloat16")


def _columns(row: Row) -> list[str]:
    return [dtype for dtype in available() if not (row.real and dtype in PARTS) and (not row.only or dtype in row.only)]


def _small(dtype: str, matrices: bool) -> Shapes:
    """A small nested tree; smaller where `torch.compile` takes half a minute for a handful of leaves."""

    def leaf(*shape: int) -> Leaf:
        return Leaf(shape, dtype)

    if dtype not in SMALL_DTYPES:
        return {"a": {"w": leaf(7, 9)}, "b": {"v": leaf(3, 5) if matrices else leaf()}, "c": [leaf(0, 3), None]}
    tree = {"a": {"v": leaf(3, 5), "w": leaf(37, 41)}, "b": [leaf(0, 3), None, leaf(2, 3, 4)]}
    return tree if matrices else tree | {"c": (leaf(), {"w": leaf(301)})}


def _trees(shapes: Shapes, kinds: dict[str, int], hard: Iterable[str] = ()) -> dict[str, Tree]:
    trees = {
        f"{name} {seed + 1}" if count > 1 else name: _random(shapes, RANDOM[name].kind, seed)
        for name, count in kinds.items()
        for seed in range(count)
    }
    dtypes = {leaf.dtype for leaf in optree.tree_leaves(shapes)}
    return trees | {name: _set(shapes, HARD[name]) for name in hard if all(held(HARD[name], d) for d in dtypes)}


def _random(shapes: Shapes, kind: Kind, seed: int) -> Tree:
    rng = np.random.default_rng(seed)

    def fill(leaf: Leaf) -> Array:
        parts = [kind(rng, leaf.shape, range_of(leaf.dtype)) for _ in range(2 if leaf.dtype in PARTS else 1)]
        return np.asarray(parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]).astype(leaf.dtype)

    return optree.tree_map(fill, shapes)


def _set(shapes: Shapes, values: Values) -> Tree:
    """Zeros, but for the first numbers of the first two leaves that can hold them."""
    left = list(values)

    def fill(leaf: Leaf) -> Array:
        flat = np.zeros(math.prod(leaf.shape))
        if left and flat.size >= max(1, len(left[0])):
            given = left.pop(0)
            flat[: len(given)] = given
        return flat.reshape(leaf.shape).astype(leaf.dtype)

    return optree.tree_map(fill, shapes)


def size(tree: Tree) -> int:
    """The number of elements."""
    return sum(leaf.size for leaf in optree.tree_leaves(tree))
