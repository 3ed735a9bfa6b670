"""A table for each tree, what its columns mean, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradxform.cli.bench.workloads import chain_title
from gradxform.cli.frameworks import title

Line = Mapping[str, Any]
"""The measurement of a pair and what it is of, as in `bench.json`."""

HEADERS = (
    "gx\nms",
    "native\nms",
    "\nratio",
    "\nquartiles",
    "times\nfloor",
    "first s\ngx/native",
)
"""Of `cells`."""


def heading(tree: str, about: Mapping[str, Any]) -> str:
    """Name, size and floor of a tree: one read plus one read and write of the same numbers in one array."""
    megabytes, floor = 4 * about["elements"] / 1e6, _number(about["floor"]["median"] * 1e3)
    return f"{tree}: {about['leaves']} leaves, {megabytes:.3g} MB, floor {floor} ms"


def label(line: Line) -> str:
    """Framework and mode for display."""
    return f"{title(line['framework'])} {line['mode']}"


def cells(line: Line, about: Mapping[str, Any]) -> list[str]:
    """The numbers of a line of a tree, in the order of the headers."""
    sides, ratio = (line["gradxform"], line["native"]), line["ratio"]
    return [
        *(_number(side["seconds"]["median"] * 1e3) for side in sides),
        _ratio(ratio["median"]),
        f"{_ratio(ratio['low'])}-{_ratio(ratio['high'])}",
        _number(sides[0]["seconds"]["median"] / about["floor"]["median"]),
        "/".join(f"{side['first']:.1f}" for side in sides),
    ]


def table(tree: str, about: Mapping[str, Any], lines: Sequence[Line]) -> Table:
    """Return the terminal table of one tree.

    A ratio is green if faster, red if slower, yellow if its quartiles contain 1.
    """
    made = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=f"\n{heading(tree, about)}", title_justify="left")
    made.add_column("\nmode", no_wrap=True)
    for header in ("\nchain", *HEADERS):
        made.add_column(header, justify="right", no_wrap=True)
    last = ""
    for line in lines:
        found, ratio, mode = cells(line, about), line["ratio"], label(line)
        colour = "green" if ratio["high"] < 1 else "bold red" if ratio["low"] > 1 else "yellow"
        found[2] = f"[{colour}]{found[2]}[/]"
        made.add_row("" if mode == last else mode, str(line["chain"]), *found)
        last = mode
    return made


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _number(value: float) -> str:
    """Format with three digits and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


EXPLANATION = (
    "gx: gradxform; native: the framework's own functions",
    "ratio: time of gradxform / time of the native functions, median of alternating runs; below 1 is faster",
    "floor: one np.dot and one np.multiply(out=) on a single array of the same size",
    "first s: seconds of the first call, including tracing and compilation",
)
"""Of the columns, a line each."""


def verdict(lines: Sequence[Line]) -> str:
    """Count faster and slower pairs, and name the slowest."""
    faster, slower = sum(line["ratio"]["high"] < 1 for line in lines), sum(line["ratio"]["low"] > 1 for line in lines)
    worst = max(lines, key=lambda line: line["ratio"]["median"])
    return (
        f"gradxform is faster in {faster} of {len(lines)} pairs and slower in {slower}; largest ratio "
        f"{_ratio(worst['ratio']['median'])} ({label(worst)}, {worst['tree']}, {chain_title(worst['chain'])})"
    )
