"""Run tests in forked processes: the parent imports slow modules, and each child breaks something."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

OPTIONS = ("-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "pytest_timeout")
QUIET = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Done(NamedTuple):
    """The outcome of a job; no result if its process died or was stopped."""

    key: Any
    result: Any
    seconds: float


class Watch:
    """A pytest plugin that records the first failure."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"passed": 0, "test": "", "when": "", "error": "", "where": ""}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count passes and record the first failure."""
        self.found["passed"] += report.when == "call" and report.passed
        if report.failed and not self.found["test"]:
            self.found |= {"test": report.nodeid, "when": report.when}

    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        """Return the error's type and the file that raised it."""
        if not self.found["error"]:
            where = str(call.excinfo.traceback[-1].path) if call.excinfo.traceback else ""
            self.found |= {"error": call.excinfo.typename, "where": Path(where).name}


def tested(arguments: Iterable[str]) -> dict[str, Any]:
    """Run pytest in this process and return the outcome."""
    import pytest

    watch = Watch()
    code = pytest.main([*OPTIONS, *arguments], plugins=[watch])
    return {**watch.found, "code": int(code)}


def warm(*modules: str) -> None:
    """Import the modules that every job needs."""
    os.environ.update(QUIET)
    for name in ("numpy", "pytest", "optree", "ml_dtypes", *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def forked(
    jobs: Iterable[tuple[Any, Callable[[], Any]]],
    workers: int,
    limit: float,
    heard: bool = False,
) -> Iterator[Done]:
    """Run each job in its own process, several at a time; discard their output unless `heard`."""
    waiting, running = iter(jobs), {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while True:
                for key, work in itertools.islice(waiting, workers - len(running)):
                    pid = _started(work, folder, heard)
                    running[pid] = key, time.monotonic()
                if not running:
                    return
                for pid, (key, begun) in list(running.items()):
                    seconds = time.monotonic() - begun
                    if _has_ended(pid, seconds > limit):
                        del running[pid]
                        yield Done(key, _result(folder, pid), seconds)
                time.sleep(0.01)
        finally:
            for pid in running:
                _has_ended(pid, True)


def _started(work: Callable[[], Any], folder: str, heard: bool) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if not heard:
            log = os.open(os.path.join(folder, f"{os.getpid()}.log"), os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
        result = work()
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(result), encoding="utf-8")
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _has_ended(pid: int, stop: bool) -> bool:
    """Whether a child has ended; also ends the processes that it started."""
    if not stop and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _result(folder: str, pid: int) -> Any:
    result, log = Path(folder, f"{pid}.json"), Path(folder, f"{pid}.log")
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    if (keep := os.environ.get("MUTANTS_LOGS")) and log.exists():
        Path(keep, f"{pid}.log").write_text(log.read_text(encoding="utf-8", errors="replace"), encoding="utf-8")
    for file in (result, log):
        file.unlink(missing_ok=True)
    return found
