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


def test_the_norm_of_gpt2s_embedding(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    leaf = np.random.default_rng(3).standard_normal((50257, 768), np.float32)
    exact = math.sqrt(float(np.sum(np.square(leaf, dtype=np.float64), dtype=np.longdouble)))
    with of_torch(monkeypatch):
        found = gx.global_norm({"w": torch.from_numpy(leaf)})
    assert max_ulp(array(found), np.float32(exact)) <= BUDGET


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
