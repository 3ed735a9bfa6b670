"""Planted faults: each is named first by the diagnosis, and nothing is named where there is none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support import RUNS, slow

import gradxform as gx

torch = pytest.importorskip("torch")

from faults import FAULTS  # noqa: E402
from torch_runs import train  # noqa: E402


def planted(fault: str, folder: Path, **options: object) -> gx.Comparison:
    """Record a run without the fault, its sums in another order, and one with it; compare the two."""
    about = FAULTS[fault]
    train(folder / "right", **{"noise": True, **about.both, **options})
    train(folder / "wrong", **{**about.both, **options, **about.options})
    return gx.compare(folder / "right", folder / "wrong")


def check(fault: str, found: gx.Comparison) -> None:
    """Assert that the fault is named first, with its numbers and its leaf."""
    about, first = FAULTS[fault], found.findings[0]
    assert not found.within
    assert first.kind == about.kind, str(found)
    for name, number in about.numbers.items():
        assert first.numbers[name] == pytest.approx(number, rel=0.02), str(found)
    assert about.kind not in ("layout", "tied", "missing") or "It holds at " in first.text
    assert not about.leaf or about.leaf in first.leaves, str(found)
    assert {finding.kind for finding in found.findings if finding.is_fault} == {about.kind}, str(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, tmp_path: Path) -> None:
    """In either run."""
    check(fault, planted(fault, tmp_path))
    swapped = gx.compare(tmp_path / "wrong", tmp_path / "right")
    assert swapped.findings[0].kind == FAULTS[fault].kind and not swapped.within, str(swapped)


@slow(RUNS)
@pytest.mark.parametrize("fault", FAULTS)
def test_from_another_seed_and_on_other_data(fault: str, tmp_path: Path) -> None:
    options = {} if "batches" in fault else {"data": 11}
    found = planted(fault, tmp_path, **options, **({} if fault == "another seed" else {"seed": 11}))
    assert found.findings[0].kind == FAULTS[fault].kind, str(found)


CLEAN = [
    (network, optimizer, seed, False)
    for network in ("conv", "transformer", "lstm")
    for optimizer in ("sgd", "momentum", "adam", "adamw")
    for seed in range(4)
] + [("transformer", "adam", 0, True)]


@slow(RUNS, seed=(1, 2, 3))
@pytest.mark.parametrize(("network", "optimizer", "seed", "norms_only"), CLEAN)
def test_no_fault_is_named_where_there_is_none(
    network: str, optimizer: str, seed: int, norms_only: bool, tmp_path: Path
) -> None:
    about = {"network": network, "optimizer": optimizer, "seed": seed, "data": seed, "steps": 10}
    about["norms_only"] = norms_only
    train(tmp_path / "a", **about)
    train(tmp_path / "b", **about, noise=True)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within and found.findings == [], str(found)


DEEP: dict[str, dict[str, object]] = {"residual": {}, "transformer": {"depth": 4}}
"""Networks in which rounding grows over 70 steps."""


@slow("trains two networks for 70 steps each; clean pairs of small networks stay quick")
@pytest.mark.parametrize(
    ("optimizer", "half", "every"),
    [*itertools.product(("adam", "adamw", "momentum"), (False, True), (1,)), ("adam", False, 5), ("adam", False, 10)],
)
@pytest.mark.parametrize("network", DEEP)
def test_no_fault_in_deep_networks(network: str, optimizer: str, half: bool, every: int, tmp_path: Path) -> None:
    about = {**DEEP[network], "network": network, "optimizer": optimizer, "steps": 70, "every": every}
    for name in "ab":
        train(tmp_path / name, **about, noise=name == "b", autocast=torch.bfloat16 if half else None)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within, str(found)
    if every == 1:
        assert {finding.kind for finding in found.findings} <= {"grown"}, str(found)
        assert found.judged["gradients"].arithmetic.name == ("bfloat16" if half else "float32")
        assert network == "residual" or not found.findings, str(found)  # GELU has no kinks


@slow(RUNS)
@pytest.mark.parametrize("network", ["transformer", "lstm"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(2))
def test_other_precisions_are_rounding(network: str, dtype: str, seed: int, tmp_path: Path) -> None:
    if dtype == "float16" and network == "lstm":
        pytest.skip("PyTorch has no LSTM in float16 on the CPU")
    train(tmp_path / "a", network, seed=seed)
    train(tmp_path / "b", network, seed=seed, noise=True, dtype=getattr(torch, dtype))
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within, str(found)
    assert found.judged["gradients"].arithmetic.name == ("float32" if dtype == "float64" else dtype)
