"""Count what `gx.compare` says of planted faults: how often which verdict is right, and wrong.

    python tests/benchmarks/planted_faults.py [FOLDER] [--blind] [--only WORD] [--show VERDICTS]

Each fault of tests/comparing is planted in one of two short trainings. The recordings, which are kept in FOLDER and
used again, are cut to 1, 2 and 10 steps, with parameters and without, and compared both ways.

- right: the cause is named, as certain
- possible: causes are listed, with what would decide
- unknown: the runs differ, and no cause is named
- missed: the differences are taken for rounding that has grown, a remark
- unseen: what these steps hold differs by rounding alone, such as before the first step of an optimizer
- wrong: another cause is named, as certain
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "comparing")]

import numpy_runs  # noqa: E402
import planted_faults_blind  # noqa: E402
import torch_runs  # noqa: E402
from faults import FAULTS  # noqa: E402
from more_faults import MORE  # noqa: E402
from test_causes import GRADIENTS, OPTIMIZERS  # noqa: E402

import gradxform as gx  # noqa: E402
from gradxform.recording.reading import Recording  # noqa: E402

VERDICTS = ("right", "possible", "unknown", "missed", "unseen", "wrong")
STEPS = 10
NO_CAUSE = {"unknown", "unrelated", "constant"}
"""Kinds that list what may be the cause."""
FOLLOWS = {"where", "rest", "unaligned"}


def planted(folder: Path) -> Iterator[tuple[str, set[str], Path]]:
    """Train the pairs that are not there yet; yield names, kinds that are right and folders."""
    for name, fault in FAULTS.items():
        made = folder / "torch" / name.replace(" ", "_")
        if not (made / "b").exists():
            torch_runs.train(made / "a", **{"noise": True, **fault.both, "steps": STEPS})
            torch_runs.train(made / "b", **{**fault.both, "steps": STEPS, **fault.options})
        yield name, {fault.kind}, made
    for name, case in {**OPTIMIZERS, **GRADIENTS}.items():
        made = folder / "numpy" / name.replace(" ", "_")
        if not (made / "b").exists():
            for side, options, twin in (("a", case.a, True), ("b", case.b, False)):
                given = {key: value() if key == "optimizer" else value for key, value in options.items()}
                numpy_runs.train(made / side, twin=twin, **{"steps": STEPS, **given})
        yield name, set(case.kinds.split("|")), made
    for name, more in MORE.items():
        made = folder / "more" / name.replace(" ", "_")
        if not (made / "b").exists():
            for side, options, twin in (("a", more.both, True), ("b", {**more.both, **more.options}, False)):
                given = {key: value() if key == "optimizer" else value for key, value in options.items()}
                numpy_runs.train(made / side, twin=twin, **{"steps": STEPS, **given})
        yield name, set(more.kinds) or {"none"}, made
    for network in ("conv", "transformer", "lstm"):
        for optimizer in torch_runs.OPTIMIZERS:
            made = folder / "clean" / f"{network}_{optimizer}"
            if not (made / "b").exists():
                for side in "ab":
                    torch_runs.train(made / side, network, optimizer=optimizer, steps=STEPS, noise=side == "b")
            yield f"none ({network}, {optimizer})", set(), made


def cut(source: Path, folder: Path, steps: int, parameters: bool) -> Path:
    """Record the first steps again, without parameters where they are not wanted."""
    recording, recorder = Recording(source), gx.record(folder)
    for step in recording.steps[:steps]:
        names = [name for name in recording.names(step) if parameters or name != "parameters"]
        trees = {name: [(p, recording.read(step, name, p)) for p in recording.shapes(step, name)] for name in names}
        recorder(step, **{name: tree[0][1] if tree[0][0] == "" else tree for name, tree in trees.items()})
    return folder


def verdict(found: gx.Comparison, wanted: set[str]) -> str:
    """Return what was said, in one word."""
    if not wanted:
        return "right" if found.within else "wrong"
    if found.within:
        return "missed" if found.findings else "unseen"
    faults = [finding for finding in found.findings if finding.is_fault and finding.kind not in FOLLOWS]
    certain = {finding.kind for finding in faults if finding.is_certain} - NO_CAUSE
    if certain:
        return "right" if certain <= wanted else "wrong"
    return "possible" if {finding.kind for finding in faults} - {"unknown"} else "unknown"


def main() -> None:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()) / "gradxform_faults")
    parser.add_argument("--blind", action="store_true", help="the faults by someone who had not read the rules")
    parser.add_argument("--only", default="", help="a part of the names of faults")
    parser.add_argument("--show", default="", help="verdicts whose text is printed, with commas between")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[tuple[str, int, bool], Counter[str]] = {}
    pairs = planted_faults_blind.planted(options.folder, STEPS) if options.blind else planted(options.folder)
    for name, wanted, folder in pairs:
        if options.only not in name:
            continue
        for steps in (1, 2, STEPS):
            for parameters in (True, False):
                with tempfile.TemporaryDirectory() as temporary:
                    a, b = (cut(folder / side, Path(temporary) / side, steps, parameters) for side in "ab")
                    for swapped, (one, other) in enumerate(((a, b), (b, a))):
                        try:
                            found = gx.compare(one, other)
                        except ValueError as error:
                            print(f"{name}: {error}")
                            continue
                        said = verdict(found, wanted)
                        group = "faults" if wanted else "clean"
                        counts.setdefault((group, steps, parameters), Counter())[said] += 1
                        if said in options.show.split(","):
                            kept = "with" if parameters else "without"
                            print(f"{said}: {name}, {steps} steps, {kept} parameters, swapped {swapped}\n{found}\n")
    print("| pairs | steps | parameters | " + " | ".join(VERDICTS) + " |")
    print("|---|---:|---|" + "---:|" * len(VERDICTS))
    for (group, steps, parameters), found in sorted(counts.items(), key=lambda item: (item[0][0], item[0][1])):
        cells = " | ".join(str(found[each]) for each in VERDICTS)
        print(f"| {group} | {steps} | {'yes' if parameters else 'no'} | {cells} |")


if __name__ == "__main__":
    main()
