"""The picture of a comparison: steps by leaves, coloured by distance; and the norms of both runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import named

_LEAST = 1e-8
_NAMES = 60
"""Leaves up to which each has its name beside its row."""
_A, _B, _GREY, _NOISE = "#1f77b4", "#f28e2b", "#5f6368", "#c4c7cc"


def figure(found: Comparison) -> Figure:
    """Draw distances and norms."""
    count = len(found.pairs)
    height = min(14.0, max(2.2, 0.17 * count))
    made = Figure(figsize=(10.0, height + 2.9), layout="constrained", facecolor="white")
    above, below = made.subplots(2, 1, height_ratios=(height, 2.2), sharex=True)
    _distances(made, above, found)
    _norms(below, found)
    made.suptitle(f"A: {found.a.folder.name}   B: {found.b.folder.name}", fontsize=12, fontweight="bold")
    return made


def _distances(made: Figure, axis: Any, found: Comparison) -> None:
    """A row for each leaf, the first of the network on top; NaN is black, noise is grey."""
    judged, edges, count = found.judged[found.tree], _edges(found.steps), len(found.pairs)
    columns = [found.rows[found.tree][step] for step in found.steps]
    lost = np.array([[not d.size or any(d.nonfinite) for d in column] for column in columns]).T
    far = np.array([[max(_LEAST, d.relative) for d in column] for column in columns]).T
    rows = np.arange(count + 1)
    scale = LogNorm(_LEAST, 1.0, clip=True)
    colours = axis.pcolormesh(edges, rows, np.ma.array(far, mask=lost), cmap="viridis", norm=scale)
    noise = np.array([[found.is_noise(i, found.tree, step) for i in range(count)] for step in found.steps]).T & ~lost
    if noise.any():
        axis.pcolormesh(edges, rows, np.ma.array(noise, mask=~noise), cmap=ListedColormap([_NOISE]))
    axis.set_facecolor("black")
    axis.invert_yaxis()
    if count <= _NAMES:
        axis.set_yticks(rows[:-1] + 0.5, [named(pair.a) for pair in found.pairs], fontsize=7)
    else:
        axis.set_ylabel(f"{count} leaves, the first of the network on top")
    bar = made.colorbar(colours, ax=axis, label=f"relative distance of {found.tree}", pad=0.01)
    bar.ax.axhline(judged.arithmetic.budget, color="white", linewidth=1.2)
    if judged.first is not None:
        parts = edges[found.steps.index(judged.first)]
        axis.axvline(parts, color="#d62728", linewidth=1.6, clip_on=False, zorder=4)
    axis.set_title(_title(found) + ("; grey is noise" if noise.any() else ""), fontsize=10, loc="left")


def _title(found: Comparison) -> str:
    first = found.judged[found.tree].first
    if first is None:
        within = "rounding explains all differences" if found.tolerance is None else "all is within the tolerance"
        return within if found.within else "the gradients agree, and the runs differ"
    return f"the runs part at step {first} (red line); the white line of the scale is what rounding explains"


def _edges(steps: list[int]) -> Any:
    """The limits of cells around steps."""
    gaps = np.diff(steps) if len(steps) > 1 else np.ones(1)
    around = np.array([steps[0] - gaps[0], *steps, steps[-1] + gaps[-1]])
    return (around[1:] + around[:-1]) / 2


def _norms(axis: Any, found: Comparison) -> None:
    """The global norm of each run."""
    rows = found.rows[found.tree]
    for place, (side, colour, width) in enumerate((("A", _A, 3.2), ("B", _B, 1.3))):
        norms = [math.hypot(*(d.norms[place] for d in rows[step])) for step in found.steps]
        marker = "o" if len(found.steps) < 40 else None
        axis.plot(found.steps, norms, color=colour, linewidth=width, marker=marker, markersize=3, label=side)
    if min(min(line.get_ydata()) for line in axis.get_lines()) > 0:
        axis.set_yscale("log")
    axis.set_xlabel("step")
    axis.set_ylabel(f"global norm of {found.tree}", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axis.legend(frameon=False, ncols=2, fontsize=9, loc="upper right", labelcolor=_GREY)
