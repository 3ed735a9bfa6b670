"""The benchmark: gradxform beside each framework's own way of doing the same work.

Both sides are measured in turn, in one process and in one run, so that whatever else the machine does slows both down;
a line's ratio is the median over the repetitions of ours divided by the native one. First the results of both
sides are compared: where they do not agree, nothing is timed and the run ends.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import gradxform
from gradxform import _backend
from gradxform.cli import _bench_picture
from gradxform.cli._bench_task import CHAINS, TREES, Mode, Program, Tree, elements, gradients, transformation
from gradxform.cli._bench_timing import Disagreement, Effort, Measured, Spread, floor, measure
from gradxform.cli._quiet import quiet
from gradxform.cli._task import NAMES


class Plan(NamedTuple):
    """What is measured, and for how long."""

    trees: Sequence[str]
    chains: Sequence[int]
    effort: Effort
    longest_compiled: int
    """Of trees with more than 500 leaves, compiled modes are measured with chains up to this length."""

    def has(self, mode: Mode, leaves: int, chain: int) -> bool:
        """Whether a mode is measured on a tree; for norms of each of 2000 leaves, XLA takes minutes to compile."""
        return not mode.compiled or leaves <= 500 or chain <= self.longest_compiled


QUICK = Plan(("mlp", "many", "resnet50"), (1, 3), Effort(seconds=0.4, least=5, most=300), longest_compiled=0)
FULL = Plan(tuple(TREES), tuple(CHAINS), Effort(seconds=2.0, least=15, most=1000), longest_compiled=3)

_MEMORY_FROM = 1 << 24
"""Trees of fewer bytes are lost in what allocators keep; their memory is not reported."""


@dataclass(frozen=True)
class Line:
    """One pair, measured."""

    framework: str
    mode: str
    beside: str
    """What gradxform was measured against, in words."""
    tree: str
    chain: int
    """The number of transforms."""
    measured: Measured

    @property
    def label(self) -> str:
        """Framework and mode as people write them."""
        return f"{NAMES[self.framework]} {self.mode}"


@dataclass(frozen=True)
class Measurements:
    """All that a run measured on one tree."""

    tree: str
    leaves: int
    elements: int
    floor: Spread
    """The seconds of one read, and one read and write, of as many numbers in one array."""
    lines: list[Line]

    @property
    def title(self) -> str:
        """The tree, its size and its floor in one line."""
        megabytes = 4 * self.elements / 1e6
        return f"{self.tree}: {self.leaves} leaves, {megabytes:.3g} MB, floor {_number(self.floor.median * 1e3)} ms"


def run(quick: bool, frameworks: Sequence[str] | None, trees: Sequence[str] | None, out: Path, console: Console) -> int:
    """Measure, show a table for each tree, and write `bench.json`, `bench.md` and `bench.png`.

    Args:
        quick: three trees and chains of one and three transforms, a few repetitions; else all of it.
        frameworks: some of "numpy", "jax", "tensorflow", "torch"; None for all of them. One that is not installed is
            named and left out.
        trees: some of "mlp", "many", "resnet50", "gpt2"; None for those of the form asked for.
        out: the folder for both files; it is made if it is not there.
        console: where progress and tables go.

    Returns:
        The exit code, 0.

    Raises:
        ValueError: an unknown framework or tree, no framework that is installed, or an `out` that is no folder.
        Disagreement: two sides that do not give the same result.
    """
    plan = QUICK if quick else FULL
    _known("framework", frameworks, _backend.FRAMEWORKS)
    _known("tree", trees, tuple(TREES))
    plan = plan if trees is None else plan._replace(trees=list(dict.fromkeys(trees)))
    _make(out)
    programs, left_out = _programs(list(dict.fromkeys(frameworks or _backend.FRAMEWORKS)))
    for name, reason in left_out.items():
        console.print(f"left out: {NAMES[name]}, {reason}", markup=False, highlight=False)
    if not programs:
        raise ValueError(f"bench: none of {', '.join(left_out)} is installed; there is nothing to measure")
    about = _about(_command(quick, frameworks, trees), quick, programs, left_out)
    _warn_if_busy(about["machine"], console)
    results = _measure_all(plan, programs, console)
    console.print(f"\n{_explanation(plan, programs)}\n\n{_verdict(results)}", markup=False, highlight=False)
    (out / "bench.json").write_text(json.dumps(about | _as_json(plan, results), indent=1) + "\n")
    (out / "bench.md").write_text(_page(about, plan, programs, results))
    _bench_picture.write(list(_points(results)), _foot(about), out / "bench.png")
    files = f"{out / 'bench.json'}, {out / 'bench.md'}, {out / 'bench.png'}"
    console.print(f"written: {files}", markup=False, highlight=False, soft_wrap=True)
    return 0


# --- what to measure -------------------------------------------------------------------------------------------------


def _known(kind: str, given: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in given if given is not None else known:
        if name not in known:
            raise ValueError(f"bench: no {kind} is named {name!r}; the known ones are {', '.join(known)}")
    if given is not None and not given:
        raise ValueError(f"bench: no {kind} was given; the known ones are {', '.join(known)}")


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: {str(out)!r} cannot be a folder for bench.json and bench.png ({error})") from error


def _programs(wanted: Sequence[str]) -> tuple[dict[str, Program], dict[str, str]]:
    """The frameworks' halves of the benchmark, and why some are not there."""
    found: dict[str, Program] = {}
    left_out: dict[str, str] = {}
    for name in wanted:
        try:
            with quiet():
                program = cast(Program, importlib.import_module(f"gradxform_{name}.bench"))
                program.device()
            found[name] = program
        except ModuleNotFoundError as error:
            left_out[name] = f"{error.name} is not installed (pip install 'gradxform[{name}]')"
    return found, left_out


