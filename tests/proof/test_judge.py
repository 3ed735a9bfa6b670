"""The judge lets the simplest arithmetic pass, and sees an error that is a little larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.cases import Group, Run
from gradxform.proof.conformance import right_numbers
from gradxform.proof.judge import Verdict, judge
from gradxform.proof.registry import Row
from gradxform.proof.ulp import apart, budget

DOUBLE = np.float64


def verdict(expression: str, steps: list[Any], params: Any, change: Callable[[Any, Any], Any]) -> Verdict:
    """The verdict on the reference's own last result, changed; `change` takes a result and its terms."""
    row = Row(expression)
    wanted = parity.expected_steps(row.tx, [{"w": step} for step in steps], {"w": params})[-1]
    return judge({"w": change(wanted["w"], wanted.terms["w"]).astype(wanted["w"].dtype)}, wanted, "numpy", row)


def off(units: float, bits: int) -> Callable[[Any, Any], Any]:
    """Add so many ULP of the largest term."""
    return lambda result, term: result + units * np.exp2(np.floor(np.log2(term)) + 1 - bits)


@pytest.mark.parametrize(("dtype", "bits", "small", "large"), [(np.float32, 24, 3, 6), (DOUBLE, 53, 14, 20)])
@pytest.mark.parametrize(
    ("expression", "steps", "param"),
    [
        ("add_decayed_weights(1.0)", [1.0], -0.9999),
        ("trace(0.5)", [-2.0, 1.0001], 0.0),
        ("ema(0.5, debias=False)", [-2.0, 1.0001], 0.0),
        ("grokfast(0.5, amplitude=2.0)", [1.0, -0.499], 0.0),
        ("error_feedback(scale(0.9999))", [1.0], 0.0),
        ("accumulate(identity(), 2)", [1.0, -0.999], 0.0),
        ("chain(add_decayed_weights(1.0), scale(0.3))", [1.0], -0.9999),
    ],
)
def test_sums_are_judged_by_their_largest_term(
    expression: str, steps: list[float], param: float, dtype: Any, bits: int, small: float, large: float
) -> None:
    given, params = [np.array([step, 7 * step], dtype) for step in steps], np.array([param, 0.1], dtype)
    assert not verdict(expression, given, params, off(small, bits)).over
    seen = verdict(expression, given, params, off(large, bits))
    assert seen.over is not None
    assert 5 * dtype(0).itemsize / 4 <= seen.over.ulp


