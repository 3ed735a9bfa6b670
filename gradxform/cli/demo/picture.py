"""Plot the demo: loss and gradient norm per step, without and with the chain, one line per framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gradxform.cli import writing
from gradxform.cli.demo.task import CLASSES, Run
from gradxform.cli.frameworks import title
from gradxform.core.transform import GradientTransformation

_STYLES = ((5.5, "#9ecae1"), (2.8, "#f28e2b"), (0.9, "#111111"))
"""Width and colour by rank. Each line is narrower than the one below, so all show where they coincide."""
_GREY = "#5f6368"


def write(runs: Sequence[Run], chain: GradientTransformation, versions: str, out: Path) -> None:
    """Draw the runs to a file in the format of its suffix."""
    figure = Figure(figsize=(9.6, 5.8), layout="constrained", facecolor="white")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, chained in enumerate((False, True)):
        shown = [run for run in runs if run.chained is chained]
        axes[0, column].set_title(f"{'with' if chained else 'without'} the chain: {_accuracies(shown)}", fontsize=11)
        _draw(axes[0, column], shown, [run.losses for run in shown])
        _draw(axes[1, column], shown, [run.norms for run in shown])
        axes[0, column].axhline(math.log(CLASSES), color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes[1, column].set_xlabel("step")
    place = {"xycoords": ("axes fraction", "data"), "xytext": (-4, 3), "textcoords": "offset points"}
    axes[0, 1].annotate("chance", (1, math.log(CLASSES)), **place, color=_GREY, fontsize=9, ha="right")
    _label(figure, axes, chain, versions)
    with writing.whole(out) as part:
        figure.savefig(part, dpi=150)


def _accuracies(runs: Sequence[Run]) -> str:
    """Return the test accuracies as one number or a range."""
    low, high = (f"{bound(run.accuracy for run in runs):.0%}" for bound in (min, max))
    return f"test accuracy {low}" if low == high else f"test accuracy {low} to {high}"


def _draw(axis: Any, runs: Sequence[Run], series: Sequence[Sequence[float]]) -> None:
    for rank, (run, values) in enumerate(zip(runs, series, strict=True)):
        width, color = _STYLES[rank % len(_STYLES)]
        style = {"color": color, "linewidth": width, "solid_joinstyle": "round", "zorder": 2 + rank}
        axis.plot(range(1, len(values) + 1), values, label=title(run.framework), **style)


def _label(figure: Figure, axes: Any, chain: GradientTransformation, versions: str) -> None:
    axes[0, 0].set_ylabel("loss per image")
    axes[0, 0].set_yscale("log")
    axes[1, 0].set_ylabel("gradient norm")
    axes[1, 0].set_yscale("log")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.margins(x=0.01)
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper right")
    figure.suptitle("A recurrent network reads digits pixel by pixel", fontsize=13, fontweight="bold")
    figure.supxlabel(f"{chain!r}     {versions}", fontsize=8, color=_GREY)