# --- measuring -------------------------------------------------------------------------------------------------------


def _measure_all(plan: Plan, programs: dict[str, Program], console: Console) -> list[Measurements]:
    """Every tree in every mode with every chain; a table is shown as soon as its tree is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total = sum(len(list(_pairs(plan, programs, len(TREES[name]())))) for name in plan.trees)
    results = []
    # A bar that refreshes itself does so in a thread, which would be measured too.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("", total=total)
        for name in plan.trees:
            results.append(_measure_tree(plan, programs, name, progress, bar))
            console.print(_table(results[-1]))
    return results


def _measure_tree(plan: Plan, programs: dict[str, Program], name: str, progress: Progress, bar: TaskID) -> Measurements:
    """One tree in every mode with every chain."""
    shapes = TREES[name]()
    tree = gradients(shapes)
    result = Measurements(name, len(shapes), elements(shapes), floor(tree, plan.effort), [])
    for framework, mode, chain in _pairs(plan, programs, result.leaves):
        description = f"{name}, {NAMES[framework]} {mode.name}, chain of {chain}"
        progress.update(bar, description=description, refresh=True)
        memory = _memory_is_known(programs[framework], result.elements)
        measured = _measure(framework, mode, name, chain, tree, plan.effort, memory)
        result.lines.append(Line(framework, mode.name, mode.native, name, chain, measured))
        progress.advance(bar)
    return result


def _pairs(plan: Plan, programs: dict[str, Program], leaves: int) -> Iterator[tuple[str, Mode, int]]:
    """Framework, mode and chain of all that is measured on a tree."""
    for framework, program in programs.items():
        for mode in program.MODES:
            yield from ((framework, mode, chain) for chain in plan.chains if plan.has(mode, leaves, chain))


def _memory_is_known(program: Program, count: int) -> bool:
    """Whether the process's resident memory tells what a call on so many elements takes."""
    return program.GIVES_MEMORY_BACK and program.device() == "cpu" and 4 * count >= _MEMORY_FROM


