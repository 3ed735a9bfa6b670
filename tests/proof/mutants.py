"""Mutation testing: broken contracts in every framework, and cosmic-ray's mutations of the library. `make mutants`.

Results are appended to `.cache/mutants/KEY` as they come, and a second start goes on. Each fault has a process of its
own, forked from one that has imported the framework and run nothing in it: it has no threads then, which a fork loses.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import operator
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mutants_cosmic as cosmic
import mutants_run as run
from mutants_page import FRAMEWORKS, page, reason

ROOT = run.ROOT
OWN = ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "ValueError")
"""Errors that a faulty contract raises itself."""
BOUNDS = (5, 100, 40, 20.0), (1, 3, 3000, 60.0), (10000, 1, 10000, 120.0)
"""For each fault: parameters of each test in a round, rounds, tests and seconds at most. Survivors get the second, then
the third: every test that reaches them, the fastest first."""


class Fault(NamedTuple):
    """One contract or mutant."""

    key: str
    break_: Callable[[Any], Any]
    """Break it in this process for good, by its seams; False if that cannot be done."""
    reach: list[str]
    """The tests that reach it."""
    about: dict[str, Any]


class Records(dict[str, Any]):
    """Results by key, in a file of JSON lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        super().__init__((one["key"], one) for one in map(json.loads, lines))

    def add(self, **record: Any) -> None:
        """Append a result."""
        self[record["key"]] = record
        with self.file.open("a", encoding="utf-8") as file:
            print(json.dumps(record), file=file)
        print(time.strftime("%H:%M:%S"), f"{record['word']} in {record['seconds']:.1f} s:", record["key"], flush=True)


