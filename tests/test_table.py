"""Every transform of the table, in every framework and mode, for every dtype, against the reference."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from table import DTYPES, OVER_STEPS, TABLE, Row, few, gradients, hard

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


def _runs(row: Row, where: tuple[str, str]) -> dict[str, tuple[list[object], object]]:
    """The gradients of one step after the other, and parameters, by name."""
    dtypes = [d for d in DTYPES if not (row.real and d.startswith("complex"))]
    dtypes = [d for d in dtypes if not (row.single and d in ("float64", "complex128"))]
    severe = ["float32"] if row.single or "clip_" in row.expression else ["float32", "float64"]
    if where == ("torch", "compiled"):
        dtypes, severe = ["float32"], []
    elif where in SLOW:
        some = ("float32", "bfloat16") if where == ("jax", "eager") else ("float32", "float64", "complex64")
        dtypes, severe = [d for d in dtypes if d in some], ["float32"]
    if row.ordinary:
        severe = []
    runs: dict[str, tuple[list[object], object]] = {}
    tree = few if where in SLOW or where == ("torch", "compiled") else gradients
    for dtype in dtypes:
        steps: list[object] = [tree(dtype, seed) for seed in range(row.steps)]
        runs[f"{dtype} ordinary"] = steps, tree(dtype, 99)
    for dtype in severe:
        cases = hard(dtype)
        names = ("at the limit", "zeros", "tiny", "huge", "inf", "NaN", "at the limit")
        params = cases["huge" if "adaptive" in row.expression else "zeros"]
        runs[f"{dtype} hard"] = [cases[name] for name in names], params
    return runs


@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("row", OVER_STEPS, ids=lambda row: row.expression)
def test_right_numbers_over_steps(row: Row, framework: str, mode: str) -> None:
    for name, (steps, params) in _runs(row, (framework, mode)).items():
        results, _ = _parity.run_steps(row.tx, steps, params, framework, mode)
        for step, wanted in enumerate(_parity.expected_steps(row.tx, steps, params)):
            assert not results[step].problem, f"{name}, step {step}: {results[step].problem}"
            for path, right in wanted.items():
                _, worst = _parity.differences({path: results[step].leaves[path]}, {path: right})
                assert worst is None or worst.ulp <= row.budget(right.dtype), f"{name}, step {step}: {worst}"


EVERY = TABLE + OVER_STEPS


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.expression)
def test_repr_builds_an_equal_transform(row: Row) -> None:
    assert gx.parse(repr(row.tx)) == row.tx
    assert hash(gx.parse(repr(row.tx))) == hash(row.tx)


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.expression)
def test_the_input_is_left_as_it_was(row: Row) -> None:
    tree, params = gradients("float32", matrix=row.matrix), gradients("float32", 99, matrix=row.matrix)
    state = row.tx.init(params)
    given = tree, state, params
    before = optree.tree_map(np.copy, given)
    row.tx.update(tree, state, params)
    assert optree.tree_all(optree.tree_map(np.array_equal, given, before))


LIMITS = [
    row
    for row in TABLE
    if "norm" in row.expression
    and row.expression != "clip_norm(0.0)"
    and not any(word in row.expression for word in ("scale", "freeze", "partition", "normalize"))
]


@pytest.mark.parametrize("framework", _backend.installed())
@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.expression)
def test_unclipped_is_untouched(row: Row, framework: str) -> None:
    tree = optree.tree_map(lambda leaf: leaf * np.float32(1e-6), gradients("float32", matrix=row.matrix))
    ((result,),) = _parity.run(row.tx, [tree], [framework], ["eager"])
    for path, leaf in _parity.named_leaves(tree).items():
        assert leaf.tobytes() == result.leaves[path].tobytes(), path
