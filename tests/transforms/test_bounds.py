"""Bounds of `clip_value` that are arrays: they are not compared, and where they cross the upper one wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, assert_bits, by_inductor, call, tensors

import gradxform as gx

X, LOW, HIGH = np.float32([-3.0, 0.5, 3.0]), np.float32(1.0), np.float32(-1.0)


def test_reversed_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"clip_value: .*low=1\.0, high=-1"):
        gx.clip_value(low=1.0, high=-1)


@by_inductor
@pytest.mark.parametrize("numbers", ["arrays", "low", "high"])
def test_the_upper_of_two_reversed_bounds_wins(framework: str, mode: str, numbers: str) -> None:
    """Also where compiled code closes over them."""
    low, high = tensors(framework, [np.asarray(LOW), np.asarray(HIGH)])
    tx = gx.clip_value(low=1.0 if numbers == "high" else low, high=-1.0 if numbers == "low" else high)
    found = call(framework, mode, lambda x: tx([x]), X)
    assert_bits(found, tensors(framework, [np.full_like(X, -1.0)]))


def test_bounds_in_order_and_equal(framework: str) -> None:
    low, high = tensors(framework, [np.asarray(HIGH), np.asarray(LOW)])
    tx = gx.clip_value(low=low, high=high)
    for _ in range(2):
        assert_bits(tx([tensors(framework, X)]), tensors(framework, [np.clip(X, -1.0, 1.0)]))
    assert_bits(gx.clip_value(low=low, high=low)([tensors(framework, X)]), tensors(framework, [np.full_like(X, -1.0)]))


@pytest.mark.parametrize("framework", [f for f in FRAMEWORKS if f in ("jax", "tensorflow")])
def test_traced_bounds_have_no_values(framework: str) -> None:
    def clipped(x: Any, low: Any, high: Any) -> Any:
        return gx.clip_value(low=low, high=high)([x])

    found = call(framework, "compiled", clipped, X, np.asarray(LOW), np.asarray(HIGH))
    assert_bits(found, tensors(framework, [np.full_like(X, -1.0)]))


def test_a_bound_that_is_a_schedule() -> None:
    tx = gx.clip_value(low=lambda step: step - 1.0, high=0.5)
    state = tx.init([X])
    for low in (-1.0, 0.0, 0.5):  # in the last step it is above the upper one
        updates, state = tx.update([X], state)
        assert updates[0].tolist() == [low, 0.5, 0.5]
