"""`gradxform report`: print what a report of a wrong number needs, as Markdown."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import typer

import gradxform
from gradxform.cli import device as devices
from gradxform.cli.console import table, versions
from gradxform.cli.gradients import read
from gradxform.cli.options import Device, Frameworks, Gradients, OptionalChain
from gradxform.cli.parity import hard_cases, measured
from gradxform.proof import parity
from gradxform.proof.extended import described


def run(
    chain: OptionalChain = None, gradients: Gradients = None, frameworks: Frameworks = None, device: Device = None
) -> int:
    """Print what to paste into a bug report: versions, devices, the gradients, and each result's distance in ULP."""
    tx = None if chain is None else gradxform.parse(chain)
    names, places, where = devices.choose("report", device, frameworks)
    tree = None if gradients is None else read("report", gradients)
    typer.echo(f"- Platform: {platform.system()} {platform.release()}, {platform.machine()}")
    typer.echo(f"- Versions: {', '.join(f'{name} {version}' for name, version in versions().items())}")
    typer.echo(f"- Devices: {devices.here(names)}")
    if tx is not None:
        typer.echo(f"- Reference: {described()}")
    if tree is not None and gradients is not None:
        typer.echo(f"\nGradients in `{gradients.name}`:\n\n{_described(tree)}")
    if tx is not None:
        cases = hard_cases(tx) if tree is None else {"": tree}
        if not cases:
            raise ValueError(f"report: {tx!r} selects by path or axes, so it needs --gradients")
        results, wanted = measured(tx, cases, names, places)
        rows = (_distances(list(cases), row, wanted) for row in results)
        typer.echo(f"\nFirst step of `{tx!r}`{f' ({where})' if places else ''}, with the gradients as parameters:\n")
        typer.echo(table(("framework and mode", "ULP", "largest distance", "problem"), rows))
    return 0


def _described(tree: dict[str, Any]) -> str:
    """Return a table of dtype, shape, non-finite elements and norm of each gradient, and the global norm."""
    rows = []
    for name, norm in gradxform.norms(tree).items():
        leaf = tree[name]
        infinite = np.count_nonzero(~np.isfinite(leaf))
        rows.append((f"`{name}`", leaf.dtype.name, str(leaf.shape), str(infinite), f"{float(norm):.9g}"))
    rows.append(("all", "", "", "", f"{float(gradxform.global_norm(tree)):.9g}"))
    return table(("gradient", "dtype", "shape", "not finite", "norm"), rows)


def _distances(cases: Sequence[str], row: Sequence[parity.Result], wanted: Sequence[parity.Leaves]) -> list[str]:
    """Return framework and mode, the largest distance from the reference, its place, and the cases without a result."""
    found, problems = {}, []
    for case, result, right in zip(cases, row, wanted, strict=True):
        if result.leaves:
            found[case] = parity.differences(result.leaves, right)[1]
        else:
            problems.append(f"{case} {result.problem or f'left out: {result.left_out}'}".strip())
    worst = parity.larger(*found.values())
    place = next((f"{case} {worst}".strip() for case, largest in found.items() if worst and largest is worst), "")
    return [row[0].where, f"{worst.ulp:g}" if worst else "0" if found else "-", place, "; ".join(problems)]
