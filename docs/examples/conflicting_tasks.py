"""Two tasks with conflicting gradients: what mean, pcgrad, mgda, cagrad and upgrad make of them.

    python docs/examples/conflicting_tasks.py [FOLDER]

prints the products with both gradients, and writes conflicting_tasks.png into the folder, docs/pictures if none is
given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import drawing
import numpy as np

import gradxform as gx

TASKS = np.array([[2.0, 0.4], [-1.0, 0.5]])
Array = Any


def combined() -> dict[str, Array]:
    """The vectors; pcgrad's is halved, since it is a sum."""
    trees = [[row] for row in TASKS]
    found = {
        "mean": gx.mean(trees),
        "pcgrad / 2": gx.scale(0.5)(gx.pcgrad(trees, seed=0)),
        "upgrad": gx.upgrad(trees),
        "cagrad(c=0.5)": gx.cagrad(trees, c=0.5),
        "mgda": gx.mgda(trees),
    }
    return {name: tree[0] for name, tree in found.items()}


def draw(found: dict[str, Array], out: Path) -> None:
    figure = drawing.canvas(9.6, 4.4)
    axes = figure.subplots()
    harm = np.array([TASKS[1, 1], -TASKS[1, 0]])
    help_both = np.array([[0.0, 0.0], 4 * harm, [0.0, 4.0], 4 * np.array([-TASKS[0, 1], TASKS[0, 0]])])
    axes.fill(*help_both.T, color="#eaf3ea", zorder=0)
    axes.text(0.05, 1.36, "harms no task", color="#2ca02c", fontsize=9)
    for i, row in enumerate(TASKS):
        arrow(axes, row, drawing.GREY, 2.6)
        axes.text(*(row * 1.03), f"task {i + 1}", color=drawing.GREY, fontsize=10, ha="left" if row[0] > 0 else "right")
    shown = [(name, vector) for name, vector in found.items() if name != "pcgrad / 2"]
    for (name, vector), color in zip(shown, drawing.COLORS, strict=False):
        arrow(axes, vector, color, 2.0)
        axes.plot([], [], color=color, linewidth=2.0, label={"upgrad": "upgrad = pcgrad / 2"}.get(name, name))
    axes.set(xlim=(-1.4, 2.4), ylim=(-0.1, 1.5), aspect="equal", xticks=[], yticks=[])
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    drawing.save(figure, out, "Two conflicting gradients, combined in five ways", ("numpy",))


def arrow(axes: Any, vector: Array, color: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", vector, (0.0, 0.0), arrowprops=style)


def main(folder: Path = drawing.PICTURES) -> dict[str, Array]:
    found = combined()
    for name, vector in found.items():
        first, second = TASKS @ vector
        print(f"{name:14} {np.round(vector, 3)}  with task 1: {first:.2f}, with task 2: {second:.2f}")
    draw(found, folder / "conflicting_tasks.png")
    return found


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
