"""`gradxform compare`: the table, the files it writes, the codes it ends with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from typer.testing import CliRunner

import gradxform as gx
from gradxform.cli import app
from gradxform.cli.compare.picture import figure

COLUMNS = {"COLUMNS": "180"}
run = CliRunner().invoke


def recorded(folder: Path, factor: float = 1.0, steps: int = 3, kernel: bool = False) -> str:
    """Record two leaves, as PyTorch or as Flax has them."""
    recorder = gx.record(folder)
    for step in range(steps):
        rng = np.random.default_rng(step)
        weight, bias = (factor * rng.normal(size=shape).astype(np.float32) for shape in ((4, 6), (4,)))
        layer = {"kernel": weight.T, "bias": bias} if kernel else {"weight": weight, "bias": bias}
        recorder(step, gradients={"dense": layer})
    return str(folder)


def test_two_runs_that_agree(tmp_path: Path) -> None:
    result = run(app, ["compare", recorded(tmp_path / "a"), recorded(tmp_path / "b", kernel=True)], env=COLUMNS)
    assert result.exit_code == 0, result.output
    for words in ("2 pairs: 1 by equal paths, 1 by names", "dense/kernel (transposed)", "equal in every element"):
        assert words in " ".join(result.output.split()), result.output


def test_two_runs_that_do_not_and_what_is_written(tmp_path: Path) -> None:
    files = {name: str(tmp_path / f"out.{name}") for name in ("png", "html", "toml")}
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b<i>", 8.0, kernel=True)
    options = ["--picture", files["png"], "--report", files["html"], "--write-map", files["toml"]]
    result = run(app, ["compare", a, b, *options], env=COLUMNS)
    assert result.exit_code == 1, result.output
    assert "8 times larger in B" in result.output
    assert all(f"written: {path}" in result.output for path in files.values())
    assert Path(files["png"]).read_bytes().startswith(b"\x89PNG")
    page = Path(files["html"]).read_text(encoding="utf-8")
    assert "b<i>" not in page and "b&lt;i&gt;" in page
    loaded = re.findall(r"(?:src|href)=.(.{22})", page)
    assert loaded == ["data:image/png;base64,"] and not re.search(r"https?://|url\(", page)
    again = run(app, ["compare", a, b, "--map", files["toml"]], env=COLUMNS)
    assert again.exit_code == 1
    assert "2 pairs: 2 by the map" in again.output


def test_bfloat16_is_read_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Where no framework has taught NumPy the dtype."""
    for name in "ab":
        gx.record(tmp_path / name)(0, gradients={"w": np.linspace(-1, 1, 12).astype(ml_dtypes.bfloat16)})
    command = [sys.executable, "-m", "gradxform", "compare", str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**os.environ, **COLUMNS})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal in every element" in done.stdout


def test_a_tolerance_and_norms(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b", 1.001)
    assert run(app, ["compare", a, b]).exit_code == 1
    assert run(app, ["compare", a, b, "--tolerance", "0.01"]).exit_code == 0
    gx.record(tmp_path / "c", norms_only=True)(0, gradients={"dense": {"weight": np.ones(3), "bias": np.ones(2)}})
    assert run(app, ["compare", str(tmp_path / "c"), str(tmp_path / "c")]).exit_code == 0


def test_nan_and_many_leaves_are_drawn(tmp_path: Path) -> None:
    for name, bad in (("a", 1.0), ("b", float("nan"))):
        recorder = gx.record(tmp_path / name)
        for step in range(2):
            leaf = np.ones(3) * (bad if step else 1.0)
            recorder(step, gradients={**{f"layer{i}": np.ones(2) for i in range(70)}, "last": leaf})
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--picture", str(tmp_path / "x.svg")]
    result = run(app, arguments, env=COLUMNS)
    assert result.exit_code == 1, result.output
    assert "0 in A, 3 in B" in result.output
    assert "24 of 71 leaves" in result.output
    assert "71 of 71" not in run(app, [*arguments, "--all"], env=COLUMNS).output
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_brackets_in_names_are_no_markup(tmp_path: Path) -> None:
    for name in "ab":
        gx.record(tmp_path / name)(0, gradients={"x[/red]": np.ones((2, 3)), "[bold]y": np.ones(3)})
    result = run(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")], env=COLUMNS)
    assert result.exit_code == 0, result.output
    assert "x[/red]" in result.output and "[bold]y" in result.output


def test_noise_does_not_fill_the_table(tmp_path: Path, rng: Any) -> None:
    """Biases before a norm are noise: they differ entirely, and the leaves that matter are shown all the same."""
    kernels = {f"layer{i}/kernel": rng.normal(size=(4, 4)).astype(np.float32) for i in range(30)}
    for name in ("a", "b"):
        noise = {f"layer{i}/bias": 1e-9 * rng.normal(size=4).astype(np.float32) for i in range(30)}
        gx.record(tmp_path / name)(0, gradients={**{p: x * np.float32(1 + 1e-6) for p, x in kernels.items()}, **noise})
        kernels = {path: x * np.float32(1 + 1e-6) for path, x in kernels.items()}
    result = run(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")], env=COLUMNS)
    assert result.exit_code == 0, result.output
    assert result.output.count("/kernel") == 24
    assert "/bias" not in result.output


def test_noise_is_grey_in_the_picture(tmp_path: Path) -> None:
    """A key's bias has no gradient but rounding, and the largest distance of all."""
    for name, factor in (("a", 1), ("b", 2)):
        recorder = gx.record(tmp_path / name)
        for step in range(3):
            draw = np.random.default_rng((step, factor)).normal
            weight = factor * np.random.default_rng(step).normal(size=(4, 6)).astype(np.float32)
            recorder(step, gradients={"dense": {"weight": weight, "bias": np.float32(1e-8 * draw(size=4))}})
    found = gx.compare(tmp_path / "a", tmp_path / "b")
    grey = figure(found).axes[0].collections[1].get_array()
    assert (~np.ma.getmaskarray(grey)).tolist() == [[pair.label == "dense/bias"] * 3 for pair in found.pairs]
