"""Measure the errors of gradxform and of the frameworks' own functions; write docs/numbers/tables/parity.md."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from parity_page.groups import Sizes
from parity_page.measure import Numbers, rounds
from parity_page.native import natives
from parity_page.report import page

from gradxform.cli import device, writing
from gradxform.cli.console import progress, quiet
from gradxform.proof.place import Place
from gradxform.proof.registry import ROWS
from gradxform.testing import frameworks_or_installed

SIZES = Sizes()


def run(frameworks: Sequence[str] | None, out: Path, asked: str | None = None) -> int:
    """Measure everything, write the page, and return 1 if a result is over its budget.

    Raises:
        ValueError: an unknown framework, a device that no framework has, or a missing folder of `out`.
    """
    writing.check("parity", out)
    names = frameworks_or_installed("parity", frameworks)
    chosen = "" if frameworks is None else f" --frameworks {','.join(names)}"
    places: dict[str, Place] = {}
    if asked is not None:
        places = device.places("parity", asked, names)
        names, chosen = list(places), f"{chosen} --device {asked}"
        typer.echo(f"measured: {device.ran_on(places)}")
    numbers = _measure(names, frameworks is None, places)
    command = f"python tests/benchmarks/write_parity.py{chosen} --out {shlex.quote(out.name)}"
    with writing.whole(out) as part:
        part.write_text(page(numbers, SIZES, command, device.ran_on(places)), encoding="utf-8")
    typer.echo(f"written: {out}")
    for line in numbers.over:
        typer.secho(f"over budget: {line}", fg="red")
    if not numbers.over:
        typer.secho("every result is within its budget", fg="green")
    return int(bool(numbers.over))


def _measure(names: Sequence[str], everything: bool, places: dict[str, Place]) -> Numbers:
    """Measure transform by transform."""
    numbers = Numbers()
    with quiet():
        peers = natives(names, everything)
    with progress() as shown:
        bar = shown.add_task("", total=len(ROWS))
        for steps in rounds(names, peers, SIZES, numbers, places):
            for step in steps:
                shown.update(bar, description=step.words)
                step.run()
                shown.advance(bar, 1 / len(steps))
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a result is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frameworks", type=lambda text: text.split(","), help="some of them, with commas between")
    parser.add_argument("--device", help="the device to measure on, such as cuda or tpu")
    parser.add_argument("--out", type=Path, default=Path("parity.md"), help="the page to write")
    given = parser.parse_args(arguments)
    return run(given.frameworks, given.out, given.device)


if __name__ == "__main__":
    sys.exit(main())
