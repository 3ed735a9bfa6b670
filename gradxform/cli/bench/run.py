"""Benchmark gradxform against each framework's own functions.

Both sides run alternately in one process, so other load slows both down. A ratio is the median of time / native time
over the repetitions. The results are compared first; the run ends if they disagree.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console

import gradxform
from gradxform.backend import lookup
from gradxform.backend.errors import install
from gradxform.cli import device, writing
from gradxform.cli.bench import picture, report
from gradxform.cli.bench.lines import FULL, QUICK, Line, Measurements, Plan
from gradxform.cli.bench.task import CHAINS, TREES, Chain, Mode, Program, gradients, title, transformation
from gradxform.cli.bench.timing import Disagreement, floor, measure
from gradxform.cli.demo.task import NAMES
from gradxform.cli.quiet import quiet
from gradxform.cli.text import check_names, progress, say
from gradxform.proof.place import Place

_MEMORY_FROM = 1 << 24
"""Smallest tree, in bytes, whose memory is reported; below it, allocator caches hide the use."""


def run(
    quick: bool,
    frameworks: Sequence[str] | None,
    trees: Sequence[str] | None,
    out: Path,
    console: Console,
    asked: str | None = None,
) -> int:
    """Measure, show a table for each tree, and write `bench.json`, `bench.md` and `bench.png`.

    Args:
        quick: measure without GPT-2 and the longest chain, with few repetitions.
        frameworks: some of "numpy", "jax", "tensorflow", "torch"; None for all. Frameworks that are not
            installed are named and skipped.
        trees: some of "mlp", "many", "resnet50", "gpt2", "matrices"; None for the default of the form.
        out: the folder for the files; created if missing.
        console: prints progress and tables.
        asked: the device, such as "cuda"; also counts operations. None for each framework's default.

    Returns:
        The exit code, 0.

    Raises:
        ValueError: an unknown framework or tree, a device that no framework has, no installed framework, none that has
            the native functions, or an `out` that is not a folder.
        Disagreement: the two sides give different results.
    """
    plan = QUICK if quick else FULL
    check_names("bench", "framework", frameworks, lookup.FRAMEWORKS)
    check_names("bench", "tree", trees, tuple(TREES))
    plan = plan if trees is None else plan._replace(trees=list(dict.fromkeys(trees)))
    _make(out)
    programs, left_out = _programs(list(dict.fromkeys(frameworks or lookup.FRAMEWORKS)))
    for name, reason in left_out.items():
        say(console, f"left out: {NAMES[name]}, {reason}")
    if not programs:
        raise ValueError(f"bench: none of {', '.join(left_out)} is installed")
    if asked is None:
        places = {name: device.find(name) for name in programs}
    else:
        places = device.places("bench", asked, programs, console)
        programs = {name: programs[name] for name in places}
        say(console, f"measured: {device.ran_on(places)}")
    about = _about(_command(quick, frameworks, trees, asked), quick, programs, left_out, places)
    about |= {} if asked is None else {"device": asked}
    _warn_if_busy(about["machine"], console)
    results = _measure_all(plan, programs, places, asked is not None, console)
    explanation = report.explanation(plan, programs, asked is not None)
    console.print(f"\n{explanation}\n\n{report.verdict(results)}", markup=False, highlight=False)
    with writing.whole(out / "bench.json") as part:
        part.write_text(json.dumps(about | report.as_json(plan, results), indent=1) + "\n", encoding="utf-8")
    with writing.whole(out / "bench.md") as part:
        part.write_text(report.page(about, plan, programs, results), encoding="utf-8")
    picture.write([line for result in results for line in result.lines], report.foot(about), out / "bench.png")
    say(console, f"written: {out / 'bench.json'}, {out / 'bench.md'}, {out / 'bench.png'}")
    return 0


# --- what to measure -------------------------------------------------------------------------------------------------


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: {str(out)!r} cannot be a folder for bench.json and bench.png ({error})") from error
    for name in ("bench.json", "bench.md", "bench.png"):
        writing.check("bench", out / name)


def _programs(wanted: Sequence[str]) -> tuple[dict[str, Program], dict[str, str]]:
    """Import the frameworks' programs; return them and the reasons for missing ones."""
    found: dict[str, Program] = {}
    left_out: dict[str, str] = {}
    for name in wanted:
        try:
            with quiet():
                found[name] = cast(Program, importlib.import_module(f"gradxform_{name}.bench"))
        except ModuleNotFoundError as error:
            left_out[name] = f"{error.name} is not installed; {install(name)}"
    return found, left_out