def _measure(framework: str, mode: Mode, name: str, chain: int, tree: Tree, effort: Effort, memory: bool) -> Measured:
    try:
        ours, native = mode.sides(CHAINS[chain], tree)
        return measure(ours, native, tree, chain, effort, memory)
    except Disagreement as error:
        where = f"{NAMES[framework]} {mode.name}, {name}, {transformation(CHAINS[chain])!r} beside {mode.native}"
        raise Disagreement(f"bench: the two sides do not agree ({where}): {error}") from error


def _warn_if_busy(machine: dict[str, Any], console: Console) -> None:
    load, cores = machine["load_at_start"], machine["cores"]
    if load is not None and load > cores / 2:
        text = f"this machine is busy (load {load:.1f} on {cores} cores): ratios will be noisy, times too long"
        console.print(text, style="yellow", markup=False, highlight=False)


# --- report ----------------------------------------------------------------------------------------------------------

_HEADERS = (
    "ours\nms",
    "native\nms",
    "\nratio",
    "\nquartiles",
    "times\nfloor",
    "first s\nours/nat.",
    "extra MB\nours/nat.",
)


def _table(result: Measurements) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, title=f"\n{result.title}", title_justify="left")
    table.add_column("\nmode", no_wrap=True)
    for header in ("\nchain", *_HEADERS):
        table.add_column(header, justify="right", no_wrap=True)
    last = ""
    for line in result.lines:
        label, cells = line.label, _cells(line, result)
        cells[2] = f"[{_colour(line.measured.ratio)}]{cells[2]}[/]"
        table.add_row(label if label != last else "", str(line.chain), *cells)
        last = label
    return table


def _cells(line: Line, result: Measurements) -> list[str]:
    """The numbers of a line, in the order of the headers."""
    m = line.measured
    return [
        _number(m.ours.seconds.median * 1e3),
        _number(m.native.seconds.median * 1e3),
        _ratio(m.ratio.median),
        f"{_ratio(m.ratio.low)}-{_ratio(m.ratio.high)}",
        _number(m.ours.seconds.median / result.floor.median),
        f"{m.ours.first:.1f}/{m.native.first:.1f}",
        _megabytes(m),
    ]


def _colour(ratio: Spread) -> str:
    """Green for faster, red for slower, neither where the quartiles hold both."""
    return "green" if ratio.high < 1 else "bold red" if ratio.low > 1 else "yellow"


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.2g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _megabytes(measured: Measured) -> str:
    sizes = (measured.ours.memory, measured.native.memory)
    return "/".join("-" if size is None else f"{size / 1e6:.0f}" for size in sizes)


def _explanation(plan: Plan, programs: dict[str, Program]) -> str:
    chains = (f"chain of {chain}: {transformation(CHAINS[chain])!r}" for chain in plan.chains)
    modes = [mode for program in programs.values() for mode in program.MODES]
    pairs = [(mode, chain) for mode in modes for chain in plan.chains]
    limited = any(not plan.has(mode, len(TREES[name]()), chain) for name in plan.trees for mode, chain in pairs)
    longer = f"chains of more than {plan.longest_compiled}" if plan.longest_compiled else "all chains, see --full"
    without = f"left out: compiled modes on trees of more than 500 leaves, {longer}"
    return "\n".join(
        (
            *chains,
            "ratio: time of ours / time of the native way, the median over pairs run in turn",
            "floor: np.dot and np.multiply(out=), each once, on one array of the tree's size",
            "first s: seconds of the first call, with tracing and compilation",
            "extra MB: rise of resident memory in a call, result included; - where unknown",
            *([without] if limited else []),
        )
    )


def _verdict(results: Sequence[Measurements]) -> str:
    """Counts of faster and slower pairs, and the worst one."""
    lines = [line for result in results for line in result.lines]
    faster = sum(line.measured.ratio.high < 1 for line in lines)
    slower = sum(line.measured.ratio.low > 1 for line in lines)
    worst = max(lines, key=lambda line: line.measured.ratio.median)
    return (
        f"of {len(lines)} pairs, gradxform is faster in {faster}, slower in {slower}; "
        f"largest ratio {_ratio(worst.measured.ratio.median)} ({worst.label}, {worst.tree}, chain of {worst.chain})"
    )


