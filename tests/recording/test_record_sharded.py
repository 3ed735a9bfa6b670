"""Sharded arrays and several processes: one recording of whole arrays, written once."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded_runs import STEPS, WEIGHTS
from support import environment, python
from test_record import kept

import gradxform as gx

SCRIPT = Path(__file__).parent / "sharded_runs.py"
pytestmark = pytest.mark.slow(reason="starts processes that import a framework each; two devices of JAX stay quick")


def together(kind: str, folder: Path, address: str, world: int = 2) -> None:
    """Run a script in each process of a group."""
    commands = [[sys.executable, SCRIPT, kind, folder, str(rank), str(world), address] for rank in range(world)]
    logs = [folder.parent / f"{folder.name}.{rank}.log" for rank in range(world)]
    running = []
    for command, path in zip(commands, logs, strict=True):
        with path.open("w") as log:
            running.append(subprocess.Popen(command, env=environment(OMP_NUM_THREADS="1"), stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert not any(codes), "\n".join(path.read_text()[-3000:] for path in logs)


@pytest.mark.parametrize("jitted", ["eager", "jitted"])
def test_eight_devices_of_jax(jitted: str, tmp_path: Path, jax: Any) -> None:
    eight = "--xla_force_host_platform_device_count=8"
    for name, ways, how in (("one", ("1", "1"), "eager"), ("eight", ("4", "2"), jitted)):
        python(SCRIPT, "jax devices", tmp_path / name, *ways, how, XLA_FLAGS=eight)
    found = gx.compare(tmp_path / "one", tmp_path / "eight")
    assert found.within and found.steps == list(range(STEPS)), str(found)
    for name, weights in WEIGHTS.items():
        np.testing.assert_array_equal(kept(tmp_path / "eight", 0, "parameters")[name], weights)


def test_two_processes_of_jax(tmp_path: Path, jax: Any) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    together("jax processes", tmp_path / "run", f"localhost:{port}")
    found = kept(tmp_path / "run", 0, "gradients")
    for name, weights in WEIGHTS.items():
        np.testing.assert_array_equal(found[name], weights)
    assert kept(tmp_path / "run", 0, "loss")[""] == 0  # of the first process


def test_two_processes_of_torch_with_dtensors(tmp_path: Path, torch: Any) -> None:
    """FSDP2 over gloo, by the recorder and by the handle of `attach`, beside one process with everything."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("PyTorch was built without gloo")
    for world in (1, 2):
        together("torch processes", tmp_path / str(world), str(tmp_path / f"store{world}"), world)
    for name, steps in (("attached", STEPS), ("called", STEPS), ("norms", 1)):
        found = gx.compare(tmp_path / "1" / name, tmp_path / "2" / name)
        assert found.within and found.steps == list(range(steps)), f"{name}: {found}"
        assert [pair.a.path for pair in found.pairs] == ["0/weight", "0/bias", "2/weight", "2/bias"]
        files = sorted(path.name for path in (tmp_path / "2" / name).iterdir())
        assert files == [f"step_{step:08d}.safetensors" for step in range(steps)]  # nothing of a second writer
