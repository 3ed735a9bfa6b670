"""How the pictures of the site look."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PICTURES = Path(__file__).parents[1] / "pictures"
NAMES = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
GOOD, BAD, GREY = "#1f77b4", "#d62728", "#5f6368"
COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#7f5539")
# Lines that coincide: a broad pale one, a narrower one on it, a thin dark one on top.
FRAMEWORKS = {"jax": ("#9ecae1", 5.5), "tensorflow": ("#f28e2b", 2.8), "torch": ("#111111", 0.9)}


def canvas(width: float = 9.6, height: float = 4.6) -> Figure:
    """An empty figure, its size in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(*every: Any) -> None:
    """Axes without a box, with a pale grid."""
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.margins(x=0.01)


def save(figure: Figure, out: Path, title: str, frameworks: tuple[str, ...] = tuple(NAMES)) -> None:
    """Write a picture, with its title and the versions that made it."""
    versions = ", ".join(f"{NAMES[name]} {importlib.import_module(name).__version__}" for name in frameworks)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    figure.supxlabel(versions, fontsize=8, color=GREY)
    figure.savefig(out, dpi=150)
