"""Pairs without a fault, deep and long enough for rounding to grow: no fault is named, whatever the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import slow

import gradxform as gx

torch = pytest.importorskip("torch")

from deep_runs import train  # noqa: E402

STEPS = 70
pytestmark = slow("trains two networks for 70 steps each; clean pairs of small networks stay quick")


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum"])
@pytest.mark.parametrize("network", ["residual", "transformer"])
def test_no_fault_in_deep_networks(network: str, optimizer: str, half: bool, tmp_path: Path) -> None:
    train(tmp_path / "a", network, optimizer, steps=STEPS, half=half)
    train(tmp_path / "b", network, optimizer, steps=STEPS, half=half, twin=True)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within, str(found)
    assert {finding.kind for finding in found.findings} <= {"grown"}, str(found)
    assert found.judged["gradients"].arithmetic.name == ("bfloat16" if half else "float32")
    assert network == "residual" or not found.findings, str(found)  # GELU has no kinks


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize("network", ["residual", "transformer"])
def test_no_fault_between_recorded_steps(network: str, every: int, tmp_path: Path) -> None:
    for name, twin in (("a", False), ("b", True)):
        train(tmp_path / name, network, "adam", steps=STEPS, twin=twin, every=every)
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    assert found.within, str(found)
