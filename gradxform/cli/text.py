"""Output that the commands share: lines, progress bars, checks of names, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line verbatim, without markup or wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def progress(console: Console, done: ProgressColumn | None = None, auto_refresh: bool = True) -> Progress:
    """Return a progress bar that disappears when the work is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), done or MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, auto_refresh=auto_refresh)


def check_names(command: str, kind: str, given: Sequence[str] | None, known: Sequence[str]) -> None:
    """Reject unknown names and empty lists.

    Raises:
        ValueError: lists the known names.
    """
    unknown = [name for name in given or () if name not in known]
    if unknown or (given is not None and not given):
        what = f"no {kind} is named {unknown[0]!r}" if unknown else f"no {kind} was given"
        raise ValueError(f"{command}: {what}; the known ones are {', '.join(known)}")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: first column left-aligned, the others right-aligned."""
    lines = [headers, ["---", *("---:" for _ in headers[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(title: str, body: str) -> str:
    """Return Markdown behind a summary that opens it."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
