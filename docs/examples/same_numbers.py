"""One clip in every framework: how far the frameworks' own functions, and gradxform's, are from the right numbers.

    python docs/examples/same_numbers.py [FOLDER]

measures, prints two tables and writes same_numbers.png into the folder, docs/pictures if none is given.

The gradients are normally distributed float32 numbers, clipped to half of their norm by the function for the global
norm. The right numbers are those of the formula in float64, rounded once. Distances are in units in the last place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import drawing
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
import torch

import gradxform as gx
from gradxform.testing import max_ulp

Array = Any
SIZES = [10.0**exponent for exponent in range(-30, 31, 3)]
COUNTS = [10**exponent for exponent in range(2, 7)] + [4_000_000]


def with_optax(g: Array, limit: float) -> Array:
    clip = optax.clip_by_global_norm(limit)
    return np.asarray(clip.update([jnp.asarray(g)], clip.init([g]))[0][0])


def with_tensorflow(g: Array, limit: float) -> Array:
    return tf.clip_by_global_norm([tf.constant(g)], limit)[0][0].numpy()


def with_torch(g: Array, limit: float) -> Array:
    parameter = torch.nn.Parameter(torch.empty(g.shape))
    parameter.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    return parameter.grad.numpy()


NATIVE: dict[str, Callable[[Array, float], Array]] = {
    "optax.clip_by_global_norm": with_optax,
    "tf.clip_by_global_norm": with_tensorflow,
    "torch's clip_grad_norm_": with_torch,
}
FRAMEWORKS: dict[str, Callable[[Array], Array]] = {
    "numpy": np.asarray,
    "jax": jnp.asarray,
    "tensorflow": tf.constant,
    "torch": torch.tensor,
}


@dataclass
class Case:
    """One gradient: the distance of each native function from the right numbers, and the largest of gradxform's."""

    size: float
    count: int
    native: dict[str, float] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    """What each native function gave: numbers, zeros or NaN."""
    gradxform: float = 0.0
    """From the right numbers, in the worst framework."""
    between: float = 0.0
    """Between the results of gradxform in the two frameworks that differ most."""


def case(size: float, count: int) -> Case:
    g = np.float32(size) * np.random.default_rng(0).standard_normal(count, np.float32)
    wide = g.astype(np.float64)
    norm = np.sqrt(np.sum(wide**2))
    limit = float(np.float32(norm / 2))
    right = np.float32(wide * (limit / norm))
    found = Case(size, count)
    for name, clip in NATIVE.items():
        clipped = clip(g, limit)
        found.native[name] = max_ulp(right, clipped)
        found.given[name] = "NaN" if np.isnan(clipped).any() else "numbers" if clipped.any() else "zeros"
    tx = gx.clip_global_norm(limit)
    ours = [np.asarray(tx([array(g)])[0]) for array in FRAMEWORKS.values()]
    found.gradxform = max(max_ulp(right, clipped) for clipped in ours)
    found.between = max(max_ulp(one, other) for one, other in combinations(ours, 2))
    return found


def measured() -> tuple[list[Case], list[Case]]:
    """By the size of the elements, 1,000 of them; by their number, of size 1."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # PyTorch's norm depends on their number
    try:
        return [case(size, 1000) for size in SIZES], [case(1.0, count) for count in COUNTS]
    finally:
        torch.set_num_threads(threads)


def table(cases: list[Case]) -> str:
    lines = [f"{'size':>8} {'elements':>10}" + "".join(f"{name:>28}" for name in NATIVE) + f"{'gradxform, worst':>20}"]
    for of in cases:
        cells = (of.given[name] if of.given[name] != "numbers" else f"{of.native[name]:,.0f}" for name in NATIVE)
        lines.append(
            f"{of.size:8.0e} {of.count:10,}" + "".join(f"{cell:>28}" for cell in cells) + f"{of.gradxform:20.0f}"
        )
    return "\n".join(lines)


def draw(by_size: list[Case], by_count: list[Case], out: Path) -> None:
    figure = drawing.canvas(9.6, 4.8)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
    styles = dict(zip(NATIVE, (("#9ecae1", 5.5), ("#f28e2b", 2.8), (drawing.BAD, 1.2)), strict=True))
    for axes, cases, x in ((left, by_size, "size"), (right, by_count, "count")):
        places = [getattr(of, x) for of in cases]
        for name, (color, width) in styles.items():
            distances = [min(of.native[name], 3e9) for of in cases]
            axes.plot(places, distances, color=color, linewidth=width, label=name)
        ours = [of.gradxform for of in cases]
        axes.plot(places, ours, color="#111111", linewidth=2.2, label="gradxform, worst of four frameworks")
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(-0.15, 3e10)
        axes.set_yticks([0, *(10.0**n for n in range(0, 10, 2))])
    left.set_ylabel("largest error in ULP")
    left.set_xlabel("size of the elements")
    left.set_title("1,000 elements of different sizes", fontsize=11)
    right.set_xlabel("number of elements")
    right.set_title("different numbers of elements of size 1", fontsize=11)
    drawing.tidy(left, right)
    left.text(4e30, 6e9, "zeros or NaN", fontsize=9, color=drawing.GREY, ha="right")
    right.legend(frameon=False, fontsize=9, loc="upper left")
    drawing.save(figure, out, "Error of a clip to half the norm")


def main(folder: Path = drawing.PICTURES) -> tuple[list[Case], list[Case]]:
    by_size, by_count = measured()
    print(table(by_size), table(by_count), sep="\n\n")
    worst = max(of.between for of in by_size + by_count)
    print(f"\ngradxform, any two of NumPy, JAX, TensorFlow, PyTorch: at most {worst:g} ULP apart")
    draw(by_size, by_count, folder / "same_numbers.png")
    return by_size, by_count


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