def test_a_term_is_the_largest_of_a_sum_carried_through_factors_and_steps() -> None:
    def terms(expression: str, *steps: Any, params: Any = (3.0, 0.5)) -> list[Any]:
        given = [{"w": np.float32(step)} for step in steps]
        return [
            step.terms["w"].tolist()
            for step in parity.expected_steps(gx.parse(expression), given, {"w": np.float32(params)})
        ]

    assert terms("chain(scale(3.0), clip_norm(1.0))", [3.0, 4.0]) == [[0.0, 0.0]]
    assert terms("add_decayed_weights(1.0)", [-2.0, 1.0]) == [[3.0, 1.0]]
    assert terms("chain(add_decayed_weights(1.0), scale(-0.5))", [-2.0, 1.0]) == [[1.5, 0.5]]
    assert terms("chain(add_decayed_weights(1.0), sign())", [-2.0, 1.0]) == [[0.0, 0.0]]
    assert terms("chain(add_decayed_weights(1.0), clip_value(1.2))", [-2.0, 1.0]) == [[3.0, 0.0]]
    assert terms("masked(trace(0.5), 'v')", [1.0, 2.0], [1.0, 2.0]) == [[0.0, 0.0]] * 2
    assert terms("trace(0.5)", [4.0, 8.0], [1.0, 1.0], [0.0, 0.0]) == [[4.0, 8.0], [4.0, 8.0], [3.5, 6.5]]
    limited = terms("clip_spikes(4.0, 0.0, warmup=1)", [1.0, 1.0], [9.0, 1.0], [99.0, 1.0])
    assert limited == [[0.0, 0.0], [4.0, 0.0], [12.0, 0.0]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_rounded_once_more(dtype: Any) -> None:
    given, params = [np.array([1.0, 2.0]).astype(dtype)], np.array([-0.9, 3.0]).astype(dtype)

    def steps(count: int) -> Callable[[Any, Any], Any]:
        return lambda result, term: (result.view(np.int16) + np.int16(count)).view(dtype)

    for expression in ("add_decayed_weights(1.0)", "scale(0.3)"):
        assert not verdict(expression, given, params, steps(1)).over
        assert verdict(expression, given, params, steps(2)).over
    # next to nothing is left of 1 - 0.99999: what float32 leaves unsure exceeds float16's own last bits
    wanted, term = np.array([1e-7]).astype(np.float16), np.array([1.0])
    assert apart((wanted * 2).astype(np.float16), wanted, term) <= budget(np.float16, 2, True)
    assert apart((wanted * 9).astype(np.float16), wanted, term) > budget(np.float16, 2, True)


@pytest.mark.parametrize(("found", "distance"), [(np.nan, np.inf), (np.inf, np.inf), (0.0, 0.5), (1.0, 2.0**22)])
def test_no_term_hides_nan_and_infinity(found: float, distance: float) -> None:
    wanted = np.float32([2.0**-23])
    assert apart(np.float32([found]), wanted, np.float64([2.0])) == pytest.approx(distance, rel=1e-6)


def _averages(mean: Any, step: int, x: Any, p: Any) -> dict[str, Any]:
    """Plain lines in the dtype of the gradients."""
    kind = x.dtype.type
    ema = kind(0.9) * mean["ema"] + kind(1 - 0.9) * x
    trace = x + kind(0.9) * mean["trace"]
    slow = kind(0.75) * mean["slow"] + kind(0.25) * x if step else x
    return {
        "ema": ema,
        "trace": trace,
        "slow": slow,
        "ema(0.9, debias=False)": ema,
        "ema(0.9)": ema * kind(1 / (1 - 0.9 ** (step + 1))),
        "trace(0.9)": trace,
        "trace(0.9, nesterov=True)": x + kind(0.9) * trace,
        "grokfast(0.75, amplitude=0.5)": x + kind(0.5) * slow,
        "chain(scale(0.3), add_decayed_weights(0.01))": kind(0.3) * x + kind(0.01) * p,
    }


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_plain_lines_pass(kind: Any, rng: Any) -> None:
    names = [
        name for name in _averages(dict.fromkeys(("ema", "trace", "slow"), kind(0)), 0, kind(1), kind(1)) if "(" in name
    ]
    size, worst = rng.uniform(-9, 9, 300), dict.fromkeys(names, 0.0)
    steps = [(rng.standard_normal(300) * np.exp2(size + rng.uniform(-2, 2))).astype(kind) for _ in range(40)]
    params = (rng.standard_normal(300) * np.exp2(size)).astype(kind)
    for name in names:
        row, mean = Row(name), dict.fromkeys(("ema", "trace", "slow"), np.zeros(300, kind))
        expected = parity.expected_steps(row.tx, [{"w": step} for step in steps], {"w": params})
        for i, (step, wanted) in enumerate(zip(steps, expected, strict=True)):
            mean = _averages(mean, i, step, params)
            found = judge({"w": mean[name]}, wanted, "numpy", row)
            assert not found.over, (name, i, found)
            worst[name] = max(worst[name], found.worst.ulp if found.worst else 0.0)
    assert max(worst.values()) > 0.5  # the lines do round


def test_a_rescaled_leaf_has_no_term() -> None:
    for units, over in ((2, False), (3, True)):
        found = verdict(
            "clip_norm(1.0)",
            [np.float32([3.0, 4.0])],
            np.float32([0.0, 0.0]),
            lambda result, term, units=units: (result.view(np.int32) + units).view(np.float32),
        )
        assert (found.over is not None) == over


def test_a_float64_leaf_beside_narrow_ones_has_their_part_of_the_norm() -> None:
    row, wide = Row("clip_global_norm(1.0)"), np.array([3.0])
    for narrow, bits, over in ((4.0, 24, False), (4.0, 20, True), (1e-9, 50, False), (1e-9, 40, True)):
        tree = {"n": np.float32([narrow]), "w": wide}
        wanted = parity.expected(row.tx, tree)
        found = judge({**wanted, "w": wanted["w"] * (1 + 2.0**-bits)}, wanted, "numpy", row)
        assert (found.over is not None) == over, (narrow, bits, found)


@pytest.mark.parametrize(
    ("value", "result", "right"),
    [
        (1e25, np.nan, True),
        (1e25, 0.0, False),
        (1e25, 0.5, False),
        (1e-25, 1e-25, True),
        (1e-25, 0.5, False),
        (1e-25, np.nan, False),
        (1.0, 1.0 + 3 * 2.0**-23, True),
        (1.0, 1.0 + 5 * 2.0**-23, False),
        (1.0, np.nan, False),
    ],
)
def test_without_float64_a_norm_may_count_as_infinite_or_zero(value: float, result: float, right: bool) -> None:
    row, tree = Row("normalize_norm()"), {"w": np.float32([value, 0.0])}
    group = Group("float32", "one", {"one": Run([tree], tree)})

    def run(steps: Any, params: Any) -> Any:
        return [parity.Result("numpy", "eager", {"w": np.float32([result, result if result != result else 0.0])})], ()

    if right:
        right_numbers(row, group, "numpy", "eager", run, float64=False)
        return
    with pytest.raises(AssertionError):
        right_numbers(row, group, "numpy", "eager", run, float64=False)
