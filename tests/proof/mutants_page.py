"""The page of a run."""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

FRAMEWORKS = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
PACKAGES = {**FRAMEWORKS, "keras": "Keras", "pytest": "pytest", "cosmic-ray": "cosmic-ray"}
WORDS = ("killed", "survived", "equivalent", "out of time")

INTRODUCTION = """\
# Mutation testing

A test is worth what it notices. `make mutants` breaks the library in two ways, one fault at a time, and writes this
page: it breaks contracts in every framework, and it changes operators and numbers of the mathematics.
"""
CONTRACTS = """\
## Broken contracts

A contract is a promise: a limit holds, a state advances, a sparse gradient's duplicates are summed. `tests/proof`
breaks each by replacing a factory, a rule, a primitive of a backend, a method of the flat view or a function while the
program runs; no source text is looked at. The same tests pass first with every one of these places wrapped and nothing
broken. A fault counts as caught only if the broken place is reached and a test fails in its own body.
"""
MATHEMATICS = """\
## Mutated mathematics

[cosmic-ray](https://cosmic-ray.readthedocs.io) changes one operator, comparison, number or condition at a time;
`tests/proof/cosmic_ray.toml` names the modules and the kinds of change. The headers of functions are left out, but for
default values. Each line has one mutant, drawn from its changes by a fixed seed, so that every run has the same ones
(Petrovic and Ivankovic, State of mutation testing at Google, 2018). NumPy's tests run on each in a process of its own,
as if no other framework were installed.
"""


def page(verdicts: Sequence[Any], mutants: Sequence[Any], known: Sequence[Any], took: str) -> str:
    """The whole page, with the list of equivalent mutants."""
    here = ", ".join(f"{name} {version(package)}" for package, name in PACKAGES.items())
    when = f"Written on {time.strftime('%Y-%m-%d')} with Python {platform.python_version()}, {here}; {took}."
    return "\n".join([INTRODUCTION, f"{when}\n", *_contracts(verdicts), *_mathematics(mutants, known)])


def _contracts(verdicts: Sequence[Any]) -> Iterator[str]:
    by_name: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        by_name.setdefault(verdict.contract, {})[verdict.framework] = verdict
    caught = sum(verdict.word == "caught" for verdict in verdicts)
    yield CONTRACTS
    yield f"**{caught} of {len(verdicts)} faults were caught**: {len(by_name)} contracts, each in the frameworks that"
    yield "it is for. The table names the first test that failed.\n"
    yield f"| Contract | {' | '.join(FRAMEWORKS.values())} |"
    yield "| --- " * 5 + "|"
    for name, found in by_name.items():
        cells = (_cell(found.get(framework)) for framework in FRAMEWORKS)
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _cell(verdict: Any) -> str:
    if verdict is None:
        return ""
    return f"`{_short(verdict.test)}`" if verdict.word == "caught" else f"**{verdict.word}**"


def _short(test: str) -> str:
    """The function and the first of its parameters that tell it apart."""
    return re.sub(r"^.*/(\w+)\.py::", r"\1: ", test).partition("[")[0]


def _mathematics(mutants: Sequence[Any], known: Sequence[Any]) -> Iterator[str]:
    total = Counter(mutant.word for mutant in mutants)
    run = total["killed"] + total["survived"] + total["out of time"]
    yield MATHEMATICS
    late = f"{total['out of time']} ran out of time, as code does that never ends, and " if total["out of time"] else ""
    yield (
        f"Of {len(mutants)} mutants, {total['equivalent']} are known to change nothing that NumPy's tests could see, "
        f"and {run} ran. **{total['killed']} of these {run} were killed**, {late}{total['survived']} survived."
    )
    yield f"\n| Module | Mutants | {' | '.join(word.capitalize() for word in WORDS)} |"
    yield "| --- | " + "---: | " * (1 + len(WORDS))
    for module in sorted({mutant.module for mutant in mutants}):
        of_module = Counter(mutant.word for mutant in mutants if mutant.module == module)
        counts = [sum(of_module.values()), *(of_module[word] for word in WORDS)]
        yield f"| `{module}` | {' | '.join(map(str, counts))} |"
    survivors = [mutant for mutant in mutants if mutant.word == "survived"]
    if survivors:
        yield "\n### Survivors\n"
        yield from (f"- `{m.module}`: `{m.text}` became `{m.new}`" for m in survivors)
    yield "\n### Equivalent mutants\n"
    yield "| Module | Line | Change | Reason |\n| --- | --- | --- | --- |"
    for entry in known:
        line, change = entry.line.replace("|", "\\|"), entry.operator.replace("|", "\\|")
        yield f"| `{entry.module}` | `{line}` | `{change}` | {entry.reason} |"
    stale = [entry for entry in known if not any(map(entry.matches, mutants))]
    if stale:
        yield "\nNo mutant that was drawn matches these entries of the list:\n"
        yield from (f"- `{entry.module}`: `{entry.line}`" for entry in stale)
    yield ""
