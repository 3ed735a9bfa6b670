"""Straight through: one function's value, another's derivative, and what the formula with stop_gradient loses.

    python docs/examples/straight_through.py [FOLDER]

prints how many values have other bits than they should, and writes straight_through.png into the folder, docs/pictures
if none is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx

Array = Any
Function = Callable[[Array], Array]
PAIRS: dict[str, tuple[Function, Function]] = {
    "0.1 sin(x), as 3 x": (lambda x: 0.1 * jnp.sin(x), lambda x: 3.0 * x),
    "exp(x), as x": (jnp.exp, lambda x: x),
    "sign(x), as x": (jnp.sign, lambda x: x),
}


@dataclass
class Result:
    """What is drawn and printed."""

    x: Array
    value: Array
    slope: Array
    """Value and derivative of the sign, straight through the hard tanh."""
    large: Array
    formula: Array
    through: Array
    """The sign of large numbers, by the formula and by straight_through."""
    shares: dict[str, tuple[float, float]]
    """Of each pair of functions, the share of normal numbers whose value has other bits than f(x), by both ways."""


def formula(f: Function, b: Function) -> Function:
    """The usual way to write it."""
    return lambda x: b(x) + gx.stop_gradient(f(x) - b(x))


def measured() -> Result:
    x = jnp.linspace(-2.5, 2.5, 1001, dtype=jnp.float32)
    sign = gx.straight_through(jnp.sign, gx.clip_value(1.0))
    large = jnp.asarray(np.geomspace(1e6, 1e9, 301), jnp.float32)
    normal = jnp.asarray(np.random.default_rng(0).normal(size=100_000), jnp.float32)
    shares = {
        name: tuple(float(jnp.mean(of(f, b)(normal) != f(normal))) for of in (formula, gx.straight_through))
        for name, (f, b) in PAIRS.items()
    }
    return Result(
        x,
        sign(x),
        jax.grad(lambda x: jnp.sum(sign(x)))(x),
        large,
        formula(jnp.sign, lambda x: x)(large),
        gx.straight_through(jnp.sign)(large),
        shares,
    )


def draw(result: Result, out: Path) -> None:
    figure = drawing.canvas(9.6, 3.9)
    both, lost = figure.subplots(1, 2)
    slope = drawing.COLORS[1]
    both.plot(result.x, result.value, color=drawing.GOOD, linewidth=2.2)
    both.plot(result.x, result.slope, color=slope, linewidth=2.2, linestyle=(0, (4, 2)))
    both.text(-0.1, -0.92, "value: sign(x)", color=drawing.GOOD, fontsize=10, ha="right")
    both.text(2.45, 0.08, "derivative: of\nclip(x, -1, 1)", color=slope, fontsize=10, ha="right")
    both.set_title("straight_through(sign, clip_value(1.0))", fontsize=11)
    both.set_yticks((-1, 0, 1))
    both.set_xlabel("x")
    lost.plot(result.large, result.formula, ".", color=drawing.BAD, markersize=4)
    lost.plot(result.large, result.through, color=drawing.GOOD, linewidth=2.2)
    lost.text(1e6, 1.08, "straight_through(sign)", color=drawing.GOOD, fontsize=10)
    lost.text(1e9, 0.12, "x + stop_gradient(sign(x) - x)", color=drawing.BAD, fontsize=10, ha="right")
    lost.set_title("the value for large x in float32", fontsize=11)
    lost.set_xscale("log")
    lost.set_ylim(-0.1, 2.2)
    lost.set_yticks((0, 1, 2))
    lost.set_xlabel("x")
    drawing.tidy(both, lost)
    drawing.save(figure, out, "One function forward, another's derivative backward", ("numpy", "jax"))


def main(folder: Path = drawing.PICTURES) -> Result:
    result = measured()
    for name, (by_formula, through) in result.shares.items():
        print(f"{name:20} other bits than f(x): formula {by_formula:4.0%}, straight_through {through:4.0%}")
    draw(result, folder / "straight_through.png")
    return result


if __name__ == "__main__":
    main(*(Path(folder) for folder in sys.argv[1:]))
