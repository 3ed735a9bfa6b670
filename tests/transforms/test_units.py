"""Units of a layer: axes that are given by number, and what is broadcast along them."""

from __future__ import annotations

import numpy as np
import pytest

import gradxform as gx


def test_axes_of_units_given_by_number() -> None:
    grad = np.array([[1.0, 3.0, 5.0], [2.0, 6.0, 4.0]])
    for axes in ((1,), (-1,), 1):
        assert gx.centralize(axes=axes)([grad])[0].tolist() == [[-2.0, 0.0, 2.0], [-2.0, 2.0, 0.0]]
        (clipped,) = gx.clip_adaptive(0.5, axes=axes)([grad], params=[np.ones((2, 3))])
        np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), [0.5 * 3**0.5] * 2, rtol=1e-15)
    with pytest.raises(ValueError, match="are not 2 axes of '0'"):
        gx.centralize(axes=(1, -1))([grad])


def test_what_is_broadcast_to_a_large_leaf_keeps_its_place() -> None:
    grad = np.random.default_rng(0).standard_normal((300, 200))
    np.testing.assert_allclose(gx.centralize()([grad])[0], grad - grad.mean(axis=1, keepdims=True), atol=1e-15)
