"""Devices without float64: norms by short rows, and cases outside the table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import optree
import pytest
from support import array
from trees import gradients
from without_float64 import of_torch

import gradxform as gx
from gradxform.testing import max_ulp

BUDGET = 4


KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 6.0, n),
    "constant": lambda rng, n: np.full(n, 0.1),
    "one spike": lambda rng, n: np.where(np.arange(n) == n // 2, 1e6, 1e-2),
}


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_norms(kind: str, ord: float, monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    shapes: list[tuple[int, ...]] = [(1,), (63, 3), (64, 65), (100_003,), (17, 70, 70)]
    for shape in [*shapes, (50257, 768)] if (kind, ord) == ("normal", 2) else shapes:  # GPT-2's embedding
        leaf = KINDS[kind](np.random.default_rng(2), math.prod(shape)).astype(np.float32).reshape(shape)
        with of_torch(monkeypatch):
            found = gx.global_norm({"w": torch.from_numpy(leaf)}, ord=ord)
        size = np.abs(leaf).astype(np.float64)
        exact = size.max() if ord == math.inf else np.sum(size**ord, dtype=np.longdouble) ** (1 / ord)
        assert max_ulp(array(found), np.float32(exact)) <= (16 if ord == 3 else BUDGET), shape


def test_formulas_of_other_libraries_and_sums_per_example(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    tree = gradients("float32")
    names = ("tensorflow", "keras", "optax", "torch", "mlx", "paddle")
    clips = [clip(0.7, like=name) for clip in (gx.clip_norm, gx.clip_global_norm) for name in names]
    leaves = {"w": tree["a"]["w"], "v": tree["a"]["v"]}
    batch = np.random.default_rng(4).standard_normal((9, 5, 7)).astype(np.float32)
    wanted, (sums, clipped) = [clip(leaves) for clip in clips], gx.per_example_clip_norm({"w": batch}, 5.5)
    with of_torch(monkeypatch):
        own = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
        for clip, expected in zip(clips, wanted, strict=True):
            for name, leaf in clip(own).items():
                assert max_ulp(array(leaf), expected[name]) <= BUDGET + 2, (clip, name)
        found, number_clipped = gx.per_example_clip_norm({"w": torch.from_numpy(batch)}, 5.5)
        most = 2 * BUDGET * 2.0**-24 * np.abs(batch).max()
        np.testing.assert_allclose(array(found["w"]), sums["w"], rtol=0, atol=most)
        assert optree.tree_map(int, number_clipped) == optree.tree_map(int, clipped)
