"""The size and look of the gallery's pictures, and the list of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

FOLDER = Path(__file__).parents[2] / "pictures/gallery"
BEFORE, AFTER, BAD, OTHER = "#b5bcc6", "#1f77b4", "#d62728", "#f28e2b"
STYLE = {"font.size": 11, "legend.fontsize": 11, "axes.spines.top": False, "axes.spines.right": False}

Draw = Callable[[Any], None]


def every() -> dict[str, Draw]:
    """The functions that draw, by the name of their picture."""
    from gallery import backward, clip, train

    return {
        name.replace("_", "-"): value
        for module in (clip, train, backward)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }


def note(axes: Any, x: float, y: float, text: str, color: str, **options: Any) -> None:
    """Write on the picture, in fractions of the axes."""
    axes.text(x, y, text, color=color, transform=axes.transAxes, **options)


def draw(picture: Draw, out: Path) -> None:
    """Draw one picture into a file."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.4, 2.1), layout="constrained", facecolor="white")
        picture(figure.subplots())
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=150)
    Image.open(drawn).convert("RGB").quantize(48).save(out, optimize=True)


def main(folder: Path = FOLDER) -> None:
    """Draw all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in every().items():
        draw(picture, folder / f"{name}.png")
