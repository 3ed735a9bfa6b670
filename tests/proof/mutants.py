"""Mutation testing: broken contracts in every framework, and cosmic-ray over the mathematics. `make mutants`."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "backends", "tests", "tests/transforms", "tests/proof")]

import mutants_run as run  # noqa: E402


class Verdict(NamedTuple):
    """What became of a contract in a framework."""

    contract: str
    framework: str
    word: str
    """caught, survived, not reached, out of time, broken, no control."""
    test: str
    error: str
    seconds: float


def in_framework(framework: str, only: str, workers: int) -> list[Verdict]:
    """All contracts of a framework, in children of this process."""
    os.environ["KERAS_BACKEND"] = framework
    modules = {"numpy": [], "torch": ["torch", "torch._dynamo"]}.get(framework, [framework])
    run.warm(*modules, "gradxform", f"gradxform_{framework}")
    import contracts
    from contracts_all import CONTRACTS

    chosen = [c for c in CONTRACTS if framework in c.frameworks and only in c.name]
    selections: dict[tuple[str, ...], list[Any]] = {}
    for contract in chosen:
        selections.setdefault(tuple(contract.tests.arguments(framework)), []).append(contract)
    controls = (
        (arguments, functools.partial(_run, some, framework, arguments, contracts.unchanged))
        for arguments, some in selections.items()
    )
    passed: dict[Any, bool] = {}
    for arguments, result, seconds in run.forked(controls, workers, LIMIT):
        passed[arguments] = result is not None and result["code"] == 0 and result["passed"] > 0
        _say(f"{framework} control {'passed' if passed[arguments] else result} {seconds:.1f} s: {' '.join(arguments)}")
    jobs = (
        (contract, functools.partial(_run, [contract], framework, arguments, None))
        for arguments, some in selections.items()
        for contract in some
        if passed[arguments]
    )
    found = {contract.name: _verdict(contract, framework, None, 0.0, "no control") for contract in chosen}
    for contract, result, seconds in run.forked(jobs, workers, LIMIT):
        verdict = found[contract.name] = _verdict(contract, framework, result, seconds)
        _say(f"{framework} {verdict.word} {seconds:.1f} s {contract.name}: {verdict.error} {verdict.test}")
    return list(found.values())


LIMIT = 240.0
"""Seconds for one selection of tests."""


def _run(some: Any, framework: str, arguments: Any, make: Any) -> dict[str, Any]:
    from contracts import apply

    from gradxform import _backend

    here = tuple(dict.fromkeys(("numpy", framework)))
    _backend.installed = lambda: here  # tests of the others are not even collected
    calls = [apply(contract, framework, make) for contract in some]
    return {**run.tested(arguments), "calls": sum(count[0] for count in calls)}


def _verdict(contract: Any, framework: str, result: Any, seconds: float, word: str = "out of time") -> Verdict:
    if result is None:
        return Verdict(contract.name, framework, word, "", "", seconds)
    if result["code"] == 0:
        word = "survived" if result["calls"] else "not reached"
    else:
        right = result["code"] == 1 and result["when"] == "call" and result["calls"]
        word = "caught" if right and not result["where"].startswith("contracts") else "broken"
    return Verdict(contract.name, framework, word, result["test"], result["error"], seconds)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.__stderr__, flush=True)


def contracts_run(frameworks: list[str], only: str, workers: int) -> Iterator[Verdict]:
    """All contracts, one framework after the other, each in a process that imports it once."""
    for framework in frameworks:
        work = functools.partial(in_framework, framework, only, workers)
        for _, result, _ in run.forked([(framework, work)], 1, 3600.0, heard=True):
            yield from (Verdict(*verdict) for verdict in result or ())


def copied(folder: str) -> Path:
    """A copy of the tree, which nobody edits."""
    to = Path(folder, "tree")
    for part in ("gradxform", "backends", "tests"):
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="contracts whose name has this part")
    parser.add_argument("--framework", action="append", help="one framework; several times for several")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="in this tree, and not in a copy of it")
    arguments = parser.parse_args()
    if not arguments.here:
        with tempfile.TemporaryDirectory() as folder:
            tree = copied(folder)
            command = [sys.executable, str(tree / "tests/proof/mutants.py"), "--here", *sys.argv[1:]]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            return subprocess.run(command, cwd=tree, env=environment, check=False).returncode
    verdicts = list(contracts_run(arguments.framework or list(ALL), arguments.only, arguments.jobs))
    for verdict in verdicts:
        if verdict.word != "caught":
            print(verdict)
    print(len(verdicts), sum(verdict.word == "caught" for verdict in verdicts))
    return 0


ALL = ("numpy", "jax", "tensorflow", "torch")

if __name__ == "__main__":
    sys.exit(main())