# --- measuring -------------------------------------------------------------------------------------------------------


def _measure_all(
    plan: Plan, programs: dict[str, Program], places: dict[str, Place], cost: bool, console: Console
) -> list[Measurements]:
    """Measure every tree, mode and chain; print each tree's table when it is done."""
    pairs = {name: list(_pairs(plan, programs, name)) for name in plan.trees}
    results = []
    # An auto-refreshing bar runs a thread, which would be measured too.
    with progress(console, auto_refresh=False) as shown:
        bar = shown.add_task("", total=sum(map(len, pairs.values())))
        for name, of_tree in pairs.items():
            tree = gradients(TREES[name]())
            count = sum(leaf.size for leaf in tree.values())
            result = Measurements(name, len(tree), count, floor(tree, plan.effort), [])
            for framework, mode, chain in of_tree:
                description = f"{name}, {NAMES[framework]} {mode.name}, {title(chain)}"
                shown.update(bar, description=description, refresh=True)
                place = places[framework]
                memory = programs[framework].GIVES_MEMORY_BACK and place.name == "cpu" and 4 * count >= _MEMORY_FROM
                try:
                    with place.on():
                        side, native = mode.sides(CHAINS[chain], tree, place)
                        measured = measure(side, native, tree, CHAINS[chain], plan.effort, memory, cost)
                except ImportError as error:
                    say(console, f"left out: {description}, {error}")
                    continue
                except Disagreement as error:
                    where = f"{NAMES[framework]} {mode.name}, {name}, {transformation(CHAINS[chain])!r}"
                    text = f"bench: the two sides do not agree ({where} vs {mode.native}): {error}"
                    raise Disagreement(text) from error
                result.lines.append(Line(framework, mode.name, mode.native, name, chain, measured))
                shown.advance(bar)
            results.append(result)
            console.print(report.table(result, cost))
    if not any(result.lines for result in results):
        raise ValueError("bench: no framework has the native functions of these chains")
    return results


def _pairs(plan: Plan, programs: dict[str, Program], tree: str) -> Iterator[tuple[str, Mode, Chain]]:
    """Yield framework, mode and chain of each measurement on a tree."""
    leaves, chains = len(TREES[tree]()), plan.chains_of(tree)
    for framework, program in programs.items():
        for mode in program.MODES:
            yield from ((framework, mode, chain) for chain in chains if plan.has(mode, leaves, chain))


def _warn_if_busy(machine: dict[str, Any], console: Console) -> None:
    load, cores = machine["load_at_start"], machine["cores"]
    if load is not None and load > cores / 2:
        say(
            console,
            f"this machine is busy (load {load:.1f} on {cores} cores): expect noisy ratios and long times",
            "yellow",
        )


# --- files -----------------------------------------------------------------------------------------------------------


def _command(quick: bool, frameworks: Sequence[str] | None, trees: Sequence[str] | None, asked: str | None) -> str:
    """The command that repeats this measurement, without the output folder."""
    words = ["gradxform bench", "--quick" if quick else "--full"]
    words += [
        f"{option} {','.join(names)}" for option, names in (("--frameworks", frameworks), ("--trees", trees)) if names
    ]
    return " ".join(words if asked is None else [*words, "--device", asked])


def _about(
    command: str, quick: bool, programs: dict[str, Program], left_out: dict[str, str], places: dict[str, Place]
) -> dict[str, Any]:
    """The provenance of a run: date, command, versions, machine and devices."""
    versions = {"python": platform.python_version(), "gradxform": gradxform.__version__}
    for program in programs.values():
        versions |= program.versions()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "form": "quick" if quick else "full",
        "versions": versions,
        "machine": _machine(),
        "devices": {name: str(place) for name, place in places.items()},
        "left_out": left_out,
    }


def _machine() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"system": platform.platform(), "processor": _processor(), "cores": usable, "load_at_start": load}


def _processor() -> str:
    """The processor's name, which `platform` does not know on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
