"""Benchmark gradxform against each framework's own functions.

Both sides run alternately in one process, so other load slows both down. A ratio is the median of time / native time
over the repetitions. The results are compared first; the run ends if they disagree.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from gradxform.backend import lookup
from gradxform.cli import device as devices
from gradxform.cli import writing
from gradxform.cli.bench import report
from gradxform.cli.bench.timing import Disagreement, Effort, Side, floor, measure
from gradxform.cli.bench.workloads import CHAINS, MUON, TREES, Chain, Step, chain_title, gradients, transformation
from gradxform.cli.console import progress, versions
from gradxform.cli.frameworks import program, title
from gradxform.cli.frameworks.interface import Mode, Tree, Work, native
from gradxform.cli.options import Device, Frameworks, checked
from gradxform.proof.place import Place

_MANY = 500
"""Leaves above which some compiled modes are left out: XLA takes minutes for norms of 2000."""


class Plan(NamedTuple):
    """What to measure, and for how long."""

    trees: Sequence[str]
    chains: Sequence[Chain]
    effort: Effort
    longest_compiled: int
    """Longest chain for compiled modes on trees with many leaves."""

    def chains_of(self, tree: str) -> Sequence[Chain]:
        """The chains to measure on a tree: Muon takes matrices only."""
        return (MUON,) if tree == "matrices" else self.chains

    def pairs(self, tree: str, frameworks: Iterable[str]) -> list[tuple[str, Mode, Chain]]:
        """Frameworks, modes and chains to measure on a tree."""
        most = math.inf if len(TREES[tree]()) <= _MANY else self.longest_compiled
        modes = [(framework, mode) for framework in frameworks for mode in program(framework).MODES]
        pairs = [(*mode, chain) for mode in modes for chain in self.chains_of(tree)]
        return [pair for pair in pairs if pair[1].compile is None or len(CHAINS[pair[2]]) <= most]


QUICK = Plan(("mlp", "many", "resnet50", "matrices"), (1, 3), Effort(0.4, 5, 300), 0)
FULL = Plan(tuple(TREES), (1, 3, 8), Effort(2.0, 15, 1000), 3)
_UNITS = {"seconds": "s", "first": "s", "floor": "s", "ratio": "gradxform / native"}


def run(
    quick: Annotated[bool, typer.Option("--quick/--full", help="Without GPT-2 and the longest chain, or all.")] = True,
    frameworks: Frameworks = None,
    device: Device = None,
    trees: Annotated[str | None, typer.Option(help=f"Some of {','.join(TREES)}.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for bench.json.")] = Path(),
) -> int:
    """Time chains and the frameworks' own functions, in turn in one run."""
    names = checked("bench", "framework", frameworks, lookup.FRAMEWORKS)
    plan = QUICK if quick else FULL
    plan = plan if trees is None else plan._replace(trees=checked("bench", "tree", trees, tuple(TREES)))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"bench: {str(out)!r} cannot be a folder for bench.json ({error})") from error
    writing.check("bench", out / "bench.json")
    places = devices.places("bench", device, names)
    options = {"--frameworks": frameworks, "--trees": trees, "--device": device}
    given = [f"{option} {value}" for option, value in options.items() if value]
    about: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["gradxform bench", "--quick" if quick else "--full", *given]),
        "form": "quick" if quick else "full",
        "versions": versions(),
        "machine": machine(),
        "devices": {name: str(place) for name, place in places.items()},
        "left_out": [name for name in names if name not in places],
    }
    if device is not None:
        about["device"] = device
        typer.echo(f"measured: {devices.ran_on(places)}")
    load, cores = about["machine"]["load_at_start"], about["machine"]["cores"]
    if load is not None and load > cores / 2:
        busy = f"this machine is busy (load {load:.1f} on {cores} cores): expect noisy ratios and long times"
        typer.secho(busy, fg="yellow")
    found, lines = _measured(plan, places)
    if not lines:
        raise ValueError("bench: no framework has the native functions of these chains")
    chains = {chain: transformation(CHAINS[chain]) for tree in plan.trees for chain in plan.chains_of(tree)}
    left_out = f"left out: for more than {_MANY} leaves, compiled chains longer than {plan.longest_compiled}"
    many = any(len(TREES[tree]()) > _MANY for tree in plan.trees)
    words = (f"{chain_title(chain)}: {tx!r}" for chain, tx in chains.items())
    about["explanation"] = [*words, *report.EXPLANATION, *[left_out] * many]
    typer.echo("\n".join(["", *about["explanation"], "", report.verdict(lines)]))
    about |= {"units": _UNITS, "chains": {str(chain): repr(tx) for chain, tx in chains.items()}}
    about |= {"trees": found, "lines": lines}
    with writing.whole(out / "bench.json") as part:
        part.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"written: {out / 'bench.json'}")
    return 0


def _measured(plan: Plan, places: Mapping[str, Place]) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Measure every tree, mode and chain; print each tree's table when it is done."""
    trees, lines = {}, []
    for name in plan.trees:
        tree = gradients(TREES[name]())
        elements = sum(leaf.size for leaf in tree.values())
        trees[name] = {"leaves": len(tree), "elements": elements, "floor": floor(tree, plan.effort)}
        pairs = plan.pairs(name, places)
        # An auto-refreshing bar runs a thread, which would be measured too.
        with progress(auto_refresh=False) as shown:
            bar = shown.add_task(name, total=len(pairs))
            for framework, mode, chain in pairs:
                place, what = places[framework], f"{name}, {title(framework)} {mode.name}, {chain_title(chain)}"
                shown.update(bar, advance=1, description=what, refresh=True)
                about = {"framework": framework, "mode": mode.name, "beside": mode.native, "tree": name, "chain": chain}
                try:
                    with place.on():
                        both = sides(framework, mode, CHAINS[chain], tree, place)
                        lines.append(measure(both, tree, plan.effort, chain) | about)
                except ImportError as error:
                    typer.echo(f"left out: {what}, {error}")
                except Disagreement as error:
                    raise Disagreement(f"bench: the two sides do not agree ({what}): {error}") from error
        Console().print(report.table(name, trees[name], [line for line in lines if line["tree"] == name]))
    return trees, lines


def sides(framework: str, mode: Mode, steps: Sequence[Step], tree: Tree, place: Place) -> tuple[Side, Side]:
    """The chain in gradxform, and the framework's own functions one by one, each on gradients of its own.

    Raises:
        ImportError: this version of the framework has no such native function.
    """
    tx, to_numpy = transformation(steps, **mode.muon), lookup.backend(framework).to_numpy

    def side(work: Work) -> Side:
        held = mode.hold([place.put(leaf) for leaf in tree.values()])
        compiled = mode.compile(work) if mode.compile else work

        def run() -> Any:
            result = compiled(held)
            place.wait(result)
            return result

        def restore() -> None:
            for array, leaf in zip(mode.written(held) if mode.written else (), tree.values(), strict=False):
                array[...] = place.put(leaf)

        def leaves(result: Any) -> list[Any]:
            return [to_numpy(array) for array in (mode.written(held) if mode.written else result)]

        return Side(run, leaves, restore)

    return side(functools.partial(mode.own, tx)), side(functools.partial(native, mode, steps))


def machine() -> dict[str, Any]:
    """The system, its processor, the cores that may be used, and how busy they are."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"system": platform.platform(), "processor": _processor(), "cores": usable, "load_at_start": load}


def _processor() -> str:
    """The processor's name, which `platform` does not know on Linux."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
