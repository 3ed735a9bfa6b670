"""`gradxform compare`: where two recorded runs part, and why; in the terminal and on a page."""

from __future__ import annotations

import base64
import html as escaping
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import gradxform
from gradxform.cli import writing
from gradxform.cli.console import progress
from gradxform.comparing import mapping
from gradxform.comparing.compare import compare
from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import Pair, named
from gradxform.comparing.measuring import Distance, magnitude, scaled

_HEADERS = ("leaf in A", "leaf in B", "norm in A", "B/A", "cosine", "relative", "ULP", "parts at")
_SHOWN = 24
"""Leaves in the table, unless all are asked for."""
_Path = Path | None
_MAP = typer.Option("--map", help="A TOML file that says which leaf of A is which of B.")
_TOLERANCE = typer.Option(help="The largest relative distance of a leaf. Default: rounding.")
_PICTURE = typer.Option(help="Draw distances and norms into this file, such as compare.png.")


def run(
    a: Annotated[Path, typer.Argument(help="The folder of a recording, as gx.record writes it.")],
    b: Annotated[Path, typer.Argument(help="The folder of another.")],
    map_file: Annotated[_Path, _MAP] = None,
    write_map: Annotated[_Path, typer.Option(help="Write the alignment that was found, to be corrected.")] = None,
    tolerance: Annotated[float | None, _TOLERANCE] = None,
    picture: Annotated[_Path, _PICTURE] = None,
    report: Annotated[_Path, typer.Option(help="Write one HTML page with all of it, which needs no network.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every leaf in the table.")] = False,
) -> int:
    """Compare two recorded runs: where do their gradients part, and why? Ends with 0 if rounding explains all, or 1."""
    for option, out in (("--write-map", write_map), ("--picture", picture), ("--report", report)):
        if out is not None:
            writing.check(f"compare {option}", out)
    if picture is not None:
        writing.check_picture("compare --picture", picture)
    with progress() as shown:
        bar = shown.add_task("steps", total=None)
        found = compare(
            a, b, map=map_file, tolerance=tolerance, progress=lambda i, n: shown.update(bar, completed=i, total=n)
        )
    console, every = _console(), range(len(found.pairs))
    _say_runs(found, console)
    chosen = every if everything else _largest(found)
    console.print(_table(found, chosen))
    if len(chosen) < len(every):
        typer.echo(f"{len(chosen)} of {len(every)} leaves, those with the largest distances; --all shows all")
    _say_causes(found, console)
    if write_map is not None:
        text = mapping.written(found.pairs, found.alignment.alone_a, found.alignment.alone_b)
        _write(write_map, lambda part: part.write_text(text, encoding="utf-8"))
    if picture is not None:
        from gradxform.cli.compare.picture import figure

        _write(picture, lambda part: figure(found).savefig(part, dpi=130))
    if report is not None:
        _write(report, lambda part: part.write_text(html(found), encoding="utf-8"))
    return int(not found.within)


def _write(out: Path, write: Callable[[Path], object]) -> None:
    """Write a file in whole, and say so."""
    with writing.whole(out) as part:
        write(part)
    typer.echo(f"written: {out}")


# --- the terminal ----------------------------------------------------------------------------------------------------


def _console(**options: Any) -> Console:
    """Return a console that prints brackets in names as they are."""
    return Console(markup=False, highlight=False, **options)


def _say_runs(found: Comparison, console: Console) -> None:
    """Print what is compared."""
    for side, recording in (("A", found.a), ("B", found.b)):
        line = f"{side}: {recording.folder}, {len(recording.steps)} steps, {recording.versions}"
        console.print(line, soft_wrap=True)
    console.print(found.alignment.words, soft_wrap=True)
    for side, alone in (("A", found.alignment.alone_a), ("B", found.alignment.alone_b)):
        if alone:
            console.print(f"  only in {side}: {', '.join(alone)}", soft_wrap=True)


