"""What the page on Muon says of the transformer that is trained with it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, assert_drawn


def test_losses_coincide_in_three_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "optax", "keras", "tensorflow", "torch", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    example = importlib.import_module("muon_transformer")
    runs = example.main(tmp_path)
    assert_drawn(tmp_path / "muon_transformer.png")
    assert list(runs) == ["AdamW", "Muon"]
    page = (ROOT / "docs/how-to/train-with-muon.md").read_text(encoding="utf-8")
    ends = {}
    for optimizer, losses in runs.items():
        assert list(losses) == ["jax", "tensorflow", "torch"]
        every = np.array(list(losses.values()))
        assert every.shape == (3, example.STEPS)
        apart = np.ptp(every, axis=0)
        assert apart[:3].max() < 2e-5, "only rounding at first"
        assert apart.max() < 0.02, "rounding grows with the steps, as between two runs of one framework"
        ends[optimizer] = every[:, -10:].mean()
        assert every[:, 0].min() > 2 * ends[optimizer]
        shown = re.search(rf"\| {optimizer} \| (\d\.\d+) \|", page)
        assert shown, optimizer
        assert ends[optimizer] == pytest.approx(float(shown[1]), abs=0.02)
    assert ends["Muon"] < ends["AdamW"] - 0.1
