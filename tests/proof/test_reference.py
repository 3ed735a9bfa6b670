"""The reference, against values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_ulp, f32

import gradxform as gx
from gradxform.proof.parity import expected_steps
from gradxform.proof.reference import norm, reference


def of(expression: str, *leaves: Any) -> list[Any]:
    return reference(gx.parse(expression), [(f"leaf{i}", leaf) for i, leaf in enumerate(leaves)])


@pytest.mark.parametrize(
    ("expression", "leaves", "wanted"),
    [
        ("clip_norm(1.0)", [f32(3, 4), f32(0.5)], [f32(0.6, 0.8), f32(0.5)]),
        ("clip_norm(5.0)", [f32(3, 4)], [f32(3, 4)]),
        ("clip_norm(2.0, ord=1)", [f32(3, -5)], [f32(0.75, -1.25)]),
        ("clip_norm(2.0, ord=float('inf'))", [f32(3, -8)], [f32(0.75, -2)]),
        ("clip_global_norm(1.0)", [f32(3), f32(4)], [f32(0.6), f32(0.8)]),
        ("clip_global_norm(1.0)", [f32(1e30), f32(3)], [f32(1), f32(3e-30)]),
        ("clip_global_norm(1.0)", [np.float16([300]), np.float16([3])], [np.float16([1]), np.float16([0.01])]),
        ("clip_norm(1e-31)", [f32(3e-30, 4e-30)], [f32(6e-32, 8e-32)]),
        ("clip_global_norm(1.0)", [f32(np.inf, 1), f32(2)], [f32(np.nan, np.nan), f32(np.nan)]),
        ("clip_norm(1.0)", [f32(np.nan, 1), f32(2)], [f32(np.nan, np.nan), f32(1)]),
        ("clip_norm(0.0)", [f32(0, 0), f32(1)], [f32(0, 0), f32(0)]),
        ("clip_norm(float('inf'))", [f32(np.inf, 1)], [f32(np.inf, 1)]),
        ("clip_value(1.0)", [f32(-3, 0.5, np.inf, np.nan)], [f32(-1, 0.5, 1, np.nan)]),
        ("clip_value(low=0.0)", [f32(-3, 0.5)], [f32(0, 0.5)]),
        ("scale(0.0)", [f32(np.nan, 2)], [f32(np.nan, 0)]),
        ("stop()", [f32(np.nan, 2)], [f32(0, 0)]),
        ("chain(stop(), clip_global_norm(1.0))", [f32(3)], [f32(0)]),
        ("masked(clip_global_norm(1.0), 'leaf1')", [f32(3), f32(4)], [f32(3), f32(1)]),
        ("chain(clip_norm(2.0), clip_global_norm(1.0))", [f32(5), f32(0, 0)], [f32(1), f32(0, 0)]),
        ("clip_norm(1.0, axes=1)", [f32(3, 4, 0.3, 0.4).reshape(2, 2)], [f32(0.6, 0.8, 0.3, 0.4).reshape(2, 2)]),
    ],
)
def test_by_hand(expression: str, leaves: list[Any], wanted: list[Any]) -> None:
    assert_ulp(of(expression, *leaves), wanted, 0)


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
