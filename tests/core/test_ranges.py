"""Float64 gradients of any size: factors and norms beyond float64 are infinite or zero, never another number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import MODES, array, assert_right, call, slow, tensors, without_generated_code

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.cases import Group, Run
from gradxform.proof.registry import Row

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
    "chain(scale(1e-200), scale(1e-200), clip_adaptive(1e9, axes='keras'))": 1e250,
    "chain(normalize_norm(), scale(1e-250), scale(1e-20), normalize_norm())": [3e-30, 4e-30],
    "clip_global_norm(3e-308)": [3e300, 4e300],
    "clip_norm(1.0, axes=-1)": [[1.7e308] * 4],
    "normalize_global_norm()": [1.7e308] * 4,
    "clip_average_norm(1.0)": [1.7e308] * 4,
    "skip_large(clip_global_norm(1.0), 1e308)": [1.7e308] * 4,
}
"""A chain, and a gradient."""
LARGE = {expression: np.nan for expression, values in CASES.items() if np.max(np.abs(values)) > 1e308}
"""Gradients whose norm may be infinite, as it is beyond float64: then the result is NaN."""
LARGE |= {"chain(scale(1e300), scale(1e200), normalize_norm())": np.nan, "clip_rms(1e-3)": np.nan}
SMALL = {expression: 0.0 for expression in CASES if "scale(1e-200), scale(1e-200)" in expression}
"""Joined factors that may be zero, as they are below float64."""
SMALL |= dict.fromkeys(("clip_norm(1e-200)", "clip_global_norm(3e-308)", "chain(normalize_norm(), scale(1e-150))"), 0.0)
SMALL |= {"chain(scale(1e-300), scale(1e-300), scale(1e300), scale(1e200))": 0.0}
AT_ONCE = ("clip_norm(1e-200)", "clip_norm(1.0)", "chain(scale(1e-200), scale(1e-200), clip_value(1e-150))")
"""The quick cases in compiled and eager JAX code, and those for which inductor generates code."""
SLOW = "compilers take a second for each chain; three are quick"


@slow(
    SLOW,
    lambda framework, mode, expression: (
        expression not in AT_ONCE and (framework in ("jax", "tensorflow") or mode == "compiled")
    ),
)
@slow(SLOW, framework="torch", mode="compiled", expression=AT_ONCE)
@pytest.mark.parametrize("expression", CASES)
def test_the_result_is_right(framework: str, mode: str, expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (framework, mode) == ("torch", "compiled") and expression not in AT_ONCE:
        without_generated_code(monkeypatch)
    tree = {"w": np.array(CASES[expression], np.float64)}
    steps = Run([tree] * (2 if gx.parse(expression).stateful else 1), tree)
    inner, beyond = parity.runner(gx.parse(expression), framework, mode), {**LARGE, **SMALL}.get(expression)

    def either(steps: Any, params: Any) -> Any:
        """Results that are infinite or zero as a whole, where that is allowed, are replaced with the right ones."""
        results, state = inner(steps, params)
        if beyond is not None and all(
            np.array_equal(found.leaves["w"], np.full_like(found.leaves["w"], beyond), equal_nan=True)
            for found in results
        ):
            wanted = parity.expected_steps(gx.parse(expression), steps, params)
            results = [parity.Result(framework, mode, dict(right)) for right in wanted]
        return results, state

    assert_right(Row(expression), Group("float64", "one leaf", {"one": steps}), framework, mode, either)


@slow(SLOW, framework="torch", mode="compiled")
def test_a_gradient_whose_norm_is_subnormal(framework: str, mode: str) -> None:
    """Its norm is one, or infinite, since the factor is beyond float64; what is flushed to zero is zero or NaN."""
    tree = {"w": np.array([1e-310])}
    (result,), _ = parity.runner(gx.normalize_norm(), framework, mode)([tree], tree)
    found = float(result.leaves["w"][0])
    flushes = framework in ("jax", "tensorflow")
    assert found in (1.0, np.inf) or (flushes and (np.isnan(found) or 0.0 <= found <= 1e-310))


@pytest.mark.parametrize(("framework", "mode"), [where for where in MODES if where != ("torch", "compiled")])
@pytest.mark.parametrize("other", [np.float32, np.float64])
def test_a_norm_beside_an_infinite_one_is_infinite(framework: str, mode: str, other: type) -> None:
    tree = {"a": np.array([3.0]), "b": np.array([np.inf, 1.0], other), "c": np.array([2e274])}
    state = parity.runner(gx.measure(gx.scale(0.5)), framework, mode)([tree], tree)[1]
    found = {path: float(array(number)) for path, number in gx.metrics(state).items()}
    assert (found["scale/norm_before"], found["scale/norm_after"]) == (np.inf, np.inf)


def test_a_norm_above_the_range_is_infinite_where_it_is_reported(framework: str) -> None:
    tree = tensors(framework, [np.full(4, 1.7e308)])
    assert array(gx.global_norm(tree)) == np.inf
    assert [array(norm) for norm in gx.norms(tree).values()] == [np.inf]
    assert gx.nonfinite_paths(tree) == []
    for tx in (gx.clip_global_norm(float("inf")), gx.skip_nonfinite(gx.identity())):
        assert array(tx.update(tree, tx.init(tree))[0][0]).tolist() == [1.7e308] * 4


@pytest.mark.usefixtures("graph_alone")
def test_float32_beside_float64_takes_the_factor_that_it_can(framework: str, mode: str) -> None:
    for limit, size in ((1e-200, 1e200), (1.0, 1e300)):
        tree = {"a": np.float32([3.0, 1e-30, 3e38]), "b": np.array([size])}
        clipped = call(framework, mode, gx.clip_global_norm(limit).__call__, tree)
        assert array(clipped["a"]) == pytest.approx(np.zeros(3), abs=5e-38 if framework == "jax" else 0.0)
        assert array(clipped["b"]) in (0.0, pytest.approx(limit, rel=4e-15, abs=0))
