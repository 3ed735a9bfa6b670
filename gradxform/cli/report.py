"""`gradxform report`: print what a report of a wrong number needs, as Markdown."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import gradxform
from gradxform.cli import device
from gradxform.cli.console import say, table, versions
from gradxform.cli.gradients import read
from gradxform.cli.parity import hard_cases, measured
from gradxform.core.transform import GradientTransformation
from gradxform.proof import parity
from gradxform.proof.extended import described


def run(
    tx: GradientTransformation | None,
    gradients: Path | None,
    frameworks: Sequence[str] | None,
    console: Console,
    asked: str | None = None,
) -> int:
    """Print versions and devices; with a chain, the distance of each result from the reference.

    Raises:
        ValueError: a framework is unknown, no framework has the device, or gradients are missing or unreadable.
    """
    names, places, where = device.choose("report", asked, frameworks, console)
    tree = None if gradients is None else read("report", gradients)
    for part in _environment(names):
        say(console, part)
    if tx is not None:
        say(console, f"- Reference: {described()}")
    if tree is not None and gradients is not None:
        say(console, f"\nGradients in `{gradients.name}`:\n\n{_described(tree)}")
    if tx is not None:
        cases = hard_cases(tx) if tree is None else {"": tree}
        if not cases:
            raise ValueError(f"report: {tx!r} selects by path or axes, so it needs --gradients")
        results, wanted = measured(tx, cases, names, places, console)
        on = "" if places is None else f" ({where})"
        say(console, f"\nFirst step of `{tx!r}`{on}, with the gradients as parameters:\n")
        say(console, _distances(list(cases), results, wanted))
    return 0


def _environment(frameworks: Sequence[str]) -> Iterator[str]:
    """Yield platform, versions and devices."""
    yield f"- Platform: {platform.system()} {platform.release()}, {platform.machine()}"
    yield f"- Versions: {', '.join(f'{name} {version}' for name, version in versions().items())}"
    yield f"- Devices: {device.here(frameworks)}"


def _described(tree: dict[str, Any]) -> str:
    """Return a table of dtype, shape, non-finite elements and norm of each gradient, and the global norm."""
    rows = []
    for name, norm in gradxform.norms(tree).items():
        leaf = tree[name]
        infinite = np.count_nonzero(~np.isfinite(leaf))
        rows.append((f"`{name}`", leaf.dtype.name, str(leaf.shape), str(infinite), f"{float(norm):.9g}"))
    rows.append(("all", "", "", "", f"{float(gradxform.global_norm(tree)):.9g}"))
    return table(("gradient", "dtype", "shape", "not finite", "norm"), rows)


def _distances(
    cases: Sequence[str], results: Sequence[Sequence[parity.Result]], wanted: Sequence[parity.Leaves]
) -> str:
    """Return a table of the largest distance from the reference, and its place, by framework and mode."""
    rows = []
    for row in results:
        worst, place, problems = None, "", []
        for case, result, right in zip(cases, row, wanted, strict=True):
            if result.leaves:
                _, largest = parity.differences(result.leaves, right)
                worst, place = (largest, case) if parity.larger(worst, largest) is not worst else (worst, place)
            else:
                problems.append(f"{case} {result.problem or f'left out: {result.left_out}'}".strip())
        ulp = f"{worst.ulp:g}" if worst else "-" if len(problems) == len(row) else "0"
        where = f"{place} {worst}".strip() if worst else ""
        rows.append((f"{row[0].framework} {row[0].mode}", ulp, where, "; ".join(problems)))
    return table(("framework and mode", "ULP", "largest distance", "problem"), rows)
