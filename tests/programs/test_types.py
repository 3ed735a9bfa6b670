"""Strict type checkers accept the code that users write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, environment

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
