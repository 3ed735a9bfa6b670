"""Float64 gradients of tasks whose squares exceed float64's range, and whose ratios have squares within it."""

from __future__ import annotations

from typing import Any

import conflicts
import exact_conflicts
import numpy as np
import pytest
from support import FRAMEWORKS, MODES, assert_sums, in_mode, tensors
from test_conflicts import FUNCTIONS

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import parity

UNITS = {
    "1e200": [2.0**664] * 2,
    "1e-200": [2.0**-664] * 2,
    "near the largest number": [2.0**1020] * 2,
    "near the smallest normal number": [2.0**-1017] * 2,
    "1e60 and 1e-60": [2.0**200, 2.0**-200],
    "1e-60 and 1e60": [2.0**-200, 2.0**200],
    "1e300 and 1e200": [2.0**996, 2.0**664],
    "1 and 1e-120": [1.0, 2.0**-400],
}
"""For each of two tasks, the size of its gradient."""
FLUSHING = ("jax", "tensorflow")
SLOW = (pytest.mark.slow(reason="float64 pairs take compilers up to minutes; eager code is quick"),)


def both(*trees: Any) -> dict[str, Any]:
    """All functions, so that each mode compiles once."""
    given = list(trees)
    found = {name: function(given) for name, function in FUNCTIONS.items()}
    return {**found, "pcgrad": gx.pcgrad(given, 0)}


def rows_of(units: list[float]) -> Any:
    """Two gradients that conflict; in the last elements, which are a leaf, the first one is zero."""
    rng = np.random.default_rng(4)
    common = rng.standard_normal(conflicts.SIZE)
    rows = np.stack([common + rng.standard_normal(common.shape), -0.5 * common + rng.standard_normal(common.shape)])
    rows[0, 12:] = 0.0
    assert rows[0] @ rows[1] < 0
    return rows * np.array(units)[:, None]


def trees_of(rows: Any) -> list[dict[str, Any]]:
    return [{"a": row[:12].reshape(3, 4), "b": row[12:]} for row in rows]


@pytest.mark.parametrize(
    ("framework", "mode"), [pytest.param(*where, marks=SLOW if where[1] == "compiled" else ()) for where in MODES]
)
def test_right_numbers_at_any_size(framework: str, mode: str) -> None:
    """Relative to the result's norm; in the leaf that only the second gradient has, to the leaf's."""
    run, backend = in_mode(framework, mode, both), lookup.backend(framework)
    for name, units in UNITS.items():
        rows = rows_of(units)
        found = run(*(tensors(framework, tree) for tree in trees_of(rows)))
        for function, tree in found.items():
            right = exact_conflicts.combined(function, rows)
            vector = conflicts.flat(parity.named_leaves(tree, backend))
            assert exact_conflicts.error(vector, right) < 1e-14, (name, function)
            assert exact_conflicts.error(vector[12:], right[12:]) < 1e-14, (name, function)


@pytest.mark.parametrize("framework", [pytest.param(name, marks=SLOW if name == "jax" else ()) for name in FRAMEWORKS])
def test_three_tasks_of_one_size(framework: str) -> None:
    """Multiplied by a power of two, gradients give results multiplied by it."""
    trees = conflicts.trees(np.float64)
    for unit in (2.0**664, 2.0**-664, 2.0**1019):
        large = [{path: leaf * unit for path, leaf in tree.items()} for tree in trees]
        one, other = (both(*tensors(framework, some)) for some in (trees, large))
        for function, tree in one.items():
            named = [parity.named_leaves(x, lookup.backend(framework)) for x in (tree, other[function])]
            for path, leaf in named[0].items():
                largest = np.max([np.abs(tree[path]) for tree in trees], axis=0) * unit
                assert_sums(named[1][path], leaf * unit, largest, times=2, what=(function, path, unit))


