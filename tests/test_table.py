"""Every transform of the table, in every framework and mode, for every dtype, against the reference."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from table import DTYPES, TABLE, Row, gradients, hard

import gradxform as gx
from gradxform import _backend, _parity

MODES = [
    (name, mode)
    for name in _backend.installed()
    for mode in ("eager", "compiled")
    if (name, mode) != ("numpy", "compiled")
]


SLOW = {("jax", "eager"), ("jax", "compiled"), ("tensorflow", "compiled")}
"""Modes that compile every tree: they get the hard cases in two dtypes; torch.compile, slowest by far, in one."""


def _trees(row: Row, where: tuple[str, str]) -> dict[str, object]:
    """All that a row is tried on, by name; one compilation serves them all."""
    dtypes = [d for d in DTYPES if not (row.real and d.startswith("complex"))]
    ordinary, severe = dtypes, ["float32", "float64"] if where in SLOW else dtypes
    if where == ("torch", "compiled"):
        ordinary, severe = ["float32", "float16"] if row.expression != "clip_norm(1.0)" else dtypes, ["float32"]
    trees: dict[str, object] = {f"{dtype} ordinary": gradients(dtype, matrix=row.matrix) for dtype in ordinary}
    if not row.matrix:
        for dtype in severe:
            trees |= {f"{dtype} {name}": tree for name, tree in hard(dtype).items()}
    if not row.matrix and len(ordinary) > 2:
        trees["mixed dtypes"] = {"a": {"v": np.float32([3, 4]), "w": np.float16([30])}, "b": np.float64([5])}
    return trees


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.expression)
def test_right_numbers(row: Row, framework: str, mode: str) -> None:
    trees = _trees(row, (framework, mode))
    (results,) = _parity.run(row.tx, list(trees.values()), [framework], [mode])
    for (name, tree), result in zip(trees.items(), results, strict=True):
        assert not result.problem, f"{name}: {result.problem}"
        for path, wanted in _parity.expected(row.tx, tree).items():
            _, worst = _parity.differences({path: result.leaves[path]}, {path: wanted})
            assert worst is None or worst.ulp <= row.budget(wanted.dtype), f"{name}: {worst}"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.expression)
def test_repr_builds_an_equal_transform(row: Row) -> None:
    assert gx.parse(repr(row.tx)) == row.tx
    assert hash(gx.parse(repr(row.tx))) == hash(row.tx)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.expression)
def test_the_input_is_left_as_it_was(row: Row) -> None:
    tree = gradients("float32", matrix=row.matrix)
    before = optree.tree_map(np.copy, tree)
    row.tx(tree)
    assert optree.tree_all(optree.tree_map(np.array_equal, tree, before))


LIMITS = [
    row
    for row in TABLE
    if "norm" in row.expression
    and row.expression != "clip_norm(0.0)"
    and not any(word in row.expression for word in ("scale", "freeze", "partition"))
]


@pytest.mark.parametrize("framework", _backend.installed())
@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.expression)
def test_unclipped_is_untouched(row: Row, framework: str) -> None:
    tree = optree.tree_map(lambda leaf: leaf * np.float32(1e-6), gradients("float32", matrix=row.matrix))
    ((result,),) = _parity.run(row.tx, [tree], [framework], ["eager"])
    for path, leaf in _parity.named_leaves(tree).items():
        assert leaf.tobytes() == result.leaves[path].tobytes(), path
