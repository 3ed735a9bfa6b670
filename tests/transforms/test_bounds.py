"""Reversed 0-d array bounds of `clip_value` raise an error if values can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import FRAMEWORKS, INDUCTOR, assert_bits, call, slow, tensors

import gradxform as gx

X, LOW, HIGH = np.float32([-3.0, 0.5, 3.0]), np.float32(1.0), np.float32(-1.0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("numbers", ["arrays", "low", "high"])
def test_reversed_bounds(framework: str, numbers: str) -> None:
    low, high = tensors(framework, [np.asarray(LOW), np.asarray(HIGH)])
    low, high = (1.0 if numbers == "high" else low), (-1.0 if numbers == "low" else high)
    tx = gx.clip_value(low=low, high=high)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"clip_value: .*low=.*1.*, high=.*-1"):
            tx([tensors(framework, X)])


@pytest.mark.parametrize("framework", FRAMEWORKS)
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


@slow(INDUCTOR, framework="torch")
@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
@pytest.mark.parametrize("numbers", ["arrays", "low", "high"])
def test_bounds_that_compiled_code_closes_over(framework: str, numbers: str) -> None:
    """Compiled code does not compare arrays: the upper bound wins."""
    low, high = tensors(framework, [np.asarray(LOW), np.asarray(HIGH)])
    tx = gx.clip_value(low=1.0 if numbers == "high" else low, high=-1.0 if numbers == "low" else high)
    found = call(framework, "compiled", lambda x: tx([x]), X)
    assert_bits(found, tensors(framework, [np.full_like(X, -1.0)]))
    with pytest.raises(ValueError, match="clip_value: low"):
        tx([tensors(framework, X)])


@pytest.mark.parametrize("framework", ["numpy", "tensorflow", "torch"])
def test_bounds_that_change_are_compared_anew(framework: str) -> None:
    low: Any = np.asarray(HIGH)
    if framework == "tensorflow":
        low = pytest.importorskip("tensorflow").Variable(low)
    elif framework == "torch":
        low = pytest.importorskip("torch").tensor(low)
    tx, x = gx.clip_value(low=low, high=0.5), tensors(framework, X)
    tx([x])
    change = low.assign if framework == "tensorflow" else low.fill_ if framework == "torch" else low.fill
    change(1.0)
    with pytest.raises(ValueError, match=r"clip_value: .*high=0\.5"):
        tx([x])


def test_a_bound_that_is_a_schedule() -> None:
    tx = gx.clip_value(low=lambda step: step - 1.0, high=0.5)
    state = tx.init([X])
    for step in range(2):
        updates, state = tx.update([X], state)
        assert updates[0].tolist() == [step - 1.0, 0.5, 0.5]
    with pytest.raises(ValueError, match="clip_value: low"):
        tx.update([X], state)
