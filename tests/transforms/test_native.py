"""The frameworks' own functions and gradxform on the cases that the README names."""

from __future__ import annotations

import numpy as np
import pytest
from support import FRAMEWORKS, assert_ulp, tensors

import gradxform as gx

LARGE = [np.float32([1e30]), np.float32([3.0])]


def test_optax_makes_zeros_of_1e30() -> None:
    optax = pytest.importorskip("optax")
    native = optax.clip_by_global_norm(1.0)
    updates, _ = native.update(LARGE, native.init(LARGE))
    assert [float(update[0]) for update in updates] == [0.0, 0.0]


def test_tensorflow_makes_nan_of_1e30() -> None:
    tf = pytest.importorskip("tensorflow")
    clipped, _ = tf.clip_by_global_norm([tf.constant(leaf) for leaf in LARGE], 1.0)
    assert all(np.isnan(leaf.numpy()).all() for leaf in clipped)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradxform_clips_1e30(framework: str) -> None:
    assert_ulp(gx.clip_global_norm(1.0)(tensors(framework, LARGE)), [np.float32([1.0]), np.float32([3e-30])])
