"""The report of a comparison: one HTML file with its picture inside, which opens without a network."""

from __future__ import annotations

import base64
import html as escaping
from collections.abc import Iterable, Iterator, Sequence

import gradxform
from gradxform.cli.compare.picture import png
from gradxform.cli.compare.rows import HEADERS, Row, rows, title, verdict
from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import named

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { padding: .6rem 1rem; border-left: .4rem solid; }
.within { border-color: #2ca02c; } .beyond { border-color: #d62728; }
.scroll { overflow-x: auto; } img { max-width: 100%; background: white; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr.bad td { color: #d62728; } footer { margin-top: 3rem; font-size: .8rem; opacity: .7; }
"""


def html(found: Comparison) -> str:
    """The whole page."""
    title = f"{found.a.folder.name} and {found.b.folder.name}"
    body = "\n".join(_parts(found))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>gradxform compare: {_text(title)}'
        f"</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _parts(found: Comparison) -> Iterator[str]:
    yield f"<h1>{_text(found.a.folder.name)} and {_text(found.b.folder.name)}</h1>"
    yield f'<p class="verdict {"within" if found.within else "beyond"}">{_text(verdict(found))}</p>'
    if found.findings:
        yield "<h2>Diagnosis</h2>\n<ol>"
        yield from (f"<li><b>{_text(finding.kind)}</b>: {_text(finding.text)}</li>" for finding in found.findings)
        yield "</ol>"
    picture = base64.b64encode(png(found)).decode("ascii")
    about = "Distance of each leaf at each step, and the global norms of both runs"
    yield f'<h2>Distances</h2>\n<p><img alt="{about}" src="data:image/png;base64,{picture}"></p>'
    yield f"<h2>Leaves</h2>\n<p>{_text(title(found))}, in the order of the network.</p>"
    yield _table(HEADERS, ((_class(row), row.cells) for row in rows(found)))
    yield f"<h2>Alignment</h2>\n<p>{_text(found.alignment.words)}</p>"
    pairs = ((named(p.a), named(p.b), p.how, f"{p.sure:.0%}") for p in found.pairs)
    yield _table(("leaf in A", "leaf in B", "by", "sure"), (("", cells) for cells in pairs))
    for side, alone in (("A", found.alignment.alone_a), ("B", found.alignment.alone_b)):
        if alone:
            yield f"<p>Only in {side}: {_text(', '.join(alone))}</p>"
    lines = (f"{side}: {recording.versions}" for side, recording in (("A", found.a), ("B", found.b)))
    yield f"<footer>{_text(f'gradxform {gradxform.__version__}')}<br>{'<br>'.join(map(_text, lines))}</footer>"


def _class(row: Row) -> str:
    return "" if row.parts is None else ' class="bad"'


def _table(headers: Sequence[str], lines: Iterable[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{_text(header)}</th>" for header in headers)
    body = "\n".join(f"<tr{kind}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>" for kind, cells in lines)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _text(words: str) -> str:
    return escaping.escape(words)
