"""The page that `make mutants` writes."""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

FRAMEWORKS = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
PACKAGES = {**FRAMEWORKS, "keras": "Keras", "pytest": "pytest", "cosmic-ray": "cosmic-ray"}
WORDS = ("killed", "survived", "equivalent", "out of time")

INTRODUCTION = """\
# Mutation testing

Does a test fail when the library is broken? `make mutants` injects one fault at a time, runs the tests, and writes this
page.
"""
CONTRACTS = """\
## Broken contracts

A contract is a promise, such as "the limit holds" or "the state advances". `tests/proof` breaks each one at run time by
replacing a function or a method. A fault counts as caught if the broken code runs and a test fails. Without a fault,
the same tests pass.
"""
MATHEMATICS = """\
## Mutated mathematics

[cosmic-ray](https://cosmic-ray.readthedocs.io) changes one operator, comparison, number or condition at a time, in the
modules that `tests/proof/cosmic_ray.toml` lists. A fixed seed draws one mutant per line of code (Petrovic and
Ivankovic, State of mutation testing at Google, 2018). NumPy's tests run on each mutant.
"""


def page(verdicts: Sequence[Any], mutants: Sequence[Any], known: Sequence[Any], took: str) -> str:
    """Return the page, including the list of equivalent mutants."""
    here = ", ".join(f"{name} {version(package)}" for package, name in PACKAGES.items())
    when = f"on {time.strftime('%Y-%m-%d')} with Python {platform.python_version()}, {here}; {took}"
    return "\n".join(
        [INTRODUCTION, *_contracts(verdicts), *_mathematics(mutants, known), f"Written by `make mutants` {when}.\n"]
    )


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"<details>\n<summary>{title}</summary>\n"
    yield from lines
    yield "\n</details>\n"


def _contracts(verdicts: Sequence[Any]) -> Iterator[str]:
    by_name: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        by_name.setdefault(verdict.contract, {})[verdict.framework] = verdict
    caught = sum(verdict.word == "caught" for verdict in verdicts)
    yield CONTRACTS
    contracts = f"{len(by_name)} contracts in up to four frameworks"
    yield f"**{caught} of {len(verdicts)} faults were caught**, for {contracts}.\n"
    lines = [f"| Contract | {' | '.join(FRAMEWORKS.values())} |", "| --- " * 5 + "|"]
    for name, found in by_name.items():
        cells = (_cell(found.get(framework)) for framework in FRAMEWORKS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    yield from _folded("The first test that failed, by contract", lines)


def _cell(verdict: Any) -> str:
    if verdict is None:
        return ""
    return f"`{_short(verdict.test)}`" if verdict.word == "caught" else f"**{verdict.word}**"


def _short(test: str) -> str:
    """The module and the function of a test, without parameters."""
    return re.sub(r"^.*/(\w+)\.py::", r"\1: ", test).partition("[")[0]


def _mathematics(mutants: Sequence[Any], known: Sequence[Any]) -> Iterator[str]:
    total = Counter(mutant.word for mutant in mutants)
    run = total["killed"] + total["survived"] + total["out of time"]
    yield MATHEMATICS
    late = f"{total['out of time']} ran out of time, " if total["out of time"] else ""
    yield (
        f"**{total['killed']} of {run} mutants were killed**, {late}{total['survived']} survived. Another "
        f"{total['equivalent']} are equivalent: they change nothing that NumPy's tests could see.\n"
    )
    yield from _folded("Mutants by module", _modules(mutants))
    survivors = [mutant for mutant in mutants if mutant.word == "survived"]
    if survivors:
        yield "### Survivors\n"
        yield from (f"- `{m.module}`: `{m.text}` became `{m.new}`" for m in survivors)
        yield ""
    yield from _folded("Equivalent mutants, with reasons", _equivalent(mutants, known))


def _modules(mutants: Sequence[Any]) -> Iterator[str]:
    yield f"| Module | Mutants | {' | '.join(word.capitalize() for word in WORDS)} |"
    yield "| --- | " + "---: | " * (1 + len(WORDS))
    for module in sorted({mutant.module for mutant in mutants}):
        of_module = Counter(mutant.word for mutant in mutants if mutant.module == module)
        counts = [sum(of_module.values()), *(of_module[word] for word in WORDS)]
        yield f"| `{module}` | {' | '.join(map(str, counts))} |"


def _equivalent(mutants: Sequence[Any], known: Sequence[Any]) -> Iterator[str]:
    yield "| Module | Line | Change | Reason |\n| --- | --- | --- | --- |"
    for entry in known:
        line, change = entry.line.replace("|", "\\|"), entry.operator.replace("|", "\\|")
        yield f"| `{entry.module}` | `{line}` | `{change}` | {entry.reason} |"
    stale = [entry for entry in known if not any(map(entry.matches, mutants))]
    if stale:
        yield "\nNo drawn mutant matches these entries:\n"
        yield from (f"- `{entry.module}`: `{entry.line}`" for entry in stale)
