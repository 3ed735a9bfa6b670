"""Pytest sessions in fresh processes: without a fault, to see what the tests reach, and with one."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FORK: Any = multiprocessing.get_context("fork")
OTHERS = ("jax", "tensorflow", "torch", "keras", "optax", "flax", "mlx", "haiku", "equinox", "lightning", "torchjd")
"""Packages that NumPy's tests do without."""
NEEDS = {"jax": ("jax", "keras", "optax"), "tensorflow": ("tensorflow", "keras"), "torch": ("torch", "keras")}
"""The packages of a framework's tests."""
LEFT_OUT = ("tests/benchmarks", "tests/pages", "tests/proof/test_contracts.py")
KERAS = sorted(map(str, (ROOT / "tests/adapters").glob("keras*_cases.py")))
"""Tests that the quick suite runs in processes of their own."""
QUICK = ("tests", "gradxform", *KERAS, *(f"--ignore={path}" for path in LEFT_OUT))
OPTIONS = ("-q", "--no-header", "--tb=short", "-mnot slow", "-otimeout=60", "--continue-on-collection-errors")
PLUGINS = ("no:cacheprovider", "no:faulthandler", "pytest_timeout")
SILENCE = 150.0
"""Seconds without a result after which a process hangs; a test has 60, and imports come before the first."""


class _Hidden:
    """Hide packages of other frameworks."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Implement the import protocol."""
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def prepared(framework: str) -> Any:
    """Hide other frameworks from the tests of one, import it, and return its seams; no test has been imported."""
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "KERAS_BACKEND": framework}
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    hidden, find = _Hidden(set(OTHERS) - set(NEEDS.get(framework, ()))), importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in hidden.names else find(name, *rest)
    sys.meta_path.insert(0, hidden)  # type: ignore[arg-type]
    from hypothesis import Phase, settings

    settings.register_profile("faults", phases=(Phase.explicit, Phase.generate))  # a failure is not made smaller
    settings.load_profile("faults")
    from gradxform.backend import lookup

    here = tuple(dict.fromkeys(("numpy", framework)))
    lookup.installed = lambda: here  # type: ignore[assignment]  # tests of other frameworks are not collected
    from contracts import Seams
    from contracts_backends import CONTRACTS

    seams = Seams(CONTRACTS, framework)
    gc.freeze()  # the forks do not go through these objects again
    with contextlib.suppress(FileNotFoundError):  # outside Linux
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError(f"importing {framework} starts threads, which a fork loses: it may hang")
    return seams


class Session:
    """A pytest plugin: collect tests, and call `work` instead of running them."""

    def __init__(self, work: Callable[[Session], None]) -> None:
        self.work, self.items, self.reports = work, {}, []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        """Implement pytest's hook."""
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the reports of the test that runs."""
        self.reports.append(report)

    def test(self, name: str) -> dict[str, Any]:
        """Run one test in this process."""
        self.reports, begun = [], time.monotonic()
        item = self.items[name]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        bad = next((report for report in self.reports if report.failed), None)
        passed = any(report.passed and report.when == "call" for report in self.reports)
        word = f"failed in {bad.when}" if bad else "passed" if passed else "skipped"
        crash = getattr(bad and bad.longrepr, "reprcrash", None)  # the last line of the traceback
        error = (crash.message.partition(":")[0], Path(crash.path).name) if crash else ("", "")
        return {"test": name, "word": word, "error": error, "seconds": time.monotonic() - begun}


def session(work: Callable[[Session], None], *arguments: str) -> None:
    """Collect tests, by default the quick ones, and call `work`."""
    options = [*OPTIONS, *(f"-p{name}" for name in PLUGINS), *(arguments or QUICK)]
    if pytest.main(options, plugins=[Session(work)]) == pytest.ExitCode.INTERNAL_ERROR:
        raise RuntimeError("the session was not finished")


def forked(work: Callable[[Callable[[Any], None]], None], limit: float) -> tuple[list[Any], str]:
    """Run `work(say)` in a forked process; return what it said, and how it ended: "", "died" or "out of time"."""
    with tempfile.TemporaryDirectory() as folder:
        said, end = Path(folder, "said"), time.monotonic() + limit
        said.touch()
        process = FORK.Process(target=_child, args=(work, said))
        process.start()
        while process.is_alive() and time.monotonic() < end and time.time() < said.stat().st_mtime + SILENCE:
            process.join(0.1)
        how = "out of time" if process.is_alive() else "died" if process.exitcode else ""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if how == "out of time":
                os.kill(process.pid, signal.SIGUSR1)  # where it hangs, in MUTANTS_LOG
                process.join(1.0)
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
        process.join()
        return list(map(json.loads, said.read_text(encoding="utf-8").splitlines())), how


def _child(work: Callable[[Callable[[Any], None]], None], said: Path) -> None:
    os.setsid()
    os.dup2(os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    faulthandler.register(signal.SIGUSR1, file=os.dup(2))  # pytest redirects 2
    with said.open("w", encoding="utf-8", buffering=1) as file:
        work(lambda what: print(json.dumps(what), file=file))
    os._exit(0)  # no threads of tests are waited for


def control(fresh: Callable[..., tuple[list[Any], str]], file: Path, folders: list[Path], end: float) -> Any:
    """Run all tests without a fault: results, seams, and for each line of the folders the tests that reach it.

    A test that hangs or ends its process has no result; another process goes on after it.
    """
    found: Any = {"tests": {}, "lines": {}, "finished": False}
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
    while not found["finished"] and time.monotonic() < end:
        known = {} if folders else found["tests"]  # lines come last, and for all tests
        said, how = fresh(functools.partial(_control, known, folders), end - time.monotonic())
        for kind, name, one in said:
            found[kind][name] = one
        found["finished"] = not how or not said
        file.write_text(json.dumps(found), encoding="utf-8")
    return found


def _control(known: Any, folders: list[Path], here: Session, seams: Any, say: Callable[[Any], None]) -> None:
    import coverage

    cover = coverage.Coverage(data_file=None, config_file=False, include=[f"{folder}/*" for folder in folders])
    if folders:
        cover.start()
    for name in [name for name in here.items if name not in known]:
        say(["tests", name, {"word": "no result", "seams": []}])
        seams.called.clear()
        if folders:
            cover.switch_context(name)
        say(["tests", name, {**here.test(name), "seams": sorted(seams.called)}])
    cover.stop()
    numbers = {name: number for number, name in enumerate(here.items)}
    for path in cover.get_data().measured_files():
        found: dict[Any, list[int]] = defaultdict(list)
        for line, names in cover.get_data().contexts_by_lineno(path).items():
            found[tuple(sorted(numbers[name] for name in names if name))].append(line)
        say(["lines", Path(path).relative_to(ROOT).as_posix(), [[lines, tests] for tests, lines in found.items()]])
