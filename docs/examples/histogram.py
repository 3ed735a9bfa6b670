"""What three clips do to the gradients of a small network: their elements, their norms, their direction; in PyTorch.

    python docs/examples/histogram.py [FOLDER]

prints a table and writes histogram.png into the folder, docs/pictures if none is given.

The gradients are those of the first step of a network of two hidden layers on scikit-learn's handwritten digits. The
limits are such that each clip leaves about the same global norm.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawing import COLORS, GREY, PICTURES, canvas, save, tidy
from sklearn.datasets import load_digits

import gradxform as gx

CLIPS = (gx.clip_value(0.02), gx.clip_norm(0.58), gx.clip_global_norm(1.0))
WEIGHTS = ("0/weight", "2/weight", "4/weight")
Array = Any


@dataclass
class Clipped:
    """Gradients by path, before and after a clip."""

    tx: gx.GradientTransformation
    before: dict[str, Array]
    after: dict[str, Array]

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(flat(self.after)))

    @property
    def changed(self) -> float:
        """The share of elements that are not what they were."""
        return float(np.mean(flat(self.after) != flat(self.before)))

    @property
    def cosine(self) -> float:
        """Of the angle between before and after, all gradients as one vector."""
        before, after = (flat(gradients) for gradients in (self.before, self.after))
        return float(before @ after / np.linalg.norm(before) / np.linalg.norm(after))


def flat(gradients: dict[str, Array]) -> Array:
    return np.concatenate([np.float64(g).ravel() for g in gradients.values()])


def gradients() -> dict[str, Any]:
    """Of one batch of 64 images."""
    images, labels = load_digits(return_X_y=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))
    logits = model(torch.tensor(np.float32(images[:64])))
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels[:64])).backward()
    return {name.replace(".", "/"): p.grad for name, p in model.named_parameters()}


def draw(found: list[Clipped], out: Path) -> None:
    figure = canvas(9.6, 6.2)
    axes = figure.subplots(2, 3, sharey="row", height_ratios=(1.25, 1))
    largest = max(float(abs(g).max()) for g in found[0].before.values())
    bins = np.linspace(-largest, largest, 100)
    for one, color, top, bottom in zip(found, COLORS, *axes, strict=False):
        top.hist(flat(one.before), bins, color="#d9dce1", label="before")
        top.hist(flat(one.after), bins, histtype="step", color=color, linewidth=1.6, label="after")
        top.set_title(f"{one.tx!r}\ncosine with the original: {one.cosine:.3f}", fontsize=11)
        top.set_yscale("log")
        top.set_xlabel("element of a gradient")
        top.legend(frameon=False, fontsize=9, loc="upper right", handlelength=1.2)
        for i, name in enumerate(WEIGHTS):
            for kept, dx, tone in ((one.before, -0.19, "#d9dce1"), (one.after, 0.19, color)):
                norm = float(np.linalg.norm(kept[name]))
                bottom.bar(i + dx, norm, 0.38, color=tone)
                bottom.annotate(f"{norm:.2f}", (i + dx, norm), ha="center", va="bottom", fontsize=8, color=GREY)
        bottom.set_xticks(range(len(WEIGHTS)), WEIGHTS)
    axes[0, 0].set_ylabel("count")
    axes[1, 0].set_ylabel("norm of each gradient")
    tidy(*axes.flat)
    for bottom in axes[1]:
        bottom.margins(0.05, 0.12)
    save(figure, out, "Three clips to the same global norm change the direction differently", ("numpy", "torch"))


def main(folder: Path = PICTURES) -> list[Clipped]:
    before = gradients()
    found = [Clipped(tx, *({k: g.numpy() for k, g in kept.items()} for kept in (before, tx(before)))) for tx in CLIPS]
    print(f"before: global norm {np.linalg.norm(flat(found[0].before)):.2f}")
    for one in found:
        print(f"{one.tx!r:22}  global norm {one.norm:.2f}, cosine {one.cosine:.3f}, changed {one.changed:.0%}")
    draw(found, folder / "histogram.png")
    return found


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
