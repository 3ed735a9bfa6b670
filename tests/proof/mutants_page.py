"""The page that `make mutants` writes."""

from __future__ import annotations

import functools
import platform
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

FRAMEWORKS = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
PACKAGES = {**FRAMEWORKS, "keras": "Keras", "pytest": "pytest", "cosmic-ray": "cosmic-ray"}

CONTRACTS = """\
Does a test fail when the library is broken? `make mutants` injects one fault at a time, runs the tests that reach it,
and writes this page. What a run leaves out keeps its lines.

## Broken contracts

A contract is a promise, such as "the limit holds" or "the state advances". `tests/proof` breaks each one at run time by
replacing a function or a method. A fault counts as caught if a test that passes without it fails.

{lines}

"""
MUTANTS = """\
## Mutated code

[cosmic-ray](https://cosmic-ray.readthedocs.io) changes one operator, comparison, number or condition at a time. A fixed
seed draws lines of `core`, `transforms`, `functions`, `numerics` and `backend`, and one mutation of each (Petrovic and
Ivankovic, State of mutation testing at Google, 2018). NumPy's quick tests that reach the line run until one fails. A
survivor without a reason is not explained yet.

{lines}

Written by `make mutants` on {date} at commit `{commit}`, with Python {python}, {packages}.
"""


def page(records: Iterable[Any], commit: str, drawn: int, old: str = "") -> str:
    """Return the page; `drawn` is the size of the sample, and `old` is the page with what was not run now."""
    records = list(records)
    mutants = [one for one in records if "mutant" in one]
    before, heading, after = old.partition(MUTANTS.partition("\n")[0])
    if mutants or not heading:
        heading, after = (
            "",
            MUTANTS.format(
                lines="\n".join(_mutants(mutants, drawn)),
                date=time.strftime("%Y-%m-%d"),
                commit=commit,
                python=platform.python_version(),
                packages=", ".join(f"{name} {version(package)}" for package, name in PACKAGES.items()),
            ),
        )
    contracts = [one for one in records if "framework" in one]
    return CONTRACTS.format(lines="\n".join(_contracts(contracts, before.splitlines()))) + heading + after


def _contracts(records: list[Any], old: list[str]) -> Iterator[str]:
    yield "| Framework | Faults | Caught | Run |\n| --- | ---: | ---: | --- |"
    survivors: list[str] = []
    for framework, name in FRAMEWORKS.items():
        if own := [one for one in records if one["framework"] == framework]:
            runs = ", ".join(sorted({f"{one['date']} at `{one['commit']}`" for one in own}))
            yield f"| {name} | {len(own)} | {sum(one['word'] == 'caught' for one in own)} | {runs} |"
            survivors += [f"- {one['key']}: {one['word']}. {reason(one)}" for one in own if one["word"] != "caught"]
        else:
            yield next((line for line in old if line.startswith(f"| {name} |")), f"| {name} | not run | | |")
            survivors += [line for line in old if line.startswith(f"- {framework}: ")]
    yield from ("", *survivors) if survivors else ()


def _mutants(records: list[Any], drawn: int) -> Iterator[str]:
    words = Counter(one["word"] for one in records)
    counts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    yield f"{len(records)} of {drawn} mutants were run: {counts}.\n"
    yield "| Module and line | Result | Mutated line | Why |\n| --- | --- | --- | --- |"
    for one in sorted((one for one in records if one["word"] != "caught"), key=lambda one: one["key"]):
        module, _, _, line, _, new = one["mutant"]
        cells = f"`{module.removeprefix('gradxform/')}:{line}`", one["word"], f"`{new}`", reason(one)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def reason(record: Any) -> str:
    """Why a fault is not caught, from survivors.toml."""
    if "mutant" in record and record["word"] == "not reached":
        return "no quick test of NumPy runs it"
    return _reasons().get(record.get("mutant", [record.get("key", "")])[-1], "")


@functools.cache
def _reasons() -> dict[str, str]:
    file = Path(__file__).with_name("survivors.toml")
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
