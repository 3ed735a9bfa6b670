"""Functions of whole trees: global norm, gradients of several tasks and of many examples."""

from __future__ import annotations

import numpy as np
import pytest

import gradxform as gx


def test_merged_trees_keep_their_dtype() -> None:
    trees = [[np.float16([1.0, 2.0]), np.float64([1.0])], [np.float16([3.0, 5.0]), np.float64([2.0])]]
    sums = [[4.0, 7.0], [3.0]]
    for found, wanted in ((gx.mean(trees), [[2.0, 3.5], [1.5]]), (gx.sum(trees), sums), (gx.pcgrad(trees, 0), sums)):
        assert [leaf.dtype for leaf in found] == [np.float16, np.float64]
        assert [leaf.tolist() for leaf in found] == wanted


def test_a_seed_that_is_an_array_has_two_words() -> None:
    trees = [[np.array([1.0, 0.2, -0.3])], [np.array([-1.0, 0.5, 0.1])], [np.array([0.2, -1.0, 0.4])]]
    for seed in (5, -1, -(2**40), 2**31 + 9, 2**33 + 7, 2**40 + 1):
        for like in (np.array(seed), np.int64(seed)):
            assert gx.pcgrad(trees, like)[0].tolist() == gx.pcgrad(trees, seed)[0].tolist(), seed
    for seed in range(2**60, 2**60 + 8):
        assert gx.pcgrad(trees, np.array(seed))[0].tolist() == gx.pcgrad(trees, seed)[0].tolist(), seed
    for what in (None, object(), True, 1.0, "1", np.ones(2), np.array(5.0), np.float32(5.0), np.bool_(True)):
        with pytest.raises(TypeError, match="seed must be an int"):
            gx.pcgrad(trees, what)


def test_an_example_of_zeros_is_not_clipped() -> None:
    grads = {"w": np.array([[0.0, 0.0], [3.0, 4.0]]), "b": np.zeros((2, 1))}
    sums, count = gx.per_example_clip_global_norm(grads, 0.5)
    np.testing.assert_allclose(sums["w"], [0.3, 0.4], rtol=4e-15)
    assert int(count) == 1
    assert {path: int(number) for path, number in gx.per_example_clip_norm(grads, 0.5)[1].items()} == {"w": 1, "b": 0}
