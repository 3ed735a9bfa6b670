"""`gradxform compare`: where two recorded runs part, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from gradxform.cli import writing
from gradxform.cli.compare.rows import html, show
from gradxform.cli.console import progress, say
from gradxform.comparing import mapping
from gradxform.comparing.comparison import compare


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
        writing.check_picture("compare --picture", picture)
    with progress(console) as shown:
        bar = shown.add_task("steps", total=None)
        found = compare(
            a,
            b,
            map=given,
            tolerance=tolerance,
            progress=lambda done, total: shown.update(bar, completed=done, total=total),
        )
    show(found, console, everything)
    if write_map is not None:
        text = mapping.written(found.pairs, found.alignment.alone_a, found.alignment.alone_b)
        _write(console, write_map, lambda part: part.write_text(text, encoding="utf-8"))
    if picture is not None:
        from gradxform.cli.compare import picture as drawing

        _write(console, picture, lambda part: drawing.write(found, part))
    if report is not None:
        _write(console, report, lambda part: part.write_text(html(found), encoding="utf-8"))
    return int(not found.within)


def _write(console: Console, out: Path, write: Callable[[Path], Any]) -> None:
    with writing.whole(out) as part:
        write(part)
    say(console, f"written: {out}")
