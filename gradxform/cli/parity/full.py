"""`gradxform parity --full`: the published table of distances, ours and those of the frameworks' own functions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from gradxform.cli import device
from gradxform.cli.parity.measure import Numbers, rounds
from gradxform.cli.parity.native import natives
from gradxform.cli.parity.report import page
from gradxform.cli.quiet import quiet
from gradxform.proof.cases import Sizes
from gradxform.proof.place import Place
from gradxform.proof.rows import ROWS
from gradxform.testing import frameworks_or_installed

SIZES = Sizes()


def run(frameworks: Sequence[str] | None, out: Path, console: Console, asked: str | None = None) -> int:
    """Measure everything, on a device that was asked for, write the page, and return 1 if a result is over its budget.

    Raises:
        ValueError: an unknown framework, a device that none has, or an `out` in a folder that is not there.
    """
    if not out.parent.is_dir():
        raise ValueError(f"parity: the folder {str(out.parent)!r} for {out.name} does not exist")
    names = frameworks_or_installed("parity", frameworks)
    chosen = "" if frameworks is None else f" --frameworks {','.join(names)}"
    places: dict[str, Place] = {}
    if asked is not None:
        places = device.places("parity", asked, names, console)
        names, chosen = list(places), f"{chosen} --device {asked}"
        console.print(f"measured: {device.ran_on(places)}", markup=False, highlight=False, soft_wrap=True)
    numbers = _measure(names, frameworks is None, places, console)
    command = f"gradxform parity --full{chosen} --out {shlex.quote(out.name)}"
    out.write_text(page(numbers, SIZES, command, device.ran_on(places)))
    console.print(f"written: {out}", markup=False, highlight=False, soft_wrap=True)
    for line in numbers.over:
        console.print(f"over budget: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    if not numbers.over:
        console.print("every result is within its budget", style="green")
    return int(bool(numbers.over))


def _measure(names: Sequence[str], everything: bool, places: dict[str, Place], console: Console) -> Numbers:
    """All the work, transform by transform."""
    numbers = Numbers()
    with quiet():
        peers = natives(names, everything)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(ROWS))
        for steps in rounds(names, peers, SIZES, numbers, places):
            for step in steps:
                progress.update(bar, description=step.words)
                step.run()
                progress.advance(bar, 1 / len(steps))
    return numbers
