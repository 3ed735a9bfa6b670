"""The plain lines of the averages' table compute what gradxform computes."""

from __future__ import annotations

import averages
import numpy as np
import pytest
from support import EAGER, INDUCTOR, slow, without_generated_code

from gradxform.cli.bench.timing import Side
from gradxform.cli.frameworks.interface import Tree

SHAPES = {"w": (3, 5), "b": (7,), "s": ()}
STEPS = 2 * averages.EVERY + 1
ULPS = 8
"""Compiled lines divide by a float32 `1 - 0.9**t`, which is 4 ULP off in the first step."""


def _tree(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    return {path: np.asarray(rng.standard_normal(shape), np.float32) for path, shape in SHAPES.items()}


def _sizes(trees: list[Tree]) -> list[Tree]:
    return [{path: np.abs(leaf) for path, leaf in tree.items()} for tree in trees]


def _ran(side: Side) -> list[list[np.ndarray]]:
    found = []
    for _ in range(STEPS):
        side.restore()
        found.append([np.array(leaf) for leaf in side.leaves(side.run())])
    return found


@slow(EAGER, way="jax eager")
@pytest.mark.filterwarnings("ignore:invalid value encountered in scalar divide")  # of a window without values
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[slow(INDUCTOR)] if "compiled" in w else []) for w in averages.GOALS]
)
@pytest.mark.parametrize("name", averages.LINES)
def test_lines_equal_the_transform(way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "torch compiled":  # whose lines are its own; the table has the generated code
        without_generated_code(monkeypatch)
    trees, params = [_tree(seed) for seed in range(STEPS)], _tree(STEPS)
    own, lines = map(_ran, averages.sides(way, name, trees, params))
    largest = _ran(averages.sides("numpy", name, _sizes(trees), _sizes([params])[0])[1])  # no factor is negative
    for step in zip(own, lines, largest, strict=True):
        for a, b, terms in zip(*step, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype == np.float32
            most = np.abs(terms).max(initial=0.0) if name == "mars()" else terms  # a change cancels
            np.testing.assert_array_less(np.abs(a - b), ULPS * np.spacing(most))
    assert any(a.any() for a in own[-2])
