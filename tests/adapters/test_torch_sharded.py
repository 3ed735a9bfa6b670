"""gradxform on DTensors and under FSDP2: torch_sharded_cases.py in the processes of a gloo group, on the CPU."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import environment, python

import gradxform as gx

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

import torch_sharded_cases as cases  # noqa: E402

Found = dict[str, list[str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Found]:
    """The failures in each process of a group, by case; each group runs once for all cases."""
    return groups(tmp_path_factory, cases.__file__)


def groups(tmp_path_factory: pytest.TempPathFactory, script: str) -> Callable[[int], Found]:
    """The failures of a script's cases."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # shared by the workers
    return functools.cache(lambda world: once(script, world, root / f"{Path(script).stem} in a group of {world}"))


def once(script: str, world: int, folder: Path) -> Found:
    """The results of a group; the first pytest worker runs it, and the others wait."""
    done = folder / "done.json"
    try:
        folder.mkdir()
    except FileExistsError:
        while not done.exists():
            time.sleep(0.2)
    else:
        error, results = run(script, world, folder)
        (folder / "new").write_text(json.dumps([error, results]))
        (folder / "new").rename(done)
    error, results = json.loads(done.read_text())
    assert not error, error
    return {name: [result[name] for result in results] for name in results[0]}


def run(script: str, world: int, folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The logs if a process did not finish, and the failures of each process."""
    running = []
    for place in range(world):
        with open(folder / f"{place}.log", "w", encoding="utf-8") as log:
            command = [sys.executable, script, str(place), str(world), str(folder)]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment(OMP_NUM_THREADS="1")))
    end = time.monotonic() + 240
    while any(process.poll() is None for process in running) and time.monotonic() < end:
        if any(process.poll() for process in running):
            end = min(end, time.monotonic() + 5)  # the others may wait for a failed one
        time.sleep(0.1)
    for process in running:
        process.kill()
    if any(process.wait() for process in running):
        return "\n".join((folder / f"{place}.log").read_text()[-3000:] for place in range(world)) or "killed", []
    return "", [json.loads((folder / f"{place}.json").read_text()) for place in range(world)]


def assert_passed(found: Found, name: str) -> None:
    for place, failure in enumerate(found[name]):
        assert not failure, f"in process {place}: {failure}"


@pytest.mark.parametrize("name", cases.CASES)
def test_on_two_processes(found: Any, name: str) -> None:
    assert_passed(found(2), name)


@pytest.mark.parametrize("name", cases.ON_FOUR)
def test_on_a_mesh_of_two_dimensions(found: Any, name: str) -> None:
    assert_passed(found(4), name)


def test_a_process_without_dtensors_does_not_import_them() -> None:
    code = (
        "import sys, torch, gradxform as gx; before = 'torch.distributed.tensor' in sys.modules; "
        "gx.chain(gx.clip_value(2.0), gx.clip_norm(1.0, axes=0), gx.ema(0.9).update and gx.sign())([torch.ones(2)]); "
        "assert before or 'torch.distributed.tensor' not in sys.modules"
    )
    python("-c", code)


def test_a_shard_on_another_device_than_its_mesh_stays_there() -> None:
    """FSDP2's CPU offloading: from_local would move the tensor. A fake mesh stands for the accelerator."""
    from gradxform_torch import _sharded

    offloaded = Offloaded(torch.full((2, 2), 3.0))
    (found,) = _sharded.on_shards([offloaded], lambda own: [own[0] * 0.5])
    assert found.own.device.type == "cpu"
    assert found.own.tolist() == [[1.5, 1.5]] * 2
    assert offloaded.own.tolist() == [[3.0, 3.0]] * 2
    assert gx.testing.max_ulp(found.own.numpy(), offloaded.own.numpy() * 0.5) == 0


class Offloaded:
    """The part of a DTensor that writing a shard needs."""

    class device_mesh:
        device_type = "cuda"

    placements = ()

    def __init__(self, own: Any) -> None:
        self.own, self.shape, self.dtype = own, own.shape, own.dtype

    def stride(self) -> tuple[int, ...]:
        return self.own.stride()

    def to_local(self) -> Any:
        return self.own

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.empty_like
        return cls(torch.empty_like(args[0].own, **(kwargs or {})))

    @staticmethod
    def from_local(*_: Any, **__: Any) -> Any:
        raise AssertionError("from_local moves to the mesh's device")