def chosen(tests: Iterable[str], control: Any, caught: Counter[str], bounds: Any) -> list[str]:
    """Choose tests that pass without a fault, a few of each function; those that found other faults come first."""
    by_function, order, found = defaultdict(list), [], []
    each, rounds, most, left = bounds
    for name in sorted(tests):
        if control["tests"].get(name, {}).get("word") == "passed":
            by_function[function(name)].append(name)
    for test, names in by_function.items():
        random.Random(cosmic.SEED).shuffle(names)
        for place, name in enumerate(names[: each * rounds]):
            order.append((place // each, -caught[test], control["tests"][name]["seconds"], name))
    for *_, seconds, name in sorted(order):
        if len(found) < most and seconds <= left:
            found.append(name)
            left -= seconds
    return found


def function(test: str) -> str:
    """A test without its parameters."""
    return test.partition("[")[0]


def is_caught(one: Any) -> bool:
    """Whether a test has found a fault, other than an error of the faulty contract itself."""
    return one["word"] == "failed in call" and not (one["error"][0] in OWN and one["error"][1].startswith("contracts"))


def verdict(said: list[Any], how: str) -> str:
    """The word for a fault: caught, survived, not reached, not applied, broken, died, out of time."""
    if any(map(is_caught, said)):
        return "caught"
    if how or not said:
        return how
    if any(one["word"].startswith("failed") for one in said):
        return "broken"
    return said[0]["word"] or ("survived" if said[1:] else "not reached")


def contracts(framework: str, seams: Any, control: Any) -> Iterator[Fault]:
    """The contracts of a framework, with the tests that name it, if there are any: not with NumPy's."""
    needs = run.NEEDS.get(framework, ("",))
    for contract in seams.contracts:
        reach = [name for name, one in control["tests"].items() if contract.target in one["seams"]]
        break_ = operator.methodcaller("break_", contract)
        own = [name for name in reach if any(package in name for package in needs)]
        yield Fault(f"{framework}: {contract.name}", break_, own or reach, {"framework": framework})


def mutants(folder: Path, count: int, control: Any) -> Iterator[Fault]:
    """The sample of mutants, which takes a minute to draw."""
    file, names = folder / "sample.json", list(control["tests"])
    if not file.exists():
        file.write_text(json.dumps(cosmic.sample(ROOT, count)), encoding="utf-8")
    for mutant in itertools.starmap(cosmic.Mutant, json.loads(file.read_text(encoding="utf-8"))):
        reach = [names[test] for test in cosmic.reaching(control, ROOT, mutant)]
        key, break_ = f"{mutant.module}:{mutant.line}: {mutant.new}", functools.partial(changed, mutant)
        yield Fault(key, break_, reach, {"mutant": mutant})


def changed(mutant: cosmic.Mutant, seams: Any) -> bool:
    """Apply a mutant in this process; it needs no seams."""
    return cosmic.apply(ROOT, mutant)


def attempt(fault: Fault, names: list[str], first: bool, here: run.Session, seams: Any, say: Any) -> None:
    """Run tests with a fault, until one fails or all of them."""
    try:
        say({"test": "", "word": "not applied" if fault.break_(seams) is False else ""})
    except ImportError:
        return say({"test": "import", "word": "failed in call", "error": ["ImportError", ""]})
    for name in names:
        say(one := here.test(name))
        if first and is_caught(one):
            return


def attempts(fresh: Any, faults: Iterable[Fault], control: Any, given: Any, records: Records) -> None:
    """Run the tests of all faults that have no result yet."""
    caught = Counter(name for one in records.values() for name in one["caught"])
    wanted = (fault for fault in faults if given.only in fault.key)
    all_bounds = [(1, given.each, 10000, given.seconds)] if given.each else BOUNDS
    for fault, bounds in ((fault, bounds) for fault in wanted for bounds in all_bounds):
        known, begun = records.get(fault.key, {}), time.monotonic()
        first = caught if bounds is BOUNDS[0] else Counter()
        names = chosen(fault.reach, control, first, bounds)
        open_ = known.get("word", "survived") == "survived" and known.get("tests", -1) < len(names)
        if open_ and not reason(known) and begun < given.end:
            expected = sum(control["tests"][name]["seconds"] for name in names)
            work = functools.partial(attempt, fault, names, not given.each)
            files = sorted({name.partition("::")[0] for name in names})
            said, how = fresh(work, 120.0 + 4 * expected, *files) if names else ([], "not reached")
            found = Counter(function(one["test"]) for one in said if is_caught(one))
            ran = Counter(function(one["test"]) for one in said if one["test"])
            caught.update(found.keys())
            records.add(
                key=fault.key, word=verdict(said, how), caught=found, ran=ran, how=how, reach=len(fault.reach),
                tests=len(names), seconds=time.monotonic() - begun, commit=given.commit, date=time.strftime("%Y-%m-%d"),
                **fault.about,
            )  # fmt: skip


def fresh(seams: Any, work: Any, limit: float, *tests: str) -> tuple[list[Any], str]:
    """Collect tests in a fresh process, and call `work(session, seams, say)` there."""

    def begin(say: Callable[[Any], None]) -> None:
        run.session(functools.partial(work, seams=seams, say=say), *tests)

    return run.forked(begin, limit)


def in_framework(framework: str, given: Any, records: Records) -> None:
    """Run the tests of one framework; it stays imported."""
    start = functools.partial(fresh, seams := run.prepared(framework))
    folders = [ROOT / "gradxform" / name for name in cosmic.FOLDERS if framework == "numpy"]
    file = given.folder / f"{framework}.json"
    control = run.control(lambda work, limit: start(work, limit, *given.tests), file, folders, given.end)
    if "contracts" in given.what:
        attempts(start, contracts(framework, seams, control), control, given, records)
    if "mutants" in given.what and folders:
        attempts(start, mutants(given.folder, given.sample, control), control, given, records)


def main() -> int:
    """Run the command; 1 if a fault was not noticed."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="one of them")
    parser.add_argument("--what", default="contracts mutants", help="contracts, mutants or control")
    parser.add_argument("--only", default="", help="faults whose name has this part")
    parser.add_argument("--sample", type=int, default=500, help="how many mutants to draw")
    parser.add_argument("--each", type=int, help="all tests of a seam, so many parameters of each; not only the first")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="with --each: the most that the tests of a fault take"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="the most to take; the next start goes on")
    parser.add_argument("--folder", type=Path, help="where results are, by default .cache/mutants/COMMIT")
    parser.add_argument("--out", type=Path, help="the page to write")
    parser.add_argument("tests", nargs="*", help="files of tests, by default the quick suite")
    given = parser.parse_args()
    given.commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    given.end = time.monotonic() + 60 * given.minutes
    given.folder = given.folder or ROOT / ".cache/mutants" / given.commit
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.path[:0] = [str(ROOT / part) for part in (".", "backends", "tests", "tests/transforms")]
    file = given.folder / ("kills.jsonl" if given.each else "results.jsonl")
    for framework in given.framework or FRAMEWORKS:
        process = run.FORK.Process(target=in_framework, args=(framework, given, Records(file)))
        process.start()
        process.join()
        if process.exitcode:
            return 1
    records = Records(file)
    if given.out:
        old = given.out.read_text(encoding="utf-8") if given.out.exists() else ""
        given.out.write_text(page(records.values(), given.commit, given.sample, old), encoding="utf-8")
    caught = sum(one["word"] == "caught" for one in records.values())
    print(f"{caught} of {len(records)} faults were caught")
    return 0 if records and all(one["word"] == "caught" or reason(one) for one in records.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
