"""What a benchmark run has found, a table for each tree, what its columns mean, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradxform.cli.bench.timing import Line, Spread
from gradxform.cli.bench.workloads import chain_title
from gradxform.cli.console import amount
from gradxform.cli.device import OPERATIONS


@dataclass(frozen=True)
class Measurements:
    """All measurements of one tree."""

    tree: str
    leaves: int
    elements: int
    floor: Spread
    """Seconds of one read plus one read and write of the same numbers in one array."""
    lines: list[Line]

    @property
    def title(self) -> str:
        """Name, size and floor of the tree."""
        megabytes = 4 * self.elements / 1e6
        return f"{self.tree}: {self.leaves} leaves, {megabytes:.3g} MB, floor {_number(self.floor.median * 1e3)} ms"


HEADERS = (
    "gx\nms",
    "native\nms",
    "\nratio",
    "\nquartiles",
    "times\nfloor",
    "first s\ngx/native",
    "extra MB\ngx/native",
    "operations\ngx/native",
)
"""Of `cells`. Memory and operations are counted if a device is asked for."""
_MEMORY = "extra MB: rise in memory during a call, including the result, as the framework counts it; - if unknown"


def cells(line: Line, floor: Spread) -> list[str]:
    """The numbers of a line, in the order of the headers."""
    sides, ratio = (line.gradxform, line.native), line.ratio
    return [
        *(_number(side.seconds.median * 1e3) for side in sides),
        _ratio(ratio.median),
        f"{_ratio(ratio.low)}-{_ratio(ratio.high)}",
        _number(line.gradxform.seconds.median / floor.median),
        "/".join(f"{side.first:.1f}" for side in sides),
        "/".join("-" if side.memory is None else f"{side.memory / 1e6:.0f}" for side in sides),
        "/".join(amount(side.operations) for side in sides),
    ]


def table(result: Measurements, counted: bool) -> Table:
    """Return the terminal table of one tree. Costs, if counted, replace quartiles and floor: 80 characters."""
    columns = (0, 1, 2, 5, 6, 7) if counted else range(6)
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=f"\n{result.title}", title_justify="left")
    shown.add_column("\nmode", no_wrap=True)
    for header in ("\nchain", *(HEADERS[i] for i in columns)):
        shown.add_column(header, justify="right", no_wrap=True)
    last = ""
    for line in result.lines:
        found = cells(line, result.floor)
        found[2] = f"[{_colour(line.ratio)}]{found[2]}[/]"
        shown.add_row("" if line.label == last else line.label, str(line.chain), *(found[i] for i in columns))
        last = line.label
    return shown


def _colour(ratio: Spread) -> str:
    """Green for faster, red for slower, yellow if the quartiles contain 1."""
    return "green" if ratio.high < 1 else "bold red" if ratio.low > 1 else "yellow"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _number(value: float) -> str:
    """Format with three digits and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def explanation(counted: bool) -> list[str]:
    """Explain the columns, a line each."""
    return [
        "gx: gradxform; native: the framework's own functions",
        "ratio: time of gradxform / time of the native functions, median of alternating runs; below 1 is faster",
        "floor: one np.dot and one np.multiply(out=) on a single array of the same size",
        "first s: seconds of the first call, including tracing and compilation",
        *([_MEMORY, OPERATIONS] if counted else []),
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
