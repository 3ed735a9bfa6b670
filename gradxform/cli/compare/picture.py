"""The picture of a comparison: steps by leaves, coloured by distance; and the norms of both runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from gradxform.comparing.comparison import Comparison
from gradxform.comparing.mapping import named
from gradxform.comparing.rounding import is_noise, scale_of

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
    rows = found.rows[found.tree]
    table = np.array([[math.nan if d is None else _shown(d) for d in rows[step]] for step in found.steps]).T
    colours = axis.pcolormesh(
        _edges(found.steps),
        np.arange(len(found.pairs) + 1),
        np.ma.masked_invalid(table),
        cmap="viridis",
        norm=LogNorm(_LEAST, 1.0, clip=True),
    )
    if (noise := _noise(found)).any():
        grey = ListedColormap([_NOISE])
        axis.pcolormesh(_edges(found.steps), np.arange(len(found.pairs) + 1), np.ma.masked_equal(noise, 0), cmap=grey)
    axis.set_facecolor("black")
    axis.invert_yaxis()
    if len(found.pairs) <= _NAMES:
        axis.set_yticks(np.arange(len(found.pairs)) + 0.5, [named(pair.a) for pair in found.pairs], fontsize=7)
    else:
        axis.set_ylabel(f"{len(found.pairs)} leaves, the first of the network on top")
    bar = made.colorbar(colours, ax=axis, label=f"relative distance of {found.tree}", pad=0.01)
    bar.ax.axhline(found.judged[found.tree].arithmetic.budget, color="white", linewidth=1.2)
    first = found.judged[found.tree].first
    if first is not None:
        axis.axvline(
            _edges(found.steps)[found.steps.index(first)], color="#d62728", linewidth=1.6, clip_on=False, zorder=4
        )
    axis.set_title(_title(found) + ("; grey is noise" if noise.any() else ""), fontsize=10, loc="left")


def _noise(found: Comparison) -> Any:
    """Where the values of a leaf are rounding, so that its distance means nothing: an array of leaves by steps."""
    rows, modules = found.rows[found.tree], [pair.module for pair in found.pairs]
    table = np.zeros((len(modules), len(rows)))
    for j, row in enumerate(rows[step] for step in found.steps):
        scale = scale_of(row, modules)
        for i, d in enumerate(row):
            if d is not None and not d.apart:
                table[i, j] = is_noise(d, scale.near[i], scale.whole[i], found.judged[found.tree].arithmetic)
    return table


def _shown(distance: Any) -> float:
    if distance.nonfinite_a or distance.nonfinite_b:
        return math.nan
    return max(_LEAST, float(distance.relative))


def _title(found: Comparison) -> str:
    first = found.judged[found.tree].first
    if first is None:
        within = "rounding explains all differences" if found.tolerance is None else "all is within the tolerance"
        return within if found.within else "the gradients agree, and the runs differ"
    return f"the runs part at step {first} (red line); the white line of the scale is what rounding explains"


def _edges(steps: list[int]) -> Any:
    """The limits of cells around steps."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middles = (np.array(steps[1:]) + np.array(steps[:-1])) / 2
    return np.concatenate([[2 * steps[0] - middles[0]], middles, [2 * steps[-1] - middles[-1]]])


def _norms(axis: Any, found: Comparison) -> None:
    """The global norm of each run."""
    rows = found.rows[found.tree]
    for side, colour, width in (("a", _A, 3.2), ("b", _B, 1.3)):
        norms = [
            math.sqrt(math.fsum(getattr(d, f"norm_{side}") ** 2 for d in rows[s] if d is not None)) for s in found.steps
        ]
        marker = "o" if len(found.steps) < 40 else None
        axis.plot(found.steps, norms, color=colour, linewidth=width, marker=marker, markersize=3, label=side.upper())
    if min(min(line.get_ydata()) for line in axis.get_lines()) > 0:
        axis.set_yscale("log")
    axis.set_xlabel("step")
    axis.set_ylabel(f"global norm of {found.tree}", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axis.legend(frameon=False, ncols=2, fontsize=9, loc="upper right", labelcolor=_GREY)
