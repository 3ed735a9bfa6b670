"""`gradxform report` prints what a bug report needs, and finds the element that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT
from typer.testing import CliRunner

from gradxform.backend import lookup
from gradxform.cli import app

pytestmark = pytest.mark.filterwarnings("default")
run = CliRunner().invoke


def report(*arguments: object) -> str:
    result = run(app, ["report", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_versions_and_devices() -> None:
    lines = report("--frameworks", "numpy").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["- Platform", "- Versions", "- Devices"]
    assert f"numpy {np.__version__}," in lines[1]
    assert lines[2] == "- Devices: cpu (NumPy)"


def test_the_page_shows_what_the_command_prints(tmp_path: Path, jax: Any) -> None:
    file = tmp_path / "gradients.npz"
    np.savez(file, w=np.float32([3e30, 4e30]))
    text = report("--chain", "clip_global_norm(1.0)", "--gradients", file, "--frameworks", "numpy,jax")
    found = text[text.index("Gradients in") :]
    assert "| `w` | float32 | (2,) | 0 | 4.99999992e+30 |" in found
    assert found in (ROOT / "docs/numbers/accuracy.md").read_text()


def test_a_wrong_element_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", w=np.float32([30, 40]), b=np.float32([1]))
    backend = lookup.backend("numpy")
    monkeypatch.setattr(backend, "multiply", lambda leaves, factors, inplace: [leaf * np.float32(2) for leaf in leaves])
    text = report("--chain", "clip_norm(1.0)", "--gradients", tmp_path / "g.npz", "--frameworks", "numpy")
    (row,) = (line for line in text.splitlines() if line.startswith("| numpy eager"))
    assert "w[0]: 60.0, not 0.6" in row
    assert float(row.split("|")[2]) > 1e6


def test_the_state_of_a_first_step_and_bfloat16(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    file = tmp_path / "g.safetensors"
    numpy.save_file({"w": np.array([3.0, np.inf, np.nan], ml_dtypes.bfloat16)}, file)
    text = report("--chain", "chain(zero_nonfinite(), ema(0.9))", "--gradients", file, "--frameworks", "numpy")
    assert "| `w` | bfloat16 | (3,) | 2 | nan |" in text
    assert "| numpy eager | 0 |  |  |" in text


def test_hard_cases_without_gradients() -> None:
    assert "| numpy eager | 0 |  |  |" in report("--chain", "clip_value(1.0)", "--frameworks", "numpy")
    assert "| numpy eager | 1 | mixed dtypes w[0]: 0.5999" in report(
        "--chain", "clip_norm(1.0)", "--frameworks", "numpy"
    )
