"""The reference, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_ulp, f32

import gradxform as gx
from gradxform.proof.parity import expected_steps
from gradxform.proof.reference import norm


def test_an_average_whose_decay_changes_is_divided_by_the_sum_of_its_weights() -> None:
    tx = gx.ema(lambda t: 0.5 / (t + 1.0))  # decays 0.5 and 0.25
    first, second = (result["w"] for result in expected_steps(tx, [{"w": f32(8.0)}, {"w": f32(16.0)}], {"w": f32(0.0)}))
    assert first == 8.0
    assert_ulp(second, f32((0.25 * 4.0 + 0.75 * 16.0) / (0.25 * 0.5 + 0.75)))


@pytest.mark.parametrize("name", ["weight", "step", "sums", "inner"])
@pytest.mark.parametrize("expression", ["ema(0.9)", "trace(0.9)", "accumulate(trace(0.5), 2)", "add_noise(0.1, 7)"])
def test_leaves_may_have_any_name(expression: str, name: str) -> None:
    tx, tree = gx.parse(expression), {name: f32(3.0, 4.0)}
    state = tx.init(tree)
    for wanted in expected_steps(tx, [tree] * 3, tree):
        updates, state = tx.update(tree, state)
        assert_ulp(updates[name], wanted[name])


def test_many_small_leaves() -> None:
    leaves = [np.ones(10, np.float16)] * 5000
    assert norm(leaves) == pytest.approx(50000**0.5, rel=1e-15)