def _table(found: Comparison, chosen: Iterable[int]) -> Table:
    """The table of some leaves."""
    step, (row, parts) = found.judged[found.tree].first, _shown(found)
    when = ", each leaf at the step where its distance is largest"
    when = when if step is None else f" at step {step}, where the runs part"
    made = Table(title=f"{found.tree}{when}", title_justify="left", title_style="")
    for i, header in enumerate(_HEADERS):
        made.add_column(header, justify="left" if i < 2 else "right", overflow="fold")
    for i in chosen:
        cells = (*_names(found.pairs[i]), *_numbers(row[i]), str(parts.get(i, "")))
        made.add_row(*cells, style="red" if i in parts else "")
    return made


def _shown(found: Comparison) -> tuple[Sequence[Distance | None], dict[int, int]]:
    """The distance of each leaf where the runs part, else where it is largest; the first step that is no rounding."""
    judged = found.judged[found.tree]
    parts = {i: step for step, places in reversed(judged.bad.items()) for i in places}
    return found.worst() if judged.first is None else found.rows[found.tree][judged.first], parts


def _names(pair: Pair) -> tuple[str, str]:
    a, b = named(pair.a), named(pair.b)
    layout = "; ".join(view.layout.words for view in pair.views if view.layout.words)
    other = " ".join(part for part in ("" if a == b else b, f"({layout})" if layout else "") if part)
    return a, other or "the same"


def _numbers(d: Distance | None) -> tuple[str, ...]:
    if d is None or not d.size:
        return ("-",) * 5
    relative = "NaN" if any(d.nonfinite) else f"{d.relative:.1e}"
    ulp = f"{d.ulp:.0f}" if d.ulp < 1e5 else "inf" if math.isinf(d.ulp) else f"{d.ulp:.0e}"
    return f"{d.norms[0]:.3g}", f"{d.ratio:.6g}", f"{d.cosine:.6f}", relative, ulp


def _largest(found: Comparison) -> list[int]:
    """The leaves with the largest distances, in the order of the network; those that are mere noise come last."""
    mean = max(map(magnitude, found.rows[found.tree].values()), default=0.0)
    row, parts = _shown(found)
    weights = [(i in parts, scaled(d, mean) if d and d.size else -1.0) for i, d in enumerate(row)]
    return sorted(sorted(range(len(row)), key=weights.__getitem__, reverse=True)[:_SHOWN])


def _say_causes(found: Comparison, console: Console) -> None:
    """Print the verdict and what explains it; of runs that part, the causes say where."""
    end = found.agreement if found.within else "some differences exceed what is allowed."
    verdict = f"{'Within' if found.within else 'Beyond'}: over {len(found.steps)} steps, {end}"
    console.print(verdict, style="green" if found.within else "red", soft_wrap=True)
    for i, finding in enumerate(found.findings, 1):
        console.print(f"{i}. {finding.text}", soft_wrap=True)


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
    from gradxform.cli.compare.picture import figure

    title = escaping.escape(f"{found.a.folder.name} and {found.b.folder.name}")
    console, png = _console(record=True, file=io.StringIO(), width=_WIDTH), io.BytesIO()
    _say_causes(found, console)
    _say_runs(found, console)
    words = console.export_html(inline_styles=True, code_format="{code}")
    console.print(_table(found, range(len(found.pairs))))
    pairs = Table("leaf in A", "leaf in B", "by", "sure", title="Alignment", title_justify="left", title_style="")
    for pair in found.pairs:
        pairs.add_row(named(pair.a), named(pair.b), pair.how, f"{pair.sure:.0%}")
    console.print(pairs)
    tables = console.export_html(inline_styles=True, code_format="{code}")
    figure(found).savefig(png, format="png", dpi=110)
    about = "Distance of each leaf at each step, and the global norms of both runs"
    picture = base64.b64encode(png.getvalue()).decode("ascii")
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>gradxform compare: {title}</title>\n'
        f'<style>{_STYLE}</style>\n<h1>{title}</h1>\n<pre class="text">{words}</pre>\n'
        f'<p><img alt="{about}" src="data:image/png;base64,{picture}"></p>\n<pre>{tables}</pre>\n'
        f"<p>gradxform {gradxform.__version__}</p>\n</html>\n"
    )
