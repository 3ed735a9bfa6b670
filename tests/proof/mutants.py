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

import mutants_cosmic as cosmic
import mutants_run as run
from mutants_page import FRAMEWORKS, page

ROOT = Path(__file__).parents[2]
LIMIT = 240.0
"""The time limit in seconds for one selection of tests."""
OWN = ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "ValueError")
"""Errors that a faulty contract raises itself."""


class Verdict(NamedTuple):
    """The result of a contract in a framework."""

    contract: str
    framework: str
    word: str
    """caught, survived, not reached, out of time, broken, no control."""
    test: str
    error: str
    seconds: float


def verdict(name: str, framework: str, result: Any, seconds: float = 0.0, word: str = "out of time") -> Verdict:
    """Return the verdict on a run of pytest; None is no result."""
    if result is None:
        return Verdict(name, framework, word, "", "", seconds)
    if result["code"] == 0:
        word = "survived" if result["calls"] else "not reached"
    else:
        right = result["code"] == 1 and result["when"] == "call" and result["calls"]
        own = result["where"].startswith("contracts") and result["error"] in OWN
        word = "caught" if right and not own else "broken"
    return Verdict(name, framework, word, result["test"], result["error"], seconds)


def in_framework(framework: str, only: str, workers: int) -> list[Verdict]:
    """Run all contracts of a framework in child processes; this process imports the framework once."""
    os.environ["KERAS_BACKEND"] = framework
    modules = {"numpy": [], "torch": ["torch", "torch._dynamo"]}.get(framework, [framework])
    run.warm(*modules, "gradxform", f"gradxform_{framework}")
    from contracts import unchanged
    from contracts_backends import CONTRACTS

    selections: dict[tuple[str, ...], list[Any]] = {}
    for contract in CONTRACTS:
        if framework in contract.frameworks and only in contract.name:
            selections.setdefault(tuple(contract.tests.arguments(framework)), []).append(contract)
    controls = [
        (arguments, functools.partial(_tested, some, framework, arguments, unchanged))
        for arguments, some in selections.items()
    ]
    passed = set()
    for arguments, result, seconds in run.forked(controls, workers, LIMIT):
        if result is not None and result["code"] == 0 and result["passed"]:
            passed.add(arguments)
        _say(f"{framework} control of {seconds:.1f} s: {' '.join(arguments)} {'' if arguments in passed else result}")
    found = {c.name: verdict(c.name, framework, None, 0.0, "no control") for some in selections.values() for c in some}
    jobs = [
        (contract.name, functools.partial(_tested, [contract], framework, arguments, None))
        for arguments, some in selections.items()
        for contract in some
        if arguments in passed
    ]
    for name, result, seconds in run.forked(jobs, workers, LIMIT):
        made = found[name] = verdict(name, framework, result, seconds)
        _say(f"{framework} {made.word} in {seconds:.1f} s: {name}: {made.error} {made.test}")
    return list(found.values())


def _tested(some: Any, framework: str, arguments: Any, make: Any) -> dict[str, Any]:
    """Run the tests with broken contracts, or with unchanged seams."""
    from contracts import apply

    from gradxform.backend import lookup

    here = tuple(dict.fromkeys(("numpy", framework)))
    lookup.installed = lambda: here  # tests of other frameworks are not collected
    calls = [apply(contract, framework, make) for contract in some]
    return {**run.tested(arguments), "calls": sum(count[0] for count in calls)}


def contracts_run(frameworks: list[str], only: str, workers: int) -> Iterator[Verdict]:
    """Run all contracts, framework by framework."""
    for framework in frameworks:
        work = functools.partial(in_framework, framework, only, workers)
        for _, result, _ in run.forked([(framework, work)], 1, 3600.0, heard=True):
            if result is None:
                raise RuntimeError(f"the process of {framework} ended before its time")
            yield from (Verdict(*made) for made in result)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def copied(folder: str) -> Path:
    """Copy the source tree, so that edits do not interfere."""
    to = Path(folder, "tree")
    for part in ("gradxform", "backends", "tests"):
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def main() -> int:
    """Run the command; 1 if a fault was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="contracts whose name has this part; no cosmic-ray")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="one of them; no cosmic-ray")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--mutants", help="lines of cosmic-ray, an expression for 'module:number'; no contracts")
    parser.add_argument("--out", type=os.path.abspath, help="the page to write")
    parser.add_argument("--here", action="store_true", help="in this tree, and not in a copy of it")
    given = parser.parse_args()
    if not given.here:
        with tempfile.TemporaryDirectory() as folder:
            tree = copied(folder)
            command = [sys.executable, str(tree / "tests/proof/mutants.py"), "--here", *sys.argv[1:]]
            command += ["--out", given.out] if given.out else []
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            return subprocess.run(command, cwd=tree, env=environment, check=False).returncode
    begun, verdicts, mutants = time.monotonic(), [], []
    sys.path[:0] = [str(ROOT / part) for part in (".", "backends", "tests", "tests/transforms")]
    if given.mutants is None:
        verdicts = list(contracts_run(given.framework or list(FRAMEWORKS), given.only or "", given.jobs))
    middle = time.monotonic()
    if not (given.only or given.framework):
        mutants = cosmic.outcomes(ROOT, given.jobs, given.mutants or "")
    took = f"contracts took {(middle - begun) / 60:.0f} min and cosmic-ray {(time.monotonic() - middle) / 60:.0f} min"
    if given.out:
        known = cosmic.equivalents(ROOT)
        Path(given.out).write_text(page(verdicts, mutants, known, f"on {given.jobs} cores, {took}"), encoding="utf-8")
    lost = [made for made in verdicts if made.word != "caught"]
    survivors = [mutant for mutant in mutants if mutant.word == "survived"]
    for made in lost:
        print(made)
    print(f"{len(verdicts) - len(lost)} of {len(verdicts)} faults caught, {len(survivors)} mutants survived; {took}")
    return 1 if lost or survivors or not (verdicts or mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
