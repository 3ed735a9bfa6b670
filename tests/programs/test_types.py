"""Strict type checkers accept the code that users write."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, environment

import gradxform as gx

PROGRAM = Path(__file__).with_name("typed.py")
PYRIGHT = shutil.which("basedpyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project with the program."""
    (tmp_path / "typed.py").write_text(PROGRAM.read_text())
    return tmp_path


def test_the_program_runs() -> None:
    for name in ("jax", "optax", "torch"):
        pytest.importorskip(name)
    import typed

    for run in (typed.with_numpy, typed.with_optax, typed.backward, typed.with_torch):
        run()


@pytest.mark.slow(reason="mypy reads what it can of all frameworks")
def test_mypy_strict_finds_nothing(folder: Path) -> None:
    """optax ships no types for mypy, and users configure it to ignore that."""
    for name in ("mypy", "jax", "optax", "torch"):
        pytest.importorskip(name)
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-optax.*]\nignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), "typed.py"]
    path = f"{ROOT}:{ROOT / 'backends'}"
    done = subprocess.run(
        command, cwd=folder, env=environment(MYPYPATH=path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_pyright_strict_finds_nothing(folder: Path) -> None:
    settings = {
        "extraPaths": [str(ROOT), str(ROOT / "backends")],
        "include": ["typed.py"],
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": True,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [str(PYRIGHT), "--pythonpath", sys.executable, "-p", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("transform", "formula"),
    [
        (gx.clip_value, "min(max(g, low), high)"),
        (gx.clip_norm, "g * min(1, max_norm / norm(g))"),
        (gx.clip_global_norm, "g * min(1, max_norm / n)"),
        (gx.scale, "factor * g"),
        (gx.clip_adaptive, "g * min(1, clipping * max(norm(p), eps) / norm(g))"),
        (gx.centralize, "g - mean(g, axes)"),
    ],
)
def test_an_editor_shows_the_formula_as_text(transform: Any, formula: str) -> None:
    """The plain formula is above the LaTeX one, which editors show verbatim."""
    before, latex = inspect.getdoc(transform).split(".. math::", 1)
    assert f"``{formula}``" in before and latex
