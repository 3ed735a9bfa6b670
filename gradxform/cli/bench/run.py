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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from gradxform.backend import lookup
from gradxform.cli import device, writing
from gradxform.cli.bench import report
from gradxform.cli.bench.report import Measurements
from gradxform.cli.bench.timing import Disagreement, Effort, Side, floor, measure, nothing
from gradxform.cli.bench.workloads import CHAINS, MUON, TREES, Chain, Step, chain_title, gradients, transformation
from gradxform.cli.console import check_names, progress, say, versions
from gradxform.cli.frameworks import program, title
from gradxform.cli.frameworks.interface import Mode, Program, Tree, Work
from gradxform.proof.place import Place

_MEMORY_FROM = 1 << 24
"""Smallest tree, in bytes, whose memory is reported; below it, allocator caches hide the use."""


class Plan(NamedTuple):
    """What to measure, and for how long."""

    trees: Sequence[str]
    chains: Sequence[Chain]
    effort: Effort
    longest_compiled: int
    """Longest chain for compiled modes on trees with more than 500 leaves. XLA takes minutes for norms of 2000."""

    def chains_of(self, tree: str) -> Sequence[Chain]:
        """The chains to measure on a tree: Muon takes matrices only."""
        return (MUON,) if tree == "matrices" else self.chains

    def pairs(self, programs: Mapping[str, Program], tree: str) -> list[tuple[str, Mode, Chain]]:
        """Each framework, mode and chain to measure on a tree."""
        few = len(TREES[tree]()) <= 500
        return [
            (framework, mode, chain)
            for framework, own in programs.items()
            for mode in own.MODES
            for chain in self.chains_of(tree)
            if few or not mode.compiled or len(CHAINS[chain]) <= self.longest_compiled
        ]

    def left_out(self, programs: Mapping[str, Program]) -> list[str]:
        """What it leaves out, in words."""
        everything = self._replace(longest_compiled=max(map(len, CHAINS.values())))
        if all(self.pairs(programs, tree) == everything.pairs(programs, tree) for tree in self.trees):
            return []
        longer = f"chains longer than {self.longest_compiled}" if self.longest_compiled else "all chains, see --full"
        return [f"left out: compiled modes for trees with more than 500 leaves, {longer}"]


QUICK = Plan(("mlp", "many", "resnet50", "matrices"), (1, 3), Effort(0.4, 5, 300), longest_compiled=0)
FULL = Plan(tuple(TREES), (1, 3, 8), Effort(2.0, 15, 1000), longest_compiled=3)


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
    check_names("bench", "framework", frameworks, lookup.FRAMEWORKS)
    check_names("bench", "tree", trees, tuple(TREES))
    plan = QUICK if quick else FULL
    plan = plan if trees is None else plan._replace(trees=list(dict.fromkeys(trees)))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: {str(out)!r} cannot be a folder for bench.json ({error})") from error
    writing.check("bench", out / "bench.json")
    wanted = list(dict.fromkeys(frameworks or lookup.FRAMEWORKS))
    places = device.places("bench", asked, wanted, console)
    options = {"--frameworks": ",".join(frameworks or ()), "--trees": ",".join(trees or ()), "--device": asked}
    words = [f"{option} {value}" for option, value in options.items() if value]
    about: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["gradxform bench", "--quick" if quick else "--full", *words]),
        "form": "quick" if quick else "full",
        "versions": versions(),
        "machine": machine(),
        "devices": {name: str(place) for name, place in places.items()},
        "left_out": [name for name in wanted if name not in places],
    }
    if asked is not None:
        about["device"] = asked
        say(console, f"measured: {device.ran_on(places)}")
    _warn_if_busy(about["machine"], console)
    programs = {name: program(name) for name in places}
    results = _measure_all(plan, programs, places, asked is not None, console)
    if not any(result.lines for result in results):
        raise ValueError("bench: no framework has the native functions of these chains")
    chains = {chain: transformation(CHAINS[chain]) for tree in plan.trees for chain in plan.chains_of(tree)}
    about["explanation"] = [
        *(f"{chain_title(chain)}: {tx!r}" for chain, tx in chains.items()),
        *report.explanation(asked is not None),
        *plan.left_out(programs),
    ]
    shown = "\n".join(about["explanation"])
    console.print(f"\n{shown}\n\n{report.verdict(results)}", markup=False, highlight=False)
    about |= {
        "units": {"seconds": "s", "first": "s", "floor": "s", "memory": "bytes", "ratio": "gradxform / native"},
        "chains": {str(chain): repr(tx) for chain, tx in chains.items()},
        "trees": {
            result.tree: {"leaves": result.leaves, "elements": result.elements, "floor": asdict(result.floor)}
            for result in results
        },
        "lines": [asdict(line) for result in results for line in result.lines],
    }
    with writing.whole(out / "bench.json") as part:
        part.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    say(console, f"written: {out / 'bench.json'}")
    return 0


