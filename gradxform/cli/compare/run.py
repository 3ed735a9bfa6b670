"""`gradxform compare`: where two recorded runs part, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradxform.cli import writing
from gradxform.cli.compare.rows import HEADERS, Row, rows, title, verdict
from gradxform.cli.console import progress, say
from gradxform.comparing import mapping
from gradxform.comparing.comparison import Comparison, compare
from gradxform.comparing.rounding import magnitude, scaled

_SHOWN = 24
"""Leaves in the table, unless all are asked for."""


def run(
    a: Path,
    b: Path,
    console: Console,
    given: Path | None = None,
    write_map: Path | None = None,
    tolerance: float | None = None,
    picture: Path | None = None,
    report: Path | None = None,
    everything: bool = False,
) -> int:
    """Compare two recordings, print what was found, write what was asked for; return 1 if they differ.

    Raises:
        ValueError: recordings that cannot be compared, or a file to be written in a folder that is not there.
    """
    for option, out in (("--write-map", write_map), ("--picture", picture), ("--report", report)):
        if out is not None:
            writing.check(f"compare {option}", out)
    if picture is not None:
        from gradxform.cli.compare import picture as drawing

        drawing.check_format(picture)
    with progress(console) as shown:
        bar = shown.add_task("steps", total=None)
        found = compare(
            a,
            b,
            map=given,
            tolerance=tolerance,
            progress=lambda done, total: shown.update(bar, completed=done, total=total),
        )
    _print(found, console, everything)
    if write_map is not None:
        text = mapping.written(found.pairs, found.alignment.alone_a, found.alignment.alone_b)
        _write(console, write_map, lambda part: part.write_text(text, encoding="utf-8"))
    if picture is not None:
        _write(console, picture, lambda part: drawing.write(found, part))
    if report is not None:
        from gradxform.cli.compare import page

        _write(console, report, lambda part: part.write_text(page.html(found), encoding="utf-8"))
    return int(not found.within)


def _write(console: Console, out: Path, write: Callable[[Path], Any]) -> None:
    with writing.whole(out) as part:
        write(part)
    say(console, f"written: {out}")


def _print(found: Comparison, console: Console, everything: bool) -> None:
    for side, recording in (("A", found.a), ("B", found.b)):
        say(console, f"{side}: {recording.folder}, {len(recording.steps)} steps, {recording.versions}")
    say(console, found.alignment.words)
    for side, alone in (("A", found.alignment.alone_a), ("B", found.alignment.alone_b)):
        if alone:
            say(console, f"  only in {side}: {', '.join(alone)}")
    every = rows(found)
    shown = every if everything else _chosen(found, every)
    console.print(_table(found, shown))
    if len(shown) < len(every):
        say(console, f"{len(shown)} of {len(every)} leaves, those with the largest distances; --all shows all")
    say(console, verdict(found), "green" if found.within else "red")
    for i, finding in enumerate(found.findings, 1):
        say(console, f"{i}. {finding.text}")


def _chosen(found: Comparison, every: list[Row]) -> list[Row]:
    """The leaves with the largest distances, in the order of the network; those that are mere noise come last."""
    mean = max(map(magnitude, found.rows[found.tree].values()), default=0.0)

    def weight(row: Row) -> tuple[bool, float]:
        return row.parts is not None, -1.0 if row.shown is None else scaled(row.shown, mean)

    largest = sorted(range(len(every)), key=lambda i: weight(every[i]), reverse=True)[:_SHOWN]
    return [every[i] for i in sorted(largest)]


def _table(found: Comparison, shown: list[Row]) -> Table:
    table = Table(title=title(found), title_justify="left", title_style="")
    for i, header in enumerate(HEADERS):
        table.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    for row in shown:
        table.add_row(*map(escape, row.cells), style="" if row.parts is None else "red")
    return table
