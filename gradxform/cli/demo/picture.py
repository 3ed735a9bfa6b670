"""Plot the demo: the loss of each run, and below it how far apart the frameworks are, in one column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gradxform.cli import writing
from gradxform.cli.demo.task import CLASSES, Run, losses_apart
from gradxform.core.transform import GradientTransformation

_STYLES = {
    "none": ("no clipping", "#c62828", 1.0),
    "native": ("the frameworks' own clips", "#f28e2b", 3.2),
    "gradxform": ("gradxform", "#111111", 1.0),
}
"""Words, colour and width by way of clipping. The later lines are narrower, so both show where they coincide."""
_GREY = "#5f6368"


def write(runs: Sequence[Run], chain: GradientTransformation, versions: str, out: Path) -> None:
    """Draw the runs to a file in the format of its suffix."""
    figure = Figure(figsize=(6.4, 6.4), layout="constrained", facecolor="white")
    losses, apart = figure.subplots(2, 1, sharex=True)
    for clip, (words, color, width) in _STYLES.items():
        shown = [run for run in runs if run.clip == clip]
        style = {"color": color, "linewidth": width, "solid_joinstyle": "round"}
        for rank, run in enumerate(shown):
            label = f"{words}: test accuracy {_accuracies(shown)}" if rank == 0 else None
            losses.plot(range(1, len(run.losses) + 1), run.losses, label=label, **style)
        if len(shown) > 1:
            apart.plot(range(1, len(shown[0].losses) + 1), losses_apart(shown), **{**style, "linewidth": 1.2})
    losses.axhline(math.log(CLASSES), color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    place = {"xycoords": ("axes fraction", "data"), "xytext": (-4, 3), "textcoords": "offset points"}
    losses.annotate("chance", (1, math.log(CLASSES)), **place, color=_GREY, fontsize=9, ha="right")
    losses.set_yscale("log")
    apart.set_yscale("symlog", linthresh=1)
    apart.set_ylim(bottom=0)
    _label(figure, losses, apart, f"{chain!r}\n{versions}")
    with writing.whole(out) as part:
        figure.savefig(part, dpi=150)


def _accuracies(runs: Sequence[Run]) -> str:
    """Return the test accuracies as one number or a range."""
    low, high = (f"{bound(run.accuracy for run in runs):.0%}" for bound in (min, max))
    return low if low == high else f"{low} to {high}"


def _label(figure: Figure, losses: Any, apart: Any, about: str) -> None:
    losses.set_ylabel("loss per image")
    apart.set_ylabel("losses of two frameworks\nat most so far apart (ULP)")
    apart.set_xlabel("step")
    for axis in (losses, apart):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.margins(x=0.01)
    losses.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.suptitle("A recurrent network in each framework", fontsize=12, fontweight="bold")
    figure.supxlabel(about, fontsize=8, color=_GREY)
