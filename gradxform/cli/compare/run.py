"""`gradxform compare`: where two recorded runs part, and why; in the terminal and on a page."""

from __future__ import annotations

import base64
import html as escaping
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gradxform
from gradxform.cli import writing
from gradxform.cli.console import progress, say
from gradxform.comparing import mapping
from gradxform.comparing.comparison import Comparison, compare
from gradxform.comparing.mapping import Pair, named
from gradxform.comparing.measuring import Distance
from gradxform.comparing.rounding import magnitude, scaled

_HEADERS = ("leaf in A", "leaf in B", "norm in A", "B/A", "cosine", "relative", "ULP", "parts at")
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


# --- the terminal ----------------------------------------------------------------------------------------------------


def show(found: Comparison, console: Console, everything: bool) -> None:
    """Print all that was found."""
    say_runs(found, console)
    every = rows(found)
    shown = every if everything else _largest(found, every)
    console.print(table(found, shown))
    if len(shown) < len(every):
        say(console, f"{len(shown)} of {len(every)} leaves, those with the largest distances; --all shows all")
    say_causes(found, console)


def say_runs(found: Comparison, console: Console) -> None:
    """Print what is compared."""
    for side, recording in (("A", found.a), ("B", found.b)):
        say(console, f"{side}: {recording.folder}, {len(recording.steps)} steps, {recording.versions}")
    say(console, found.alignment.words)
    for side, alone in (("A", found.alignment.alone_a), ("B", found.alignment.alone_b)):
        if alone:
            say(console, f"  only in {side}: {', '.join(alone)}")


def table(found: Comparison, shown: Sequence[Row]) -> Table:
    """The table of some leaves."""
    made = Table(title=_title(found), title_justify="left", title_style="")
    for i, header in enumerate(_HEADERS):
        made.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    for row in shown:
        made.add_row(*map(escape, row.cells), style="" if row.parts is None else "red")
    return made


def say_causes(found: Comparison, console: Console) -> None:
    """Print the verdict and what explains it."""
    say(console, _verdict(found), "green" if found.within else "red")
    for i, finding in enumerate(found.findings, 1):
        say(console, f"{i}. {finding.text}")


class Row(NamedTuple):
    """A pair of leaves over all steps."""

    pair: Pair
    shown: Distance | None
    """Where the runs part; where they do not, at the step with the leaf's largest distance."""
    parts: int | None
    """The first step that rounding does not explain."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        a, b = named(self.pair.a), named(self.pair.b)
        layout = "; ".join(words for words in (self.pair.a.layout.words, self.pair.b.layout.words) if words)
        other = " ".join(part for part in ("" if a == b else b, f"({layout})" if layout else "") if part) or "the same"
        if self.shown is None:
            return a, other, "-", "-", "-", "-", "-", ""
        d = self.shown
        lost = d.nonfinite_a or d.nonfinite_b
        distances = "NaN" if lost else f"{d.relative:.1e}"
        when = "" if self.parts is None else str(self.parts)
        return a, other, f"{d.norm_a:.3g}", f"{d.ratio:.6g}", f"{d.cosine:.6f}", distances, _units(d.ulp), when


def _units(ulp: float) -> str:
    return f"{ulp:.0f}" if ulp < 1e5 else "inf" if math.isinf(ulp) else f"{ulp:.0e}"


def rows(found: Comparison) -> list[Row]:
    """One row for each pair, in the order of the network."""
    judged = found.judged[found.tree]
    first = {i: step for step, places in reversed(judged.bad.items()) for i in places}
    shown = found.worst() if judged.first is None else found.rows[found.tree][judged.first]
    return [Row(pair, d, first.get(i)) for i, (pair, d) in enumerate(zip(found.pairs, shown, strict=True))]


def _largest(found: Comparison, every: list[Row]) -> list[Row]:
    """The leaves with the largest distances, in the order of the network; those that are mere noise come last."""
    mean = max(map(magnitude, found.rows[found.tree].values()), default=0.0)

    def weight(row: Row) -> tuple[bool, float]:
        return row.parts is not None, -1.0 if row.shown is None else scaled(row.shown, mean)

    largest = sorted(range(len(every)), key=lambda i: weight(every[i]), reverse=True)[:_SHOWN]
    return [every[i] for i in sorted(largest)]


def _title(found: Comparison) -> str:
    """What the rows show."""
    step = found.judged[found.tree].first
    if step is None:
        return f"{found.tree}, each leaf at the step where its distance is largest"
    return f"{found.tree} at step {step}, where the runs part"


def _verdict(found: Comparison) -> str:
    """The result in one sentence."""
    judged = found.judged[found.tree]
    level = max(judged.levels.values(), default=0.0)
    steps = f"{len(found.steps)} step{'s' * (len(found.steps) != 1)}"
    if found.within:
        equal = not level and not (found.a.norms_only or found.b.norms_only)
        return f"Within: over {steps}, {f'the {found.tree} are equal in every element.' if equal else found.agreement}"
    at = f"from step {judged.first} on" if judged.first is not None else "in what precedes them"
    return f"Beyond: over {steps} the {found.tree} differ by up to {level:.1e}, {at}."


# --- the page --------------------------------------------------------------------------------------------------------

_WIDTH = 1000
"""Columns, so that no row of a table is broken; the page scrolls."""
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; line-height: 1.2; } pre.text { white-space: pre-wrap; } img { max-width: 100%; }
"""


def html(found: Comparison) -> str:
    """The whole page: what the terminal shows with `--all`, the picture, and how each pair was found."""
    from gradxform.cli.compare.picture import png

    title = escaping.escape(f"{found.a.folder.name} and {found.b.folder.name}")
    console = Console(record=True, file=io.StringIO(), width=_WIDTH)

    def shown(kind: str) -> str:
        return f'<pre class="{kind}">{console.export_html(inline_styles=True, code_format="{code}")}</pre>\n'

    say_causes(found, console)
    say_runs(found, console)
    words = shown("text")
    console.print(table(found, rows(found)))
    pairs = Table("leaf in A", "leaf in B", "by", "sure", title="Alignment", title_justify="left", title_style="")
    for pair in found.pairs:
        pairs.add_row(escape(named(pair.a)), escape(named(pair.b)), pair.how, f"{pair.sure:.0%}")
    console.print(pairs)
    about = "Distance of each leaf at each step, and the global norms of both runs"
    picture = base64.b64encode(png(found)).decode("ascii")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>gradxform compare: {title}'
        f"</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{words}"
        f'<p><img alt="{about}" src="data:image/png;base64,{picture}"></p>\n{shown("tables")}'
        f"<p>gradxform {gradxform.__version__}</p>\n</body>\n</html>\n"
    )