# --- files -----------------------------------------------------------------------------------------------------------


def _command(quick: bool, frameworks: Sequence[str] | None, trees: Sequence[str] | None) -> str:
    """What measures the same again; where the files go does not matter."""
    words = ["gradxform bench", "--quick" if quick else "--full"]
    words += [
        f"{option} {','.join(names)}" for option, names in (("--frameworks", frameworks), ("--trees", trees)) if names
    ]
    return " ".join(words)


def _about(command: str, quick: bool, programs: dict[str, Program], left_out: dict[str, str]) -> dict[str, Any]:
    """What a reader of the numbers must know: when, where, with which versions, and how to run it again."""
    versions = {"python": platform.python_version(), "gradxform": gradxform.__version__}
    for program in programs.values():
        versions |= program.versions()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "form": "quick" if quick else "full",
        "versions": versions,
        "machine": _machine(),
        "devices": {name: program.device() for name, program in programs.items()},
        "left_out": left_out,
    }


def _machine() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"system": platform.platform(), "processor": _processor(), "cores": usable, "load_at_start": load}


def _processor() -> str:
    """The processor's name; on Linux, `platform` does not know it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _as_json(plan: Plan, results: Sequence[Measurements]) -> dict[str, Any]:
    return {
        "units": {"seconds": "s", "first": "s", "floor": "s", "memory": "bytes", "ratio": "ours / native"},
        "chains": {str(chain): repr(transformation(CHAINS[chain])) for chain in plan.chains},
        "trees": {
            result.tree: {"leaves": result.leaves, "elements": result.elements, "floor": result.floor._asdict()}
            for result in results
        },
        "lines": [_line_as_json(line) for result in results for line in result.lines],
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    """A line without nesting but for the two sides."""
    entries = asdict(line)
    return {key: value for key, value in entries.items() if key != "measured"} | _named(entries["measured"])


def _named(value: Any) -> Any:
    """Spreads as mappings, which `asdict` leaves as they are."""
    if isinstance(value, Spread):
        return value._asdict()
    return {key: _named(item) for key, item in value.items()} if isinstance(value, dict) else value


def _page(about: dict[str, Any], plan: Plan, programs: dict[str, Program], results: Sequence[Measurements]) -> str:
    """The tables in Markdown, with what one must know to read them."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = f"{about['machine']['processor']}, {about['machine']['cores']} cores"
    lines = [f"Written by `{about['command']}` on {about['date'][:10]}: {machine}; {versions}.", ""]
    lines += [f"- {text}" for text in _explanation(plan, programs).splitlines()] + ["", _verdict(results) + ".", ""]
    names = ["mode", "chain", *(" ".join(header.split()) for header in _HEADERS)]
    for result in results:
        lines += [f"**{result.title}**", "", "| " + " | ".join(names) + " |"]
        lines.append("| --- |" + " ---: |" * (len(names) - 1))
        lines += [
            "| " + " | ".join((line.label, str(line.chain), *_cells(line, result))) + " |" for line in result.lines
        ]
        lines.append("")
    return "\n".join(lines)


def _points(results: Iterable[Measurements]) -> Iterator[_bench_picture.Point]:
    for line in (line for result in results for line in result.lines):
        yield _bench_picture.Point(line.label, line.beside, line.tree, line.chain, *line.measured.ratio)


def _foot(about: dict[str, Any]) -> str:
    """What the picture says in small print."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = f"{about['machine']['processor']}, {about['machine']['cores']} cores, {about['date'][:10]}"
    return f"Marks are medians of pairs run in turn, lines reach from quartile to quartile. {machine}\n{versions}"
