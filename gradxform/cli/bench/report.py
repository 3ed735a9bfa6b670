"""Report a benchmark run: terminal tables, the Markdown page and the JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradxform.cli import text
from gradxform.cli.bench.lines import Line, Measurements, Plan, number
from gradxform.cli.bench.task import CHAINS, TREES, Program, title, transformation
from gradxform.cli.bench.timing import Measured, Spread
from gradxform.cli.demo.task import NAMES
from gradxform.cli.device import OPERATIONS, amount

_HEADERS = (
    "gx\nms",
    "native\nms",
    "\nratio",
    "\nquartiles",
    "times\nfloor",
    "first s\ngx/native",
    "extra MB\ngx/native",
)
_COUNTED = "operations\ngx/native"
_LEFT_TO_THE_PAGE = (3, 4)
"""Quartiles and floor: with operations, they do not fit into 80 characters."""


def _headers(counted: bool) -> tuple[str, ...]:
    return (*_HEADERS, _COUNTED) if counted else _HEADERS


def table(result: Measurements, counted: bool = False) -> Table:
    """Return the terminal table of one tree. Operations, if counted, replace quartiles and floor."""
    columns = [i for i in range(len(_headers(counted))) if not counted or i not in _LEFT_TO_THE_PAGE]
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=f"\n{result.title}", title_justify="left")
    shown.add_column("\nmode", no_wrap=True)
    for header in ("\nchain", *(_headers(counted)[i] for i in columns)):
        shown.add_column(header, justify="right", no_wrap=True)
    last = ""
    for line in result.lines:
        label, cells = line.label, _cells(line, result, counted)
        cells[2] = f"[{_colour(line.measured.ratio)}]{cells[2]}[/]"
        shown.add_row(label if label != last else "", str(line.chain), *(cells[i] for i in columns))
        last = label
    return shown


def _cells(line: Line, result: Measurements, counted: bool) -> list[str]:
    """The numbers of a line, in the order of the headers."""
    m = line.measured
    return [
        number(m.gradxform.seconds.median * 1e3),
        number(m.native.seconds.median * 1e3),
        _ratio(m.ratio.median),
        f"{_ratio(m.ratio.low)}-{_ratio(m.ratio.high)}",
        number(m.gradxform.seconds.median / result.floor.median),
        f"{m.gradxform.first:.1f}/{m.native.first:.1f}",
        _megabytes(m),
        *(["/".join(map(amount, (m.gradxform.operations, m.native.operations)))] if counted else []),
    ]


def _colour(ratio: Spread) -> str:
    """Green for faster, red for slower, yellow if the quartiles contain 1."""
    return "green" if ratio.high < 1 else "bold red" if ratio.low > 1 else "yellow"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _megabytes(measured: Measured) -> str:
    sizes = (measured.gradxform.memory, measured.native.memory)
    return "/".join("-" if size is None else f"{size / 1e6:.0f}" for size in sizes)


def explanation(plan: Plan, programs: dict[str, Program], counted: bool = False) -> str:
    """Explain the chains and the columns."""
    chains = (f"{title(chain)}: {transformation(CHAINS[chain])!r}" for chain in plan.all_chains())
    modes = [mode for program in programs.values() for mode in program.MODES]
    pairs = [(tree, mode, chain) for tree in plan.trees for mode in modes for chain in plan.chains_of(tree)]
    limited = any(not plan.has(mode, len(TREES[tree]()), chain) for tree, mode, chain in pairs)
    longer = f"chains longer than {plan.longest_compiled}" if plan.longest_compiled else "all chains, see --full"
    without = f"left out: compiled modes for trees with more than 500 leaves, {longer}"
    return "\n".join(
        (
            *chains,
            "gx: gradxform; native: the framework's own functions",
            "ratio: time of gradxform / time of the native functions, median of alternating runs; below 1 is faster",
            "floor: one np.dot and one np.multiply(out=) on a single array of the same size",
            "first s: seconds of the first call, including tracing and compilation",
            "extra MB: rise in resident memory during a call, including the result; - if unknown"
            + ("; on a device, memory as counted by the framework" if counted else ""),
            *([OPERATIONS] if counted else []),
            *([without] if limited else []),
        )
    )


def verdict(results: Sequence[Measurements]) -> str:
    """Count faster and slower pairs, and name the slowest."""
    lines = [line for result in results for line in result.lines]
    faster = sum(line.measured.ratio.high < 1 for line in lines)
    slower = sum(line.measured.ratio.low > 1 for line in lines)
    worst = max(lines, key=lambda line: line.measured.ratio.median)
    return (
        f"gradxform is faster in {faster} of {len(lines)} pairs and slower in {slower}; "
        f"largest ratio {_ratio(worst.measured.ratio.median)} ({worst.label}, {worst.tree}, {title(worst.chain)})"
    )


def as_json(plan: Plan, results: Sequence[Measurements]) -> dict[str, Any]:
    """The contents of `bench.json`."""
    return {
        "units": {"seconds": "s", "first": "s", "floor": "s", "memory": "bytes", "ratio": "gradxform / native"},
        "chains": {str(chain): repr(transformation(CHAINS[chain])) for chain in plan.all_chains()},
        "trees": {
            result.tree: {"leaves": result.leaves, "elements": result.elements, "floor": result.floor._asdict()}
            for result in results
        },
        "lines": [_line_as_json(line) for result in results for line in result.lines],
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    """A line as a flat mapping; only the two sides are nested."""
    entries = asdict(line)
    return {key: value for key, value in entries.items() if key != "measured"} | _named(entries["measured"])


def _named(value: Any) -> Any:
    """Convert spreads to mappings, which `asdict` does not; drop operations that were not counted."""
    if isinstance(value, Spread):
        return value._asdict()
    if not isinstance(value, dict):
        return value
    return {key: _named(item) for key, item in value.items() if (key, item) != ("operations", None)}


def page(about: dict[str, Any], plan: Plan, programs: dict[str, Program], results: Sequence[Measurements]) -> str:
    """The Markdown page: legend, one folded table per tree, provenance."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = f"{about['machine']['processor']}, {about['machine']['cores']} cores"
    counted = "device" in about
    names = ["mode", "chain", *(" ".join(header.split()) for header in _headers(counted))]
    parts = [
        verdict(results) + ".",
        "\n".join(f"- {line}" for line in explanation(plan, programs, counted).splitlines()),
    ]
    for result in results:
        rows = ([line.label, str(line.chain), *_cells(line, result, counted)] for line in result.lines)
        parts.append(text.folded(result.title, text.table(names, rows)))
    parts.append(f"Written by `{about['command']}` on {about['date'][:10]}: {machine}{_ran_on(about)}; {versions}.")
    return "\n\n".join(parts) + "\n"


def _ran_on(about: dict[str, Any]) -> str:
    """The device of each framework, if `--device` was given."""
    if "device" not in about:
        return ""
    return "; " + ", ".join(f"{NAMES[name]} on {words}" for name, words in about["devices"].items())


def foot(about: dict[str, Any]) -> str:
    """The picture's footer: method, machine, date and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = (
        f"{about['machine']['processor']}, {about['machine']['cores']} cores, {about['date'][:10]}{_ran_on(about)}"
    )
    return f"Marks: medians of alternating runs; lines: quartiles. {machine}\n{versions}"
