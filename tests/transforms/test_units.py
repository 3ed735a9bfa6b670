"""Units of a layer: axes given by number, and broadcasting along them."""

from __future__ import annotations

import numpy as np
import pytest
from support import MOST, call

import gradxform as gx


def test_axes_of_units_given_by_number() -> None:
    grad = np.array([[1.0, 3.0, 5.0], [2.0, 6.0, 4.0]])
    for axes in ((1,), (-1,), 1):
        assert gx.centralize(axes=axes)([grad])[0].tolist() == [[-2.0, 0.0, 2.0], [-2.0, 2.0, 0.0]]
        (clipped,) = gx.clip_adaptive(0.5, axes=axes)([grad], params=[np.ones((2, 3))])
        np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), [0.5 * 3**0.5] * 2, rtol=1e-15)
    with pytest.raises(ValueError, match=r"axes \(1, -1\) must be different axes of '0' of shape \(2, 3\)"):
        gx.centralize(axes=(1, -1))([grad])


def test_what_is_broadcast_to_a_large_leaf_keeps_its_place() -> None:
    grad = np.random.default_rng(0).standard_normal((300, 200))
    np.testing.assert_allclose(gx.centralize()([grad])[0], grad - grad.mean(axis=1, keepdims=True), atol=1e-15)


# inductor takes seconds for each of the four; the same formula is compiled there in test_table.py
@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinite_parameters_allow_anything_but_times_zero(framework: str, mode: str, dtype: str) -> None:
    grads, params = np.array([[3.0, 4.0], [3.0, 4.0]], dtype), np.array([[np.inf, 2.0], [3.0, 4.0]], dtype)
    for clipping, wanted in ((2.0, [[3.0, 4.0], [3.0, 4.0]]), (0.0, [[np.nan, np.nan], [0.0, 0.0]])):
        tx = gx.clip_adaptive(clipping, axes="torch")
        found = call(framework, mode, lambda g, p, tx=tx: tx({"w": g}, {"w": p})["w"], grads, params)
        np.testing.assert_array_equal(found, wanted)
