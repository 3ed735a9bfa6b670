"""`gradxform parity`: show where frameworks first differ, and where most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gradxform.cli import device
from gradxform.cli.console import quiet, say
from gradxform.cli.demo.task import gradients_of_digits
from gradxform.cli.gradients import read
from gradxform.core.transform import GradientTransformation
from gradxform.proof import parity
from gradxform.proof.extended import described
from gradxform.proof.gradients import Leaf, edge
from gradxform.proof.place import Place


def run(
    tx: GradientTransformation,
    gradients: Path | None,
    frameworks: Sequence[str] | None,
    console: Console,
    asked: str | None = None,
) -> int:
    """Compare frameworks on the requested device, print a table, and return 1 if a difference is over budget."""
    if tx.stateful:
        raise TypeError(f"parity takes a stateless chain, and {tx!r} keeps a state")
    names, places, where = device.choose("parity", asked, frameworks, console)
    if gradients is None:
        cases = {"a step on digits": gradients_of_digits(), **hard_cases(tx)}
    else:
        cases = {gradients.name: read("parity", gradients)}
    console.print(f"{tx!r} on {len(cases)} {'tree' if len(cases) == 1 else 'trees'} of gradients in {where}")
    say(console, f"the reference has {described()}")
    results, wanted = measured(tx, cases, names, places, console)
    table, over = _table(list(cases), results, wanted)
    console.print(table)
    if places is not None:
        _print_costs(tx, next(iter(cases.items())), places, console)
    largest = _between(results) or "none, all are bit-identical"
    console.print(f"largest difference between two frameworks or modes: {largest}", highlight=False)
    if over:
        console.print(
            f"[red]over budget (2 ULP; 1 for float16 and bfloat16, 16 for float64):[/red] {over[0]}", highlight=False
        )
    return 1 if over else 0


def measured(
    tx: GradientTransformation,
    cases: dict[str, Any],
    frameworks: Sequence[str],
    places: dict[str, Place] | None,
    console: Console,
) -> tuple[list[list[parity.Result]], list[parity.Expected]]:
    """Return the results of each framework and mode, and those of the reference."""
    with console.status("running eager and compiled ..."), quiet():
        results = parity.run(tx, list(cases.values()), frameworks, places=places)
        return results, [parity.expected(tx, case) for case in cases.values()]


def _print_costs(tx: GradientTransformation, case: tuple[str, Any], places: dict[str, Place], console: Console) -> None:
    """Print the cost of a step on the first tree, by framework and mode."""
    name, tree = case
    size = device.size(sum(leaf.nbytes for leaf in tree.values()))
    table = Table("framework and mode", "ran on", title=f"one step on {name}, {len(tree)} leaves, {size}")
    table.title_justify = "left"
    for header in ("operations", "peak memory", "read and written"):
        table.add_column(header, justify="right")
    with console.status("counting ..."), quiet():
        for framework, place in places.items():
            for mode in () if place.lacks(tree) else parity.modes_of(framework):
                cost = parity.cost(tx, tree, framework, mode, place)
                numbers = device.amount(cost.operations), device.size(cost.peak), device.size(cost.accessed)
                table.add_row(f"{framework} {mode}", str(place), *numbers)
    console.print(table)
    say(console, device.OPERATIONS)
    say(console, "peak memory: in addition to the gradients, with results; - if unknown")


def hard_cases(tx: GradientTransformation) -> dict[str, Any]:
    """Return gradients that other libraries get wrong, one tree each; none if the chain selects by path or axes."""
    if any(name in repr(tx) for name in ("masked", "freeze", "partition", "axes")):
        return {}
    one, half = ({"b": Leaf(dtype, 3), "w": Leaf(dtype, 3)} for dtype in ("float32", "float16"))
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
    table = Table("gradients", "framework and mode", "ULP", "first difference from the reference", "largest difference")
    over: list[str] = []
    for i, case in enumerate(cases):
        outcomes: dict[tuple[str, str, str], list[str]] = {}
        for result in (row[i] for row in results):
            who = f"{result.framework} {result.mode}"
            outcome, beyond = ("-", result.problem or f"left out: {result.left_out}", ""), result.problem
            if result.leaves:
                first, largest = parity.differences(result.leaves, wanted[i])
                same = "the same" if first and first == largest else str(largest or "")
                outcome = (f"{largest.ulp:g}" if largest else "0", str(first or ""), same)
                beyond = str(parity.beyond(result.leaves, wanted[i], wanted[i].terms, 2) or "")
            outcomes.setdefault(outcome, []).append(who)
            if beyond:
                over.append(f"{case}, {who}: {beyond}")
        for outcome, who_had_it in outcomes.items():
            everyone = len(outcomes) == 1 and len(results) > 1
            table.add_row(case, "all" if everyone else "\n".join(who_had_it), *outcome)
        table.add_section()
    return table, over


def _between(results: Sequence[Sequence[parity.Result]]) -> str:
    """Describe the largest difference between two results."""
    found: tuple[float, str] = (0.0, "")
    for one, other in itertools.combinations(results, 2):
        for a, b in zip(one, other, strict=True):
            if a.leaves and b.leaves:
                _, worst = parity.differences(a.leaves, b.leaves)
                if worst is not None and worst.ulp > found[0]:
                    found = (worst.ulp, f"{a.framework} ({a.mode}) against {b.framework} ({b.mode}), {worst}")
    return found[1]