@pytest.mark.parametrize("ratio", [1e3, 1e8, 1e12, 1e17, 1e40, 1e120, 1e-17, 1e-120])
def test_any_ratio_of_norms(ratio: float) -> None:
    """With a radius above one, cagrad may turn away from a large gradient, down to rounding."""
    rng = np.random.default_rng(5)
    for trial in range(20):
        first, own = rng.standard_normal((2, 6))
        rows = [first * ratio, own - 0.8 * first * (trial % 2)]
        given = [[row] for row in rows]
        for name in ("mgda", "upgrad"):
            found = FUNCTIONS[name](given)[0]
            assert exact_conflicts.error(found, exact_conflicts.combined(name, rows)) < 1e-14, (name, trial)
        for c in (0.2, 0.9, 1.5):
            right = exact_conflicts.combined("cagrad", rows, c)
            mean = float(np.linalg.norm(np.mean(rows, axis=0)))  # the largest term
            assert exact_conflicts.error(gx.cagrad(given, c)[0], right, mean) < 1e-13, (c, trial)


@pytest.mark.parametrize("units", [(1e60, 1.0, 1e-60), (1e-20, 1e20, 1.0), (1e-70, 1e70, 1e70)])
def test_three_tasks_of_different_sizes(units: tuple[float, ...]) -> None:
    """The shortest vector's product with each gradient is at least its square; no projection conflicts."""
    rng = np.random.default_rng(6)
    for trial in range(20):
        rows = (rng.standard_normal((3, 6)) - rng.standard_normal(6)) * np.array(units)[:, None]
        given = [[row] for row in rows]
        assert exact_conflicts.lacking(gx.mgda(given)[0], rows, 1.0) < 1e-14, trial
        assert exact_conflicts.lacking(gx.upgrad(given)[0], rows, 0.0) < 1e-14, trial


def test_subnormal_gradients(framework: str) -> None:
    """Rounded to a multiple of the smallest number; some kernels flush numbers below the smallest normal one."""
    rows = rows_of([2.0**-1040] * 2)
    for function, tree in both(*tensors(framework, trees_of(rows))).items():
        right = exact_conflicts.combined(function, rows)
        vector = conflicts.flat(parity.named_leaves(tree, lookup.backend(framework)))
        least = 2.0**-1022 if framework in FLUSHING else 1e-323
        assert max(abs(x - float(y)) for x, y in zip(vector, right, strict=True)) <= least, function


def test_narrow_leaves_beside_float64_leaves(framework: str) -> None:
    """The float32 zeros of a tiny gradient stay zeros."""
    trees = [
        {"a": np.array([3e60, -1e60]), "b": np.float32([1.0, 2.0])},
        {"a": np.array([-2e-60, 1e-61]), "b": np.float32([0.0, 0.0])},
    ]
    rows = [conflicts.flat(tree) for tree in trees]
    for function, tree in both(*tensors(framework, trees)).items():
        right = [float(x) for x in exact_conflicts.combined(function, rows)]
        named = parity.named_leaves(tree, lookup.backend(framework))
        np.testing.assert_allclose(named["a"], right[:2], rtol=1e-13, err_msg=function)
        np.testing.assert_allclose(named["b"], np.float32(right[2:]), rtol=1e-6, err_msg=function)


def test_one_nonfinite_element_makes_everything_nan(framework: str) -> None:
    for value in (np.nan, np.inf):
        rows = rows_of([2.0**664, 2.0**300])
        rows[1, 3] = value
        for function, tree in both(*tensors(framework, trees_of(rows))).items():
            vector = conflicts.flat(parity.named_leaves(tree, lookup.backend(framework)))
            assert function == "pcgrad" or np.isnan(vector).all(), function
        for function, tree in both(*tensors(framework, trees_of(rows[1:2]))).items():
            vector = conflicts.flat(parity.named_leaves(tree, lookup.backend(framework)))
            assert function == "pcgrad" or np.isnan(vector).all(), f"{function} of one task"
