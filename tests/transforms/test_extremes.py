"""Rare numbers, which mutation testing found to be untested."""

from __future__ import annotations

import numpy as np
import pytest

import gradxform as gx


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_halved_elements_count_as_clipped(dtype: str) -> None:
    tx = gx.chain(gx.clip_norm(1.0), gx.measure(gx.ema(0.5, debias=False)))
    tree = {"w": np.array([3, 4], dtype)}
    _, state = tx.update(tree, tx.init(tree))
    assert gx.metrics(state)["ema/clipped"].item()


def test_a_small_gradient_that_is_stopped_counts_as_clipped() -> None:
    tx = gx.measure(gx.stop())
    tree = {"w": np.array([0.3])}
    _, state = tx.update(tree, tx.init(tree))
    assert gx.metrics(state)["stop/clipped"].item()
