"""What is said of hand-made recordings: remarks that are no faults, and claims that are not made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradxform as gx

RNG = np.random.default_rng(3)
LEAVES = {"first/weight": (12, 16), "first/bias": (16,), "last/weight": (16, 10), "last/bias": (10,)}
STEPS = range(6)


def gradients(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {path: np.float32(rng.normal(size=shape)) for path, shape in LEAVES.items()}


PARAMETERS = {path: np.float32(RNG.normal(size=shape)) for path, shape in LEAVES.items()}
Change = Callable[[int, dict[str, Any]], dict[str, Any]]


def compared(folder: Path, change: Change, also: Change | None = None, **options: Any) -> gx.Comparison:
    """Compare hand-made runs; `change` is made in B, `also` in both. All that a change returns is recorded."""
    recording = options.pop("record", {})
    recorders = {name: gx.record(folder / name, **recording) for name in ("a", "b")}
    for step in STEPS:
        given = {"gradients": gradients(step), "parameters": PARAMETERS, "loss": np.float32(2.0 - 0.1 * step)}
        given = given if also is None else also(step, given)
        recorders["a"](step, **given)
        recorders["b"](step, **change(step, {**given, "gradients": dict(given["gradients"])}))
    return gx.compare(folder / "a", folder / "b", **options)


def with_gradient(path: str, function: Callable[[int, Any], Any]) -> Change:
    return with_gradients(lambda step, name, g: function(step, g.copy()) if name == path else g)


def with_gradients(function: Callable[[int, str, Any], Any]) -> Change:
    """Change every gradient, which stays float32."""

    def change(step: int, given: dict[str, Any]) -> dict[str, Any]:
        tree = {path: np.float32(function(step, path, g)) for path, g in given["gradients"].items()}
        return {**given, "gradients": tree}

    return change


def rounded_to(dtype: Any) -> Change:
    return with_gradients(lambda step, path, g: g.astype(dtype))


def both(first: Change, second: Change) -> Change:
    return lambda step, given: second(step, first(step, given))


def _normal(seed: Any, shape: Any) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def kink(at: int) -> Change:
    """One unit of the first layer is on in one run and off in the other."""

    def function(step: int, g: Any) -> Any:
        if step >= at:
            g[:, 3] += np.float32(0.3)
        return g

    return with_gradient("first/weight", function)


def test_a_kink_is_a_remark(tmp_path: Path) -> None:
    found = compared(tmp_path, kink(3))
    assert found.within
    assert [finding.kind for finding in found.findings] == ["grown"]
    assert "At step 3 1 of 4 gradients part" in str(found)


def test_at_the_first_step_it_is_none(tmp_path: Path) -> None:
    found = compared(tmp_path, kink(0))
    assert not found.within


def test_losses_that_part_with_the_gradients_are_no_kink(tmp_path: Path) -> None:
    def change(step: int, given: dict[str, Any]) -> dict[str, Any]:
        return {**kink(3)(step, given), "loss": np.float32(given["loss"] * (1.2 if step >= 3 else 1))}

    found = compared(tmp_path, change)
    assert not found.within
    assert "1.7 and 2.04" in str(found)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_both_in_half_precision_with_float32_masters(dtype: Any, tmp_path: Path) -> None:
    unit, draws = float(ml_dtypes.finfo(dtype).eps), {step: np.random.default_rng((step, 1)) for step in STEPS}
    noisy = with_gradients(lambda step, path, g: g * (1 + unit * draws[step].normal(size=g.shape)))
    found = compared(tmp_path, both(noisy, rounded_to(dtype)), rounded_to(dtype))
    assert found.within and not found.findings, str(found)
    assert found.judged["gradients"].arithmetic.name == np.dtype(dtype).name


def test_noise_before_a_batch_norm_is_no_fault(tmp_path: Path) -> None:
    """A bias whose gradient cancels: another value in each run, far below its neighbours."""

    def noisy(seed: int) -> Change:
        return with_gradient("first/bias", lambda step, g: np.float32(g * 0 + _normal((step, seed), g.shape) * 3e-5))

    found = compared(tmp_path, noisy(1), noisy(0))
    assert found.within and not found.findings, str(found)


def test_sums_that_cancel_are_larger_where_bfloat16_rounds_their_terms(tmp_path: Path) -> None:
    """One run adds in float32, the other rounds each partial sum."""

    def halved(noise: float) -> Change:
        bias = with_gradient("first/bias", lambda step, g: noise * _normal((step, noise > 0.1), g.shape))
        return both(bias, rounded_to(ml_dtypes.bfloat16))

    found = compared(tmp_path, halved(1.2), halved(5e-3))
    assert found.within and not found.findings, str(found)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_few_leaves_are_apart_by_more_than_bfloat16_at_once(dtype: Any, tmp_path: Path) -> None:
    """A maximum whose inputs are rounded to the same number; in float32 this is a fault."""
    apart = with_gradient("first/weight", lambda step, g: g * np.float32(1 + 0.17 * _normal(step + 9, g.shape)))
    found = compared(tmp_path, both(apart, rounded_to(dtype)), rounded_to(dtype))
    assert found.within == (dtype is not np.float32), str(found)
    if found.within:
        assert "rounding, but for 1 of 4 leaves" in str(found)


def test_differences_of_the_size_of_tf32_have_alternatives(tmp_path: Path) -> None:
    found = compared(tmp_path, with_gradients(lambda step, _, g: g * (1 + 1e-3 * _normal(step + 9, g.shape))))
    assert faults(found) == ["precision"]
    assert "TF32 or float16 rounding" in str(found)


def faults(found: gx.Comparison) -> list[str]:
    return [finding.kind for finding in found.findings if finding.is_fault]


def test_one_cause_is_enough(tmp_path: Path) -> None:
    found = compared(tmp_path, with_gradients(lambda step, _, g: 3 * g * (1 + 1e-6 * _normal(step, g.shape))))
    assert faults(found) == ["factor"]


def test_most_leaves_may_have_a_factor_of_their_own(tmp_path: Path) -> None:
    factors = {"first/weight": 2, "first/bias": 3, "last/weight": 5}
    found = compared(tmp_path, with_gradients(lambda step, path, g: np.float32(factors.get(path, 1)) * g))
    named = {f.leaves[0]: round(f.numbers["factor"], 5) for f in found.findings if f.is_fault}
    assert named == factors
    assert set(faults(found)) == {"leaf_factor"}


def test_what_is_left_is_told_and_not_guessed(tmp_path: Path) -> None:
    turned = with_gradient("first/weight", lambda _, g: -g)
    noisy = with_gradient("last/weight", lambda step, g: g + np.float32(0.1 * _normal(step, g.shape)))
    found = compared(tmp_path, both(turned, noisy))
    assert [f.kind for f in found.findings] == ["leaf_sign", "rest", "where"]
    assert "1 more leaves" in str(found) and "last/weight" in str(found)


def lost(count: int, value: float = np.nan) -> Change:
    def function(step: int, g: Any) -> Any:
        if step >= 2:
            g[:count] = value
        return g

    return with_gradient("last/bias", function)


@pytest.mark.parametrize(
    ("in_a", "in_b", "words"),
    [
        (lost(0), lost(2), "From step 2 on NaN or infinity"),
        (lost(2), lost(5), "2 in A, 5 in B"),
        (lost(2), lost(2, np.inf), "of another kind: 2 in A"),
    ],
)
def test_nan_is_not_infinity(in_a: Change, in_b: Change, words: str, tmp_path: Path) -> None:
    recorders = {name: gx.record(tmp_path / name) for name in ("a", "b")}
    for step in STEPS:
        for name, change in (("a", in_a), ("b", in_b)):
            recorders[name](step, **change(step, {"gradients": gradients(step)}))
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert not found.within
    assert words in str(found), str(found)


def test_the_same_nan_is_no_fault(tmp_path: Path) -> None:
    assert compared(tmp_path, lambda step, given: given, lost(3)).within


def test_a_tolerance_is_not_called_rounding(tmp_path: Path) -> None:
    text = str(compared(tmp_path, with_gradient("last/weight", lambda _, g: g * np.float32(1.01)), tolerance=0.02))
    assert "0.02" in text and "9.9e-03" in text and "rounding" not in text


def test_norms_are_not_called_values(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda step, given: given, record={"norms_only": True})
    assert "only norms were compared" in str(found)


IMAGES, LABELS = np.float32(RNG.normal(size=(8, 3, 4, 4))), RNG.integers(0, 10, 8)


@pytest.mark.parametrize(
    ("name", "in_a", "in_b"),
    [
        ("seconds", np.float32(1.0), np.float32(2.0)),
        ("learning_rate", np.float32(0.1), np.float32(0.2)),
        ("images", IMAGES, IMAGES.transpose(0, 2, 3, 1)),
        ("labels", LABELS, np.eye(10, dtype=np.float32)[LABELS]),
        ("labels", LABELS, LABELS[::-1].copy()),
    ],
)
def test_the_same_data_in_another_form_are_no_other_data(name: str, in_a: Any, in_b: Any, tmp_path: Path) -> None:
    tripled = both(with_gradients(lambda step, _, g: 3 * g), lambda step, given: {**given, name: in_b})
    found = compared(tmp_path, tripled, lambda step, given: {**given, name: in_a})
    assert faults(found) == ["factor"], str(found)
