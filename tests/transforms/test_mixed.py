"""Trees of several dtypes, and what stands beside gradients in another dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import INDUCTOR, array, by_inductor, call, f16, f32, slow

import gradxform as gx


@by_inductor
@slow(INDUCTOR, lambda gradient: gradient.dtype != np.float16, framework="torch", mode="compiled")
@pytest.mark.parametrize(
    ("gradient", "params"),
    [
        (f16(1.0, 1.0), f32(1e5, 1.0)),
        (f16(1000.0, 3.0), f32(1e-9, 2e-9)),
        (f32(1.0, 2.0), np.array([1e20, 1.0])),
        (np.array([1.0, 2.0]), f32(1e-30, 1.0)),
        (f16(1.0, 2.0), np.array([1e20, 1e20])),
    ],
)
def test_parameters_of_another_dtype_keep_their_digits(framework: str, mode: str, gradient: Any, params: Any) -> None:
    tx = gx.orthogonal_to_parameters()
    found = array(call(framework, mode, lambda g, p: tx([g], params=[p])[0], gradient, params))
    g, p = (np.float64(x) for x in (gradient, params))
    p = p / np.max(np.abs(p))
    rest = g - p * (g @ p) / (p @ p)
    wanted = rest * np.linalg.norm(g) / np.linalg.norm(rest)
    error = 2e-3 if gradient.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(np.float64(found), wanted, atol=error * np.linalg.norm(wanted))


@pytest.mark.parametrize("function", [gx.mgda, gx.upgrad, gx.cagrad])
@pytest.mark.parametrize(("wide", "narrow"), [(1e-200, 1.0), (1e-180, 1e20), (1e-170, 1e-3)])
def test_tasks_of_two_precisions_far_apart(function: Callable[..., Any], wide: float, narrow: float) -> None:
    """Gradients far below the largest count as zero, and hide nothing."""
    trees = [{"a": np.array([wide]), "b": f32(narrow, 0.0)}, {"a": np.array([-wide]), "b": f32(-narrow, 2 * narrow)}]
    found, alone = function(trees), function([{"b": tree["b"]} for tree in trees])
    assert np.isfinite(found["a"]).all()
    np.testing.assert_allclose(found["b"], alone["b"], rtol=1e-5)


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow"])
def test_cautious_beside_gradients_of_another_dtype(framework: str) -> None:
    for update, gradient in ((np.array([1e-50, 1.0]), f32(1.0, 1.0)), (f32(1.0, 1.0), np.array([1e-50, 1.0]))):
        for tx in (gx.cautious(), gx.chain(gx.scale(1.0), gx.scale(2.0), gx.cautious())):
            found, _ = call(
                framework, "eager", lambda u, g, tx=tx: tx.update([u], tx.init([u]), gradients=[g]), update, gradient
            )
            assert (array(found[0]) > 0.0).all()


def test_a_result_and_the_state_have_memory_of_their_own(torch: Any) -> None:
    gradient = torch.ones(2, requires_grad=True)
    for tx in (gx.ema(0.0), gx.trace(0.0), gx.ema(0.0, debias=False)):
        updates, state = tx.update([gradient], tx.init([gradient]))
        kept = next(part for part in state if isinstance(part, list))
        assert updates[0].data_ptr() != kept[0].data_ptr()
