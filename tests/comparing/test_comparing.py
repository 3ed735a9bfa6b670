"""`gx.compare` and its like: distances, rounding told from faults, bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradxform as gx
from gradxform.comparing.measuring import BY_NAME, distances, judge
from gradxform.proof.ulp import ulps

G = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)


def distance(a: Any, b: Any) -> Any:
    return distances([(a, b)])[0]


def recorded(folder: Path, steps: dict[int, Any], **options: Any) -> Path:
    recorder = gx.record(folder, **options)
    for step, gradients in steps.items():
        recorder(step, gradients=gradients)
    return folder


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("size", [0, 1, 1000, 600_000])
def test_distances_against_numpy(dtype: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (
        (rng.normal(size=size) + 1j * rng.normal(size=size)) if dtype is np.complex64 else rng.normal(size=size)
        for _ in "ab"
    )
    a, b = a.astype(dtype), (a + 1e-2 * b).astype(dtype)
    wide = [x.astype(np.complex128 if dtype is np.complex64 else np.float64) for x in (a, b)]
    found = distance(a, b)
    assert found.norms[0] == pytest.approx(np.linalg.norm(wide[0]), rel=1e-12)
    assert found.difference == pytest.approx(np.linalg.norm(wide[0] - wide[1]), rel=1e-12)
    assert found.cosine * found.norms[0] * found.norms[1] == pytest.approx(np.vdot(*wide).real, rel=1e-9)
    assert found.ulp == np.max(ulps(a, b), initial=0.0)
    assert found.size == size
    assert 0 <= found.relative < 0.1
    assert found.cosine == pytest.approx(1, abs=1e-2)


def test_distances_of_two_dtypes_are_in_units_of_the_coarser() -> None:
    a = np.float32([1.0, 2.0])
    assert distance(a, a.astype(ml_dtypes.bfloat16)).ulp == 0
    assert distance(np.float32([1.0]), ml_dtypes.bfloat16(1.0078125).reshape(1)).ulp == 1
    nan = distance(np.float32([1, np.nan, np.inf]), np.float32([1, 2, np.inf]))
    assert (nan.nonfinite, nan.ulp) == ((2, 1), math.inf)


def test_rounding_may_grow_and_may_not_jump() -> None:
    def row(relative: float) -> Any:
        return [distance(G, G * np.float32(1 + relative))]

    float32 = BY_NAME["float32"]
    grown = judge({i: row(1e-6 * 10**i) for i in range(6)}, float32)
    assert list(grown.bad) == [5]
    assert list(judge({0: row(1e-6), 1: row(1e-6), 2: row(1e-2)}, float32).bad) == [2]
    assert list(judge({0: row(1e-3)}, float32).bad) == [0]
    assert not judge({0: row(1e-3)}, float32, tolerance=1e-2).bad


def test_noise_is_no_fault(tmp_path: Path) -> None:
    """A leaf whose gradient cancels to rounding differs entirely, and means nothing."""
    noise = np.random.default_rng(1).normal(size=(2, 30)).astype(np.float32) * 1e-8
    a = recorded(tmp_path / "a", {0: {"w": G, "key/bias": noise[0]}})
    b = recorded(tmp_path / "b", {0: {"w": G, "key/bias": noise[1]}})
    assert gx.compare(a, b).within


def test_steps_that_only_one_has_are_left_out(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", {0: {"w": G}, 5: {"w": G}, 10: {"w": G}})
    b = recorded(tmp_path / "b", {0: {"w": G}, 3: {"w": -G}, 10: {"w": G}})
    found = gx.compare(a, b)
    assert found.steps == [0, 10] and found.within


def test_a_tie_holds_at_the_steps_that_have_its_leaves(tmp_path: Path) -> None:
    parts = dict(enumerate(np.random.default_rng(2).normal(size=(4, 2, 6, 4)).astype(np.float32)))
    a = recorded(tmp_path / "a", {step: {"w": G, "emb": e, "head": h} for step, (e, h) in parts.items()})
    b = recorded(
        tmp_path / "b", {step: {"w": G} | ({} if step == 2 else {"emb": e + h}) for step, (e, h) in parts.items()}
    )
    first = gx.compare(a, b).findings[0]
    assert first.kind == "tied" and "It holds at 3 of 4 steps" in first.text


def test_a_tolerance_decides_alone(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name, {0: {"w": G, "number": np.float32(x)}}) for name, x in (("a", 9), ("b", 9.09)))
    assert not gx.compare(a, b).within
    assert gx.compare(a, b, tolerance=0.02).within
    assert not gx.compare(a, b, tolerance=0.005).within
    with pytest.raises(ValueError, match="tolerance must be at least 0, got -1"):
        gx.compare(a, b, tolerance=-1)


def test_recordings_of_norms_alone(tmp_path: Path) -> None:
    tree = {"w": G, "v": G[0], "u": G[1]}
    a = recorded(tmp_path / "a", {0: tree}, norms_only=True)
    assert gx.compare(a, recorded(tmp_path / "b", {0: tree})).within
    found = gx.compare(a, recorded(tmp_path / "c", {0: {path: 64 * leaf for path, leaf in tree.items()}}))
    assert found.findings[0].kind == "factor"
    assert found.findings[0].numbers["factor"] == pytest.approx(64)
    for change in (gx.clip_norm(1.0), gx.add_decayed_weights(0.01)):  # they have no elements and no direction
        for name, made in (("d", {"w": G, "v": G[0]}), ("e", change({"w": G, "v": G[0]}, params={"w": G, "v": G[0]}))):
            recorded(tmp_path / name, {0: made}, norms_only=True)
        assert gx.compare(tmp_path / "d", tmp_path / "e").findings[0].kind == "unknown"


def test_assert_same_gradients(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a", {0: {"w": G}}), recorded(tmp_path / "b", {0: {"w": 3 * G}})
    gx.testing.assert_same_gradients(a, a)
    with pytest.raises(AssertionError, match="3 times larger in B"):
        gx.testing.assert_same_gradients(a, b)


def test_data_that_differs_is_named_before_gradients(tmp_path: Path) -> None:
    for name, factor in (("a", 1), ("b", 2)):
        gx.record(tmp_path / name)(0, gradients={"w": factor * G}, images=factor * G[:4])
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert [finding.kind for finding in found.findings] == ["data", "where"]


def test_the_batch_is_told_by_what_was_recorded(tmp_path: Path) -> None:
    for name, factor in (("a", 1), ("b", 40)):
        gx.record(tmp_path / name)(0, gradients={"w": factor * G}, labels=np.arange(40))
    text = str(gx.compare(tmp_path / "a", tmp_path / "b"))
    assert "40 times larger in B" in text and "first dimension of labels" in text


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({}, {0: {"w": G}}, "a' holds no recording"),
        ({0: {"w": G}, 9: {"w": G}}, {1: {"w": G}}, "A has 0 to 9, B has 1 to 1"),
        ({0: {"w": G}}, {0: {"v": G[0]}}, r"A has 'w' \(40, 30\), B has 'v' \(30,\)"),
        ({0: {"w": G * np.nan}}, {0: {"w": G}}, "gradients of A"),
        ({0: {"w": G}}, {0: {"w": G * np.inf}}, "gradients of B"),
    ],
)
def test_what_cannot_be_compared(a: Any, b: Any, message: str, tmp_path: Path) -> None:
    for name, steps in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        recorded(tmp_path / name, steps)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message) as error:
        gx.compare(tmp_path / "a", tmp_path / "b")
    assert "\n" not in str(error.value)


def test_recordings_without_a_tree_in_common(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", {0: {"w": G}})
    gx.record(tmp_path / "c")(0, loss=1.0)
    with pytest.raises(ValueError, match="A has gradients, B has loss"):
        gx.compare(a, tmp_path / "c")


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"compare: a must be the folder of a recording, got None"):
        gx.compare(None, tmp_path)  # type: ignore[arg-type]


def test_parameters_alone_are_compared_at_each_step(tmp_path: Path) -> None:
    for name, by in (("a", 0.0), ("b", 0.3)):
        recorder = gx.record(tmp_path / name)
        for step in range(4):
            recorder(step, parameters={"w": G * np.float32(step + 1 + by * (step > 1))})
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert not found.within and "part at step 2" in str(found), str(found)


def test_a_tolerance_of_zero_beside_rounding(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a", {0: {"w": G, "v": G[0]}})
    b = recorded(tmp_path / "b", {0: {"w": G * np.float32(1 + 1e-6), "v": 2 * G[0]}})
    assert not gx.compare(a, b, tolerance=0).within


def test_other_labels_beside_gradients_in_bfloat16(tmp_path: Path) -> None:
    for name, by in (("a", 0), ("b", 1)):
        gradients = {"w": (G * (1 + by)).astype(ml_dtypes.bfloat16)}
        gx.record(tmp_path / name)(0, gradients=gradients, labels=(np.arange(8) + by) % 10)
    assert "labels differs at step 0" in str(gx.compare(tmp_path / "a", tmp_path / "b"))
