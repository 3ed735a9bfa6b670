"""A mistake in any command is one line and exit status 2, before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_compare import recorded
from typer.testing import CliRunner

from gradxform.cli import app

pytestmark = pytest.mark.filterwarnings("default")
run = CliRunner().invoke

REPORT = "report --frameworks numpy --gradients"
MISTAKES = {
    "demo --chain clip_nrom(1.0)": "clip_nrom",
    "demo --chain clip_norm(-1.0)": "-1.0",
    "demo --chain __import__('os')": "__import__",
    "demo --frameworks jax,mxnet": "mxnet",
    "parity --gradients nothing.npz": "nothing.npz",
    "parity --gradients objects.npz": "objects.npz",
    "parity --frameworks mxnet": "mxnet",
    "bench --trees alexnet": "alexnet",
    f"{REPORT} nothing.npz": "nothing.npz",
    f"{REPORT} broken.safetensors": "broken.safetensors",
    f"{REPORT} bits.npz": "numeric",
    f"{REPORT} empty.npz": "no arrays",
    "report --frameworks numpy --chain masked(clip_norm(1.0),'w')": "--gradients",
    "compare a nowhere": "'nowhere'",
    "compare a empty": "holds no recording",
    "compare a cut": "cut short",
    "compare a a --map nowhere.toml": "'nowhere.toml'",
    "compare a a --picture a/picture.xyz": "'picture.xyz'",
    "compare a a --picture a/picture": "'picture'",
    "compare a a --report a": "is a folder",
    "compare a a --tolerance -1": "-1",
    **{f"compare nowhere nowhere {option} a/no/where.png": f"{option}: " for option in ("--picture", "--report")},
    "compare nowhere nowhere --write-map a/no/where.toml": "--write-map: ",
    **{
        f"{command} --device {asked} --frameworks jax": named
        for command in ("parity", "demo", "bench")
        for asked, named in {
            "cudaa": "'cuda'",
            "toaster": "'toaster'",
            "cuda:x": "'cuda:0'",
            "cpu:7": "'cpu:7'",
        }.items()
    },
}


def files() -> None:
    """Recordings, and files that hold no gradients."""
    recorded(Path("a"))
    (first, *_) = sorted(Path(recorded(Path("cut"))).iterdir())
    first.write_bytes(first.read_bytes()[:50])
    Path("empty").mkdir()
    Path("broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0no json!")
    np.savez("bits.npz", w=np.zeros(2, "V2"))
    np.savez("empty.npz")
    np.savez("objects.npz", objects=np.array([{"a": 1}], dtype=object))


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_code_2(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files()
    before = set(tmp_path.rglob("*"))
    result = run(app, line.split())
    assert result.exit_code == 2, result.output
    assert MISTAKES[line] in result.stderr
    assert result.stderr.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: root may write everywhere."""

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refused)
    result = run(app, ["compare", "nowhere", "nowhere", "--report", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "report.html'" in result.stderr and "Permission denied" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize("option", ["--report", "--write-map"])
def test_a_full_disk(option: str, tmp_path: Path) -> None:
    result = run(app, ["compare", recorded(tmp_path / "a"), recorded(tmp_path / "b"), option, "/dev/full"])
    assert result.exit_code == 2
    assert "'/dev/full'" in result.stderr and "No space left" in result.stderr
    assert result.stderr.count("\n") == 1