# --- measuring -------------------------------------------------------------------------------------------------------


def _measure_all(
    plan: Plan, programs: Mapping[str, Program], places: Mapping[str, Place], cost: bool, console: Console
) -> list[Measurements]:
    """Measure every tree, mode and chain; print each tree's table when it is done."""
    results = []
    # An auto-refreshing bar runs a thread, which would be measured too.
    with progress(console, auto_refresh=False) as shown:
        bar = shown.add_task("", total=sum(len(plan.pairs(programs, tree)) for tree in plan.trees))
        for name in plan.trees:
            tree = gradients(TREES[name]())
            count = sum(leaf.size for leaf in tree.values())
            result = Measurements(name, len(tree), count, floor(tree, plan.effort), [])
            for framework, mode, chain in plan.pairs(programs, name):
                shown.advance(bar)
                label = f"{title(framework)} {mode.name}"
                description = f"{name}, {label}, {chain_title(chain)}"
                shown.update(bar, description=description, refresh=True)
                place, steps = places[framework], CHAINS[chain]
                memory = programs[framework].GIVES_MEMORY_BACK and place.name == "cpu" and 4 * count >= _MEMORY_FROM
                what = {"framework": framework, "mode": mode.name, "beside": mode.native, "tree": name, "chain": chain}
                try:
                    with place.on():
                        both = sides(framework, mode, steps, tree, place)
                        result.lines.append(measure(both, tree, plan.effort, memory, cost, **what))
                except ImportError as error:
                    say(console, f"left out: {description}, {error}")
                except Disagreement as error:
                    where = f"{label}, {name}, {transformation(steps)!r}"
                    text = f"bench: the two sides do not agree ({where} vs {mode.native}): {error}"
                    raise Disagreement(text) from error
            results.append(result)
            console.print(report.table(result, cost))
    return results


def sides(framework: str, mode: Mode, steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """The chain in gradxform, and the framework's own functions one by one, each on gradients of its own.

    Raises:
        ImportError: this version of the framework has no such native function.
    """
    tx, to_numpy = transformation(steps, **mode.muon), lookup.backend(framework).to_numpy

    def own(grads: Any) -> Any:
        return mode.own(tx, grads)

    def native(grads: Any) -> Any:
        for name, value in steps:
            result = mode.functions[name](grads, value)
            grads = grads if mode.written else result
        return grads

    def side(work: Work) -> Side:
        held, compiled = mode.hold([place.put(leaf) for leaf in tree.values()]), mode.compile(work)

        def run() -> Any:
            result = compiled(held)
            place.wait(result)
            return result

        def restore() -> None:
            for array, leaf in zip(written(held), tree.values(), strict=True):
                array[...] = place.put(leaf)

        def leaves(result: Any) -> list[Any]:
            return [to_numpy(array) for array in (written(held) if mode.written else result)]

        return Side(run, leaves, restore if mode.written else nothing, lambda: place.cost(compiled, held))

    written: Callable[[Any], list[Any]] = mode.written or list
    return side(own), side(native)


# --- where it ran ----------------------------------------------------------------------------------------------------


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
