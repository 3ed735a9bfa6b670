"""Float64 gradients whose factors and norms float64 cannot hold, and whose results it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, MODES, array, assert_right

import gradxform as gx
from gradxform.proof.cases import Group, Run
from gradxform.proof.rows import Row

CASES: dict[str, list[Any]] = {
    "clip_norm(1e-200)": [1e200],
    "normalize_norm()": [1e-300, -3e-305],
    "chain(normalize_norm(), scale(1e-150))": [1e200],
    "clip_norm(1.0)": [1.7e308] * 4,
    "clip_global_norm(1.0)": [1.7e308] * 4,
    "clip_norm(1.0, ord=1)": [1.7e308] * 4,
    "clip_norm(1.0, ord=3)": [1.7e308] * 4,
    "clip_rms(1e-3)": [1.7e308, -1e308, 0.0],
    "chain(scale(1e-300), scale(1e-300), scale(1e300), scale(1e200))": [1e100, -3e99],
    "chain(scale(1e300), scale(1e200), normalize_norm())": [3e-100, 4e-100],
    "chain(scale(1e-200), scale(1e-200), centralize())": [[1e300, 3e300], [1e299, 2e300]],
    "chain(scale(1e-200), scale(1e-200), sign())": [1e200, -1e-30, 0.0],
    "chain(scale(1e-200), scale(1e-200), clip_value(1e-150))": [1e250, -1e249, 0.0],
    "chain(scale(1e-200), scale(1e-200), zero_nonfinite())": [1e250, np.inf, 0.0],
    "chain(scale(1e-200), scale(1e-200), trace(0.5))": [1e250, -1e249, 0.0],
    "chain(scale(1e-200), scale(1e-200), skip_large(ema(0.5), 1e-100))": [1e250, -1e249, 0.0],
    "chain(scale(1e-200), scale(1e-200), clip_norm(1e-160, axes=0))": [[1e250, -1e240]],
    "chain(scale(1e-200), scale(1e-200), clip_norm(1e-180, axes=1))": [[1e250, -1e240]],
    "chain(normalize_norm(), scale(1e-300), scale(1e-20), normalize_norm())": [3e-300, 4e-300],
    "clip_global_norm(3e-308)": [3e300, 4e300],
}
"""A chain, and a gradient."""
AT_ONCE = ("clip_norm(1e-200)", "clip_norm(1.0)", "chain(scale(1e-200), scale(1e-200), clip_value(1e-150))")
"""Those that are quick where code is compiled, or looked up for each shape."""
SLOW = (pytest.mark.slow(reason="compilers take a second for each chain; three are quick"),)


@pytest.mark.parametrize(
    ("framework", "mode", "expression"),
    [
        pytest.param(
            *where,
            expression,
            marks=SLOW if where[0] in ("jax", "tensorflow") or where[1] == "compiled" else (),
            id=f"{'-'.join(where)}-{expression}",
        )
        if expression not in AT_ONCE or where == ("torch", "compiled")
        else pytest.param(*where, expression, id=f"{'-'.join(where)}-{expression}")
        for where in MODES
        for expression in CASES
    ],
)
def test_the_result_is_right(framework: str, mode: str, expression: str) -> None:
    tree = {"w": np.array(CASES[expression], np.float64)}
    run = Run([tree] * (2 if gx.parse(expression).stateful else 1), tree)
    assert_right(Row(expression), Group("float64", "one leaf", {"one": run}), framework, mode)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_norm_above_the_range_is_infinite_where_it_is_reported(framework: str) -> None:
    from gradxform.backend import lookup

    backend = lookup.backend(framework)
    tree = [backend.from_numpy(np.full(4, 1.7e308))]
    assert array(gx.global_norm(tree)) == np.inf
    assert [array(norm) for norm in gx.norms(tree).values()] == [np.inf]
    assert gx.nonfinite_paths(tree) == []
    assert array(gx.clip_global_norm(float("inf"))(tree)[0]).tolist() == [1.7e308] * 4


def test_float32_beside_float64_takes_the_factor_that_it_can() -> None:
    tree = {"a": np.float32([3.0, 1e-30]), "b": np.array([1e200])}
    clipped = gx.clip_global_norm(1e-200)(tree)
    assert clipped["a"].tolist() == [0.0, 0.0]
    np.testing.assert_array_max_ulp(clipped["b"], np.array([1e-200]), 2)
