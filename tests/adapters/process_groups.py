"""Cases that run in the processes of a gloo group, and the processes."""

from __future__ import annotations

import datetime
import functools
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import array, environment, slow

Found = dict[str, list[str]]
meshes: dict[str, Any] = {}
problems: list[str] = []
"""The problems of the current case; raising in one process would leave the others waiting."""


class Cases:
    """The cases of two processes, and those of four, in a mesh of two dimensions."""

    def __init__(self) -> None:
        self.on: dict[int, dict[str, Callable[[], None]]] = {2: {}, 4: {}}

    def __call__(self, name: str, *worlds: int) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            for world in worlds or (2,):
                assert name not in self.on[world]
                self.on[world][name] = function
            return function

        return decorate


def rank() -> int:
    return torch.distributed.get_rank()


def world() -> int:
    return torch.distributed.get_world_size()


def told(value: Any) -> list[Any]:
    """Gather the values of all processes."""
    found: list[Any] = [None] * world()
    torch.distributed.all_gather_object(found, value)
    return found


def agree(value: Any) -> Any:
    """Return the value after checking that it is bit-identical on all processes."""
    assert len(set(told(array(value).tobytes()))) == 1, told(np.asarray(array(value)).tolist())
    return value


def fails(kind: type[Exception], words: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def collectives(function: Callable[[], Any]) -> dict[str, int]:
    """Return the collectives of a call by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    found: dict[str, int] = {}
    for event in profile.key_averages():
        kind, _, name = event.key.partition("::")
        # A functional collective is recorded under its own name and the name of the one it calls.
        if kind in ("c10d", "_c10d_functional") and not any(word in name for word in ("wait", "_wrap", "_coalesced")):
            name = {"_allgather_base_": "all_gather_into_tensor"}.get(name, name)
            found[name] = found.get(name, 0) + event.count
    return found


def main(cases: Cases) -> None:
    """Run all cases for this number of processes and write the failures; waiting processes time out."""
    from torch.distributed.device_mesh import init_device_mesh

    place, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store, limit = f"file://{folder}/store", datetime.timedelta(seconds=60)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=place, world_size=count, timeout=limit)
    if count == 4:
        meshes["square"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    meshes["line"] = init_device_mesh("cpu", (count,))
    failed = {}
    for name, run in cases.on[count].items():
        problems.clear()
        try:
            with warnings.catch_warnings():  # PyTorch warns about its own redistribution
                warnings.simplefilter("ignore")
                run()
            failed[name] = "\n".join(problems)
        except Exception:
            failed[name] = traceback.format_exc()
    Path(folder, f"{place}.json").write_text(json.dumps(failed), encoding="utf-8")
    torch.distributed.destroy_process_group()


# --- the processes, as the tests start them --------------------------------------------------------------------------


def groups(tmp_path_factory: pytest.TempPathFactory, script: str) -> Callable[[int], Found]:
    """The failures of a script's cases in each process of a group; each group runs once for all cases."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root  # shared by the workers
    return functools.cache(lambda count: _once(script, count, root / f"{Path(script).stem} in a group of {count}"))


def _once(script: str, count: int, folder: Path) -> Found:
    """The results of a group; the first pytest worker runs it, and the others wait."""
    done = folder / "done.json"
    try:
        folder.mkdir()
    except FileExistsError:
        while not done.exists():
            time.sleep(0.2)
    else:
        (folder / "new").write_text(json.dumps(_run(script, count, folder)))
        (folder / "new").rename(done)
    error, results = json.loads(done.read_text())
    assert not error, error
    return {name: [result[name] for result in results] for name in results[0]}


def _run(script: str, count: int, folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The logs if a process did not finish, and the failures of each process."""
    running = []
    for place in range(count):
        with open(folder / f"{place}.log", "w", encoding="utf-8") as log:
            command = [sys.executable, script, str(place), str(count), str(folder)]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment(OMP_NUM_THREADS="1")))
    end = time.monotonic() + 240
    while any(process.poll() is None for process in running) and time.monotonic() < end:
        if any(process.poll() for process in running):
            end = min(end, time.monotonic() + 5)  # the others may wait for a failed one
        time.sleep(0.1)
    for process in running:
        process.kill()
    if any(process.wait() for process in running):
        return "\n".join((folder / f"{place}.log").read_text()[-3000:] for place in range(count)) or "killed", []
    return "", [json.loads((folder / f"{place}.json").read_text()) for place in range(count)]


def tests(script: Any) -> tuple[Any, Any]:
    """The fixture and the test of a script's cases, on two processes and on four."""

    @pytest.fixture(scope="module")
    def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
        return groups(tmp_path_factory, script.__file__)

    @slow("starts groups of two and four processes; one process stays quick")
    @pytest.mark.parametrize(("world", "name"), [(world, name) for world in (2, 4) for name in script.case.on[world]])
    def test_in_processes(found: Any, world: int, name: str) -> None:
        for place, failure in enumerate(found(world)[name]):
            assert not failure, f"in process {place}: {failure}"

    return found, test_in_processes
