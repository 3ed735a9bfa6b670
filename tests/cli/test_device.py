"""`--device`: where each framework runs, and one sentence if there is no such device."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_page
import numpy as np
import pytest
from support import PROCESSES, XLA, slow
from typer.testing import CliRunner
from without_float64 import indexing

from gradxform.backend import lookup
from gradxform.cli import app, device
from gradxform.cli.bench import run as bench
from gradxform.cli.bench.timing import Effort
from gradxform.cli.bench.workloads import CHAINS
from gradxform.cli.frameworks import program, title
from gradxform.proof.place import Absent, Place

pytestmark = pytest.mark.filterwarnings("default")
HERE = Path(__file__).parent
WIDE = {"COLUMNS": "200"}
invoke = CliRunner().invoke


@pytest.fixture
def gradients(tmp_path: Path) -> str:
    path = tmp_path / "g.npz"
    np.savez(path, w=np.float32([30, 40]), b=np.float64([3]))
    return str(path)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the benchmark."""
    monkeypatch.setattr(bench, "QUICK", bench.QUICK._replace(chains=(1,), effort=Effort(0.0, 2, 2)))


# --- what it ran on --------------------------------------------------------------------------------------------------


@slow(XLA, framework=("jax", "tensorflow"))
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_the_benchmark_says_where_it_ran(framework: str, tmp_path: Path) -> None:
    arguments = ["bench", "--frameworks", framework, "--trees", "mlp", "--device", "cpu", "--out", str(tmp_path)]
    result = invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert f"measured: {title(framework)} on cpu" in result.output
    assert "…" not in result.output
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["device"], found["devices"]) == ("cpu", {framework: "cpu"})
    page = bench_page.page(found)
    assert f"; {title(framework)} on cpu; " in page
    assert f"\nWritten by `gradxform bench --quick --frameworks {framework} --trees mlp --device cpu`" in page


def lacking(monkeypatch: pytest.MonkeyPatch, framework: str, *dtypes: str) -> None:
    """Let a framework's devices lack some dtypes."""
    find = device.find

    def other(name: str, asked: str | None = None, index: int = 0) -> Place:
        place = find(name, asked, index)
        return replace(place, without=dtypes) if name == framework else place

    monkeypatch.setattr(device, "find", other)


def test_a_dtype_that_a_device_does_not_have(gradients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, "numpy", "float64")
    result = invoke(app, ["parity", "--device", "cpu", "--gradients", gradients, "--frameworks", "numpy"], env=WIDE)
    assert result.exit_code == 0, result.output
    assert "NumPy on cpu, no float64" in result.output
    assert "left out: no float64 there" in result.output


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_a_result_that_lies_elsewhere_is_told(framework: str, gradients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = device.find(framework, "cpu")
    elsewhere = replace(found, words="the moon", lies=lambda leaf: False)
    monkeypatch.setattr(device, "find", lambda *_: elsewhere)
    monkeypatch.setattr(lookup.backend(framework), "compile", lambda function: None)
    result = invoke(app, ["parity", "--device", "cpu", "--gradients", gradients, "--frameworks", framework], env=WIDE)
    assert result.exit_code == 1
    assert "not on the moon" in result.output


# --- where there is none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["parity"], ["demo"], ["bench"]], ids=" ".join)
def test_a_device_that_no_framework_sees(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(app, [*command, "--device", "cuda"], env=WIDE)
    assert result.exit_code == 2, result.output
    names = [name for name in lookup.installed() if command != ["demo"] or name != "numpy"]
    for name in names:
        assert f"left out: {title(name)}, which " in result.stdout
    titles = ", ".join(title(name) for name in names)
    assert result.stderr.startswith(f"gradxform: {command[0]}: ") and result.stderr.endswith(f"cpu ({titles})\n")
    assert not (tmp_path / "demo.png").exists()


def test_the_frameworks_that_have_it_are_run(gradients: str, monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    find = device.find

    def other(name: str, asked: str | None = None, index: int = 0) -> Place:
        return find(name, "cpu") if name == "torch" else find(name, asked, index)

    monkeypatch.setattr(device, "find", other)
    monkeypatch.setattr(lookup.backend("torch"), "compile", lambda function: None)
    arguments = ["parity", "--device", "gpu", "--gradients", gradients, "--frameworks", "numpy,torch"]
    result = invoke(app, arguments, env=WIDE)
    assert result.exit_code == 0, result.output
    assert "left out: NumPy, which sees no gpu device: it has cpu" in result.output
    assert "numpy eager" not in result.output
    assert "torch eager" in result.output


def test_a_backend_that_names_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "docs/examples"))
    with pytest.raises(Absent, match=r"no module gradxform_array_api_strict\.device"):
        device.find("array_api_strict", "cpu")


# --- devices that are simulated --------------------------------------------------------------------------------------


@slow(PROCESSES)
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_every_array_of_a_run_lies_on_the_second_device(framework: str, tmp_path: Path) -> None:
    """Parity, the demo and the benchmark on the second of two CPU devices."""
    script = [sys.executable, str(HERE / "device_cases.py"), framework, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every array was on cpu:1\n")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simulate a CUDA or Apple device in PyTorch; tensors have no values, and devices cannot be mixed."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda of: f"SIMULATED {of.type}")
    with FakeTensorMode(allow_non_fake_inputs=True), indexing():
        yield torch


@pytest.mark.parametrize(
    ("asked", "words"),
    [("cuda", "SIMULATED cuda (cuda:0)"), ("mps", "mps, no float64 and no complex128"), ("metal", "mps, no float64")],
)
def test_pytorch_on_a_device(asked: str, words: str, simulated: Any) -> None:
    place = device.find("torch", asked)
    assert str(place).startswith(words)
    leaves = {"w": np.ones((64, 8), np.float32), "b": np.ones(3, np.float16)}
    tree = {path: place.put(leaf) for path, leaf in leaves.items()}
    assert {leaf.device.type for leaf in tree.values()} == {place.name}
    assert all(map(place.lies, tree.values()))
    assert not place.lies(simulated.ones(3))
    with pytest.raises(Absent, match=r"which sees no .*:1: there is 1"):
        device.find("torch", asked, 1)


@pytest.mark.parametrize("asked", ["cuda", "mps"])
@pytest.mark.parametrize("mode", ["in place", "pure"])
def test_pytorchs_benchmark_on_a_device(asked: str, mode: str, simulated: Any) -> None:
    modes = program("torch").MODES
    place = device.find("torch", asked)
    tree = {"a/w": np.ones((64, 8), np.float32), "a/b": np.ones(8, np.float32)}
    (chosen,) = (m for m in modes if m.name == mode)
    for side in bench.sides("torch", chosen, CHAINS[3], tree, place):
        result = side.run()
        assert result is None or all(map(place.lies, result))
