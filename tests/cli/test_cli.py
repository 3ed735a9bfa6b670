"""The commands: output, exit codes, one line per mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import TRAINS, slow
from typer.testing import CliRunner

from gradxform.backend import lookup
from gradxform.cli import app
from gradxform.cli.console import quiet

pytestmark = pytest.mark.filterwarnings("default")
run = CliRunner().invoke


def test_the_commands_import_no_framework_before_they_need_one() -> None:
    code = "import sys, gradxform.cli; sys.exit(bool({'jax', 'tensorflow', 'torch', 'mlx'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parity_of_given_gradients(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", w=np.float32([30, 40]), b=np.float16([300]))
    given = ["parity", "--gradients", str(tmp_path / "g.npz"), "--frameworks", "numpy,torch"]
    result = run(app, given, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "g.npz" in result.output
    assert "numpy, torch" in result.output


@slow("compiles in four frameworks; of given gradients, it stays quick")
def test_parity_of_the_hard_cases_and_of_digits() -> None:
    result = run(app, ["parity", "--chain", "clip_norm(1.0)", "--frameworks", "numpy,jax"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for case in (
        "a step on digits",
        "1e30",
        "3e-30",
        "float16 300",
        "NaN",
        "inf",
        "None",
        "empty",
        "0-d",
        "mixed dtypes",
    ):
        assert case in result.output


def test_parity_ends_non_zero_and_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", w=np.float32([30, 40]))
    backend = lookup.backend("numpy")
    monkeypatch.setattr(backend, "multiply", lambda leaves, factors, inplace: [leaf * np.float32(2) for leaf in leaves])
    result = run(
        app, ["parity", "--gradients", str(tmp_path / "g.npz"), "--frameworks", "numpy"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 1
    assert "over budget" in result.output
    assert "w[0]" in result.output


@slow(TRAINS)
def test_demo_trains_and_draws(tmp_path: Path) -> None:
    out = tmp_path / "demo.png"
    result = run(app, ["demo", "--steps", "3", "--frameworks", "jax,torch", "--out", str(out)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    for word in ("JAX", "PyTorch", "ULP"):
        assert word in result.output


def test_triton_is_imported_before_tensorflow_and_never_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triton.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tensorflow", "triton"):
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    with quiet():
        assert "triton" in sys.modules
    monkeypatch.delitem(sys.modules, "triton")
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    with quiet():
        assert "triton" not in sys.modules
