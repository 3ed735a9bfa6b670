"""The page, the picture and the README's lines of a benchmark, from the `bench.json` of `gradxform bench`.

    python tests/benchmarks/bench_page.py docs/numbers/tables/bench.json --page docs/numbers/tables/bench.md \\
        --picture docs/pictures/bench.png
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from parity_page.report import folded

from gradxform.cli import writing
from gradxform.cli.bench.report import HEADERS, Line, cells, heading, label, verdict
from gradxform.cli.bench.workloads import CHAINS, MUON, chain_title
from gradxform.cli.console import table
from gradxform.cli.frameworks import title

_MARKERS = {1: ("o", "#1f77b4"), 3: ("s", "#f28e2b"), 8: ("D", "#111111"), MUON: ("^", "#59a14f")}
"""Marker and colour of each chain."""
_FASTER, _SLOWER, _GREY = "#e3f3e6", "#fbe9e7", "#5f6368"
_APART = 0.24
"""Between the chains of one row; rows are one apart."""
_HEADING = 1.7
"""From the last row of a group to the first of the next, with the heading between them."""
_INCHES = 0.27
_FOOT = 0.95
"""Inches below the axes for legend and footer."""


Rows = dict[tuple[str, str], float]
"""Heights by mode and tree, from the top down."""


def page(found: dict[str, Any]) -> str:
    """The Markdown page: legend, one folded table per tree, provenance."""
    names = ["mode", "chain", *(" ".join(header.split()) for header in HEADERS)]
    parts = [verdict(found["lines"]) + ".", "\n".join(f"- {line}" for line in found["explanation"])]
    for tree, about in found["trees"].items():
        lines = [line for line in found["lines"] if line["tree"] == tree]
        rows = ([label(line), str(line["chain"]), *cells(line, about)] for line in lines)
        parts.append(folded(heading(tree, about), table(names, rows)))
    parts.append(f"Written by `{found['command']}` on {found['date'][:10]}: {_machine(found)}; {_versions(found)}.")
    return "\n\n".join(parts) + "\n"


def summary(found: dict[str, Any]) -> str:
    """The ratios on two large models and the worst one of all, as the README has them."""
    lines = []
    for name, compiled in (("Eager", False), ("Compiled (`jax.jit`, `tf.function`)", True)):
        large = [line for line in found["lines"] if line["tree"] in ("resnet50", "gpt2")]
        own = [line for line in large if (line["mode"] in ("jit", "graph")) is compiled]
        one, more = (_range(line for line in own if line["chain"] in chains) for chains in ((1,), (3, 8)))
        lines.append(f"- {name}: {one} for one clip, {more} for chains of three and eight transforms.")
    worst = max(found["lines"], key=lambda line: line["ratio"]["median"])
    leaves = found["trees"][worst["tree"]]["leaves"]
    words = f"{label(worst)}, {leaves} arrays, chain of {worst['chain']}"
    return "\n".join([*lines, f"- Slowest of {len(found['lines'])}: {worst['ratio']['median']:.2f} ({words})."])


def _range(lines: Iterable[Line]) -> str:
    ratios = [line["ratio"]["median"] for line in lines]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def foot(found: dict[str, Any]) -> str:
    """The picture's footer: method, machine, date and versions."""
    about = f"{_machine(found, found['date'][:10])}\n{_versions(found)}"
    return f"Marks: medians of alternating runs; lines: quartiles. {about}"


def _machine(found: dict[str, Any], *more: str) -> str:
    """The machine and, if `--device` was given, the device of each framework."""
    words = ", ".join((found["machine"]["processor"], f"{found['machine']['cores']} cores", *more))
    if "device" not in found:
        return words
    return f"{words}; " + ", ".join(f"{title(name)} on {device}" for name, device in found["devices"].items())


def _versions(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found["versions"].items())


def draw(found: dict[str, Any], out: Path) -> None:
    """Draw the ratios into a file; the suffix sets the format."""
    modes = list(dict.fromkeys(map(label, found["lines"])))
    lines = sorted(found["lines"], key=lambda line: modes.index(label(line)))
    depth = max(_rows(lines).values()) + 2.3
    height = 1.9 + _INCHES * depth
    figure = Figure(figsize=(6.4, height), facecolor="white")
    figure.set_layout_engine("constrained", rect=(0, _FOOT / height, 1, 1 - _FOOT / height))
    axis = figure.subplots()
    _background(axis, _ends(lines))
    axis.set_ylim(depth - 1.5, -1.5)
    _draw(axis, lines)
    _label_rows(axis, lines)
    _label(figure, foot(found))
    with writing.whole(out) as part:
        figure.savefig(part, dpi=150)


