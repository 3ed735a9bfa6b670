"""What a benchmark run prints: a table for each tree, what its columns mean, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradxform.cli.bench.results import Line, Measurements, Plan, number
from gradxform.cli.bench.timing import Spread
from gradxform.cli.bench.workloads import CHAINS, TREES, chain_title
from gradxform.cli.device import OPERATIONS, amount
from gradxform.cli.frameworks.interface import Program, transformation

_HEADERS = (
    "gx\nms",
    "native\nms",
    "\nratio",
    "\nquartiles",
    "times\nfloor",
    "first s\ngx/native",
    "extra MB\ngx/native",
    "operations\ngx/native",
)
_LEFT_TO_THE_FILE = (3, 4)
"""Quartiles and floor: with operations, they do not fit into 80 characters."""


def headers(counted: bool) -> tuple[str, ...]:
    """The headers of `cells`."""
    return _HEADERS if counted else _HEADERS[:-1]


def table(result: Measurements, counted: bool = False) -> Table:
    """Return the terminal table of one tree. Operations, if counted, replace quartiles and floor."""
    columns = [i for i in range(len(headers(counted))) if not counted or i not in _LEFT_TO_THE_FILE]
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=f"\n{result.title}", title_justify="left")
    shown.add_column("\nmode", no_wrap=True)
    for header in ("\nchain", *(_HEADERS[i] for i in columns)):
        shown.add_column(header, justify="right", no_wrap=True)
    last = ""
    for line in result.lines:
        label, found = line.label, cells(line, result.floor, counted)
        found[2] = f"[{_colour(line.ratio)}]{found[2]}[/]"
        shown.add_row(label if label != last else "", str(line.chain), *(found[i] for i in columns))
        last = label
    return shown


def cells(line: Line, floor: Spread, counted: bool) -> list[str]:
    """The numbers of a line, in the order of the headers."""
    sides, ratio = (line.gradxform, line.native), line.ratio
    found = [
        *(number(side.seconds.median * 1e3) for side in sides),
        _ratio(ratio.median),
        f"{_ratio(ratio.low)}-{_ratio(ratio.high)}",
        number(line.gradxform.seconds.median / floor.median),
        "/".join(f"{side.first:.1f}" for side in sides),
        "/".join("-" if side.memory is None else f"{side.memory / 1e6:.0f}" for side in sides),
        "/".join(amount(side.operations) for side in sides),
    ]
    return found if counted else found[:-1]


def _colour(ratio: Spread) -> str:
    """Green for faster, red for slower, yellow if the quartiles contain 1."""
    return "green" if ratio.high < 1 else "bold red" if ratio.low > 1 else "yellow"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def explanation(plan: Plan, programs: Mapping[str, Program], counted: bool = False) -> list[str]:
    """Explain the chains and the columns, a line each."""
    modes = [mode for program in programs.values() for mode in program.MODES]
    pairs = [(tree, mode, chain) for tree in plan.trees for mode in modes for chain in plan.chains_of(tree)]
    limited = any(not plan.has(mode, len(TREES[tree]()), chain) for tree, mode, chain in pairs)
    longer = f"chains longer than {plan.longest_compiled}" if plan.longest_compiled else "all chains, see --full"
    without = f"left out: compiled modes for trees with more than 500 leaves, {longer}"
    return [
        *(f"{chain_title(chain)}: {transformation(CHAINS[chain])!r}" for chain in plan.all_chains()),
        "gx: gradxform; native: the framework's own functions",
        "ratio: time of gradxform / time of the native functions, median of alternating runs; below 1 is faster",
        "floor: one np.dot and one np.multiply(out=) on a single array of the same size",
        "first s: seconds of the first call, including tracing and compilation",
        "extra MB: rise in resident memory during a call, including the result; - if unknown"
        + ("; on a device, memory as counted by the framework" if counted else ""),
        *([OPERATIONS] if counted else []),
        *([without] if limited else []),
    ]


def verdict(results: Sequence[Measurements]) -> str:
    """Count faster and slower pairs, and name the slowest."""
    lines = [line for result in results for line in result.lines]
    faster = sum(line.ratio.high < 1 for line in lines)
    slower = sum(line.ratio.low > 1 for line in lines)
    worst = max(lines, key=lambda line: line.ratio.median)
    return (
        f"gradxform is faster in {faster} of {len(lines)} pairs and slower in {slower}; "
        f"largest ratio {_ratio(worst.ratio.median)} ({worst.label}, {worst.tree}, {chain_title(worst.chain)})"
    )
