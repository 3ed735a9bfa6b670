"""Benchmark gradxform against each framework's own functions.

Both sides run alternately in one process, so other load slows both down. A ratio is the median of time / native time
over the repetitions. The results are compared first; the run ends if they disagree.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gradxform.backend import lookup
from gradxform.cli import device, writing
from gradxform.cli.bench import report
from gradxform.cli.bench.results import FULL, QUICK, Line, Measurements, Plan, as_json
from gradxform.cli.bench.timing import Disagreement, floor, measure
from gradxform.cli.bench.workloads import CHAINS, TREES, chain_title, gradients
from gradxform.cli.console import check_names, progress, say, versions
from gradxform.cli.frameworks import program, title
from gradxform.cli.frameworks.interface import Program, transformation
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
    """Measure, show a table for each tree, and write `bench.json`.

    Args:
        quick: measure without GPT-2 and the longest chain, with few repetitions.
        frameworks: some of "numpy", "jax", "tensorflow", "torch"; None for all. Frameworks that are not
            installed are named and skipped.
        trees: some of "mlp", "many", "resnet50", "gpt2", "matrices"; None for the default of the form.
        out: the folder for the file; created if missing.
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
    wanted = list(dict.fromkeys(frameworks or lookup.FRAMEWORKS))
    places = device.places("bench", asked, wanted, console)
    programs = {name: program(name) for name in places}
    about = _about(_command(quick, frameworks, trees, asked), quick, places)
    about["left_out"] = [name for name in wanted if name not in places]
    if asked is not None:
        about["device"] = asked
        say(console, f"measured: {device.ran_on(places)}")
    _warn_if_busy(about["machine"], console)
    results = _measure_all(plan, programs, places, asked is not None, console)
    about["explanation"] = report.explanation(plan, programs, asked is not None)
    shown = "\n".join(about["explanation"])
    console.print(f"\n{shown}\n\n{report.verdict(results)}", markup=False, highlight=False)
    with writing.whole(out / "bench.json") as part:
        part.write_text(json.dumps(about | as_json(plan, results), indent=1) + "\n", encoding="utf-8")
    say(console, f"written: {out / 'bench.json'}")
    return 0


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: {str(out)!r} cannot be a folder for bench.json ({error})") from error
    writing.check("bench", out / "bench.json")


# --- measuring -------------------------------------------------------------------------------------------------------


def _measure_all(
    plan: Plan, programs: Mapping[str, Program], places: Mapping[str, Place], cost: bool, console: Console
) -> list[Measurements]:
    """Measure every tree, mode and chain; print each tree's table when it is done."""
    pairs = {
        tree: [
            (framework, mode, chain)
            for framework, program in programs.items()
            for mode in program.MODES
            for chain in plan.chains_of(tree)
            if plan.has(mode, len(TREES[tree]()), chain)
        ]
        for tree in plan.trees
    }
    results = []
    # An auto-refreshing bar runs a thread, which would be measured too.
    with progress(console, auto_refresh=False) as shown:
        bar = shown.add_task("", total=sum(map(len, pairs.values())))
        for name, of_tree in pairs.items():
            tree = gradients(TREES[name]())
            count = sum(leaf.size for leaf in tree.values())
            result = Measurements(name, len(tree), count, floor(tree, plan.effort), [])
            for framework, mode, chain in of_tree:
                label = f"{title(framework)} {mode.name}"
                description = f"{name}, {label}, {chain_title(chain)}"
                shown.update(bar, description=description, refresh=True)
                place, steps = places[framework], CHAINS[chain]
                memory = programs[framework].GIVES_MEMORY_BACK and place.name == "cpu" and 4 * count >= _MEMORY_FROM
                try:
                    with place.on():
                        measured = measure(*mode.sides(steps, tree, place), tree, steps, plan.effort, memory, cost)
                except ImportError as error:
                    say(console, f"left out: {description}, {error}")
                    continue
                except Disagreement as error:
                    where = f"{label}, {name}, {transformation(steps)!r}"
                    text = f"bench: the two sides do not agree ({where} vs {mode.native}): {error}"
                    raise Disagreement(text) from error
                line = Line(
                    **vars(measured), framework=framework, mode=mode.name, beside=mode.native, tree=name, chain=chain
                )
                result.lines.append(line)
                shown.advance(bar)
            results.append(result)
            console.print(report.table(result, cost))
    if not any(result.lines for result in results):
        raise ValueError("bench: no framework has the native functions of these chains")
    return results


# --- where it ran ----------------------------------------------------------------------------------------------------


def _command(quick: bool, frameworks: Sequence[str] | None, trees: Sequence[str] | None, asked: str | None) -> str:
    """The command that repeats this measurement, without the output folder."""
    options = (("--frameworks", ",".join(frameworks or ())), ("--trees", ",".join(trees or ())), ("--device", asked))
    words = [f"{option} {value}" for option, value in options if value]
    return " ".join(["gradxform bench", "--quick" if quick else "--full", *words])


def _about(command: str, quick: bool, places: Mapping[str, Place]) -> dict[str, Any]:
    """The provenance of a run: date, command, versions, machine and devices."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "form": "quick" if quick else "full",
        "versions": versions(),
        "machine": machine(),
        "devices": {name: str(place) for name, place in places.items()},
    }


def machine() -> dict[str, Any]:
    """The system, its processor, the cores that may be used, and how busy they are."""
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


def _warn_if_busy(machine: dict[str, Any], console: Console) -> None:
    load, cores = machine["load_at_start"], machine["cores"]
    if load is not None and load > cores / 2:
        busy = f"this machine is busy (load {load:.1f} on {cores} cores): expect noisy ratios and long times"
        say(console, busy, "yellow")
