"""The report of a comparison: one HTML file with its picture inside, which opens without a network."""

from __future__ import annotations

import base64
import html as escaping
import io

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gradxform
from gradxform.cli.compare.picture import png
from gradxform.cli.compare.rows import rows, say_causes, say_runs, table
from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import named

_WIDTH = 1000
"""Columns, so that no row of a table is broken; the page scrolls."""
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; line-height: 1.2; } pre.text { white-space: pre-wrap; } img { max-width: 100%; }
"""


def html(found: Comparison) -> str:
    """The whole page: what the terminal shows with `--all`, the picture, and how each pair was found."""
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