# --- layout ----------------------------------------------------------------------------------------------------------


def _rows(lines: Sequence[Line]) -> Rows:
    rows: Rows = {}
    height, last = -1.0, label(lines[0])
    for mode, tree in dict.fromkeys((label(line), line["tree"]) for line in lines):
        height += 1 if mode == last else 1 + _HEADING
        rows[mode, tree], last = height, mode
    return rows


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    """The ends of the axis, which contain 1 and all ratios."""
    low = min(0.5, *(line["ratio"]["low"] for line in lines))
    high = max(2.0, *(line["ratio"]["high"] for line in lines))
    return low / 1.25, high * 1.25


# --- drawing ---------------------------------------------------------------------------------------------------------


def _background(axis: Any, ends: tuple[float, float]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xlim(*ends)
    axis.axvspan(ends[0], 1, color=_FASTER, zorder=0, linewidth=0)
    axis.axvspan(1, ends[1], color=_SLOWER, zorder=0, linewidth=0)
    axis.axvline(1, color="#333333", linewidth=1.4, zorder=2)
    powers = range(math.ceil(math.log2(ends[0])), math.floor(math.log2(ends[1])) + 1)
    axis.set_xticks([2.0**power for power in powers], [f"{2.0**power:g}" for power in powers], fontsize=9)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(axis="both", length=0)
    axis.grid(axis="x", color="white", linewidth=0.9, zorder=1)
    axis.spines[:].set_visible(False)
    above = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 10, "va": "bottom"}
    axis.annotate("gradxform is faster", (1, 1), xytext=(-8, 4), ha="right", color="#2e7d32", **above)
    axis.annotate("slower", (1, 1), xytext=(8, 4), ha="left", color="#b00020", **above)


def _draw(axis: Any, lines: Sequence[Line]) -> None:
    """Draw a marker for each ratio and a line between its quartiles."""
    rows, chains = _rows(lines), [chain for chain in CHAINS if any(line["chain"] == chain for line in lines)]
    for rank, chain in enumerate(chains):
        marker, color = _MARKERS[chain]
        own = [line for line in lines if line["chain"] == chain]
        ratios = [line["ratio"] for line in own]
        heights = [rows[label(line), line["tree"]] + _APART * (rank - (len(chains) - 1) / 2) for line in own]
        axis.hlines(
            heights,
            [ratio["low"] for ratio in ratios],
            [ratio["high"] for ratio in ratios],
            color=color,
            linewidth=1.6,
            zorder=3,
        )
        name = "clip_global_norm alone" if chain == 1 else chain_title(chain)
        style = {"color": color, "markersize": 6, "markeredgecolor": "white", "linestyle": "none"}
        axis.plot([ratio["median"] for ratio in ratios], heights, marker=marker, label=name, zorder=4, **style)


def _label_rows(axis: Any, lines: Sequence[Line]) -> None:
    """Label rows with trees, and groups with mode and native functions."""
    rows = _rows(lines)
    axis.set_yticks(list(rows.values()), [tree for _, tree in rows], fontsize=9)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for mode, native in dict.fromkeys((label(line), line["beside"]) for line in lines):
        height = min(row for (other, _), row in rows.items() if other == mode) - 0.95
        axis.annotate(mode, (0, height), xytext=(-4, 0), **place, ha="right", fontsize=10, fontweight="bold")
        axis.annotate(f"vs {native}", (0, height), xytext=(6, 0), **place, fontsize=8.5, color=_GREY)
    for height in rows.values():
        axis.axhline(height, color="white", linewidth=0.8, zorder=1)


def _label(figure: Figure, about: str) -> None:
    figure.suptitle("Time of gradxform / time of the framework's own functions", fontsize=12, fontweight="bold")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    inch = 1 / figure.get_figheight()
    place = (0.5, 0.42 * inch)
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=place, ncols=2, frameon=False, fontsize=9)
    figure.text(0.5, 0.06 * inch, about, fontsize=6.5, color=_GREY, ha="center", va="bottom", wrap=True)


def main() -> None:
    """Write the page and the picture, and print the README's lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, help="what `gradxform bench` has written")
    parser.add_argument("--page", type=Path, default=Path("bench.md"), help="the Markdown page to write")
    parser.add_argument("--picture", type=Path, default=Path("bench.png"), help="the picture to draw")
    given = parser.parse_args()
    found = json.loads(given.json.read_text(encoding="utf-8"))
    with writing.whole(given.page) as part:
        part.write_text(page(found), encoding="utf-8")
    draw(found, given.picture)
    if "gpt2" in found["trees"]:
        print(summary(found))


if __name__ == "__main__":
    main()
