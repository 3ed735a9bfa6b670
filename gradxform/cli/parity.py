"""`gradxform parity`: show where frameworks first differ, and where most."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import gradxform
from gradxform.cli import device as devices
from gradxform.cli.console import quiet
from gradxform.cli.demo.task import gradients_of_digits
from gradxform.cli.gradients import read
from gradxform.cli.options import DEFAULT_CHAIN, Chain, Device, Frameworks, Gradients
from gradxform.core.transform import GradientTransformation
from gradxform.proof import parity
from gradxform.proof.extended import described
from gradxform.proof.gradients import edge
from gradxform.proof.place import Place

_HEADERS = ("gradients", "framework and mode", "ULP", "first difference from the reference", "largest difference")


def run(
    chain: Chain = DEFAULT_CHAIN, gradients: Gradients = None, frameworks: Frameworks = None, device: Device = None
) -> int:
    """Run a chain on the same gradients in every framework, eager and compiled, and compare with the exact result."""
    tx = gradxform.parse(chain)
    if tx.stateful:
        raise TypeError(f"parity takes a stateless chain, and {tx!r} keeps a state")
    names, places, where = devices.choose("parity", device, frameworks)
    if gradients is None:
        cases = {"a step on digits": gradients_of_digits(), **hard_cases(tx)}
    else:
        cases = {gradients.name: read("parity", gradients)}
    console = Console()
    console.print(f"{tx!r} on {len(cases)} {'tree' if len(cases) == 1 else 'trees'} of gradients in {where}")
    typer.echo(f"the reference has {described()}")
    results, wanted = measured(tx, cases, names, places)
    table, over = _table(list(cases), results, wanted)
    console.print(table)
    largest = _between(results) or "none, all are bit-identical"
    console.print(f"largest difference between two frameworks or modes: {largest}", highlight=False)
    if over:
        budgets = "over budget (2 ULP; 1 for float16 and bfloat16, 16 for float64)"
        console.print(f"[red]{budgets}:[/red] {over[0]}", highlight=False)
    return int(bool(over))


def measured(
    tx: GradientTransformation, cases: Mapping[str, Any], frameworks: Sequence[str], places: Mapping[str, Place]
) -> tuple[list[list[parity.Result]], list[parity.Expected]]:
    """Return the results of each framework and mode, and those of the reference."""
    with Console().status("running eager and compiled ..."), quiet():
        modes = [(name, mode) for name in frameworks for mode in parity.modes_of(name)]
        results = [parity.run(tx, list(cases.values()), name, mode, places.get(name)) for name, mode in modes]
        return results, [parity.expected(tx, case) for case in cases.values()]


def hard_cases(tx: GradientTransformation) -> dict[str, Any]:
    """Return gradients that other libraries get wrong, one tree each; none if the chain selects by path or axes."""
    if any(name in repr(tx) for name in ("masked", "freeze", "partition", "axes")):
        return {}
    one, half = (dict.fromkeys("bw", np.zeros(3, dtype)) for dtype in ("float32", "float16"))
    names = ("zeros", "at the limit", "1e30", "3e-30", "NaN", "inf")
    single, wide = np.array([3.0, 4.0], np.float32), np.array([5.0])
    return {
        **{name: edge(one, name) for name in names},
        "float16 300": edge(half, "300"),
        "None": {"w": single, "b": None},
        "empty": {"w": np.zeros((0, 3), np.float32), "b": single},
        "0-d": {"w": np.asarray(7.0, np.float32)},
        "mixed dtypes": {"w": 10 * single, "b": single[:1].astype(np.float16), "c": wide},
    }


def _table(
    cases: Sequence[str], results: Sequence[Sequence[parity.Result]], wanted: Sequence[parity.Expected]
) -> tuple[Table, list[str]]:
    """Return a row per outcome of a case, with the frameworks that had it, and the results over budget."""
    table, over = Table(*_HEADERS), []
    for case, right, *row in zip(cases, wanted, *results, strict=True):
        outcomes: dict[tuple[str, str, str], list[str]] = {}
        for result in row:
            outcome, beyond = ("-", result.problem or f"left out: {result.left_out}", ""), result.problem
            if result.leaves:
                first, largest = parity.differences(result.leaves, right)
                same = "the same" if first and first == largest else str(largest or "")
                outcome = (f"{largest.ulp:g}" if largest else "0", str(first or ""), same)
                beyond = str(parity.beyond(result.leaves, right, right.terms, 2) or "")
            outcomes.setdefault(outcome, []).append(result.where)
            if beyond:
                over.append(f"{case}, {result.where}: {beyond}")
        for outcome, had_it in outcomes.items():
            everyone = len(outcomes) == 1 and len(results) > 1
            table.add_row(case, "all" if everyone else "\n".join(had_it), *outcome)
        table.add_section()
    return table, over


def _between(results: Sequence[Sequence[parity.Result]]) -> str:
    """Describe the largest difference between two results."""
    pairs = [pair for two in itertools.combinations(results, 2) for pair in zip(*two, strict=True)]
    found = [(parity.differences(a.leaves, b.leaves)[1], a, b) for a, b in pairs if a.leaves and b.leaves]
    worst = parity.larger(*(difference for difference, *_ in found))
    return next((f"{a.where} against {b.where}, {worst}" for d, a, b in found if d and d is worst), "")
