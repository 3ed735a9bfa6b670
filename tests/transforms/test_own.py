"""Transforms of one's own: a state that is a tree, and gradients that are None."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from support import array, tensors

import gradxform as gx
from gradxform.backend import lookup

LEAVES: Any = {"a": {"w": np.float32([3.0, -4.0]), "b": np.float32([1.0])}, "c": np.float32(2.0)}


class Momentum(NamedTuple):
    """Object of another library, or of a user: init and update."""

    decay: float

    def init(self, params: Any) -> Any:
        return gx.tree_map(lambda p: 0 * p, params)

    def update(self, updates: Any, trace: Any, params: Any = None) -> Any:
        trace = gx.tree_map(lambda t, g: self.decay * t + g, trace, updates)
        return gx.tree_map(lambda g, t: t, updates, trace), trace


class Filled(Momentum):
    """It returns its state as updates, also where a gradient is None."""

    def update(self, updates: Any, trace: Any, params: Any = None) -> Any:
        trace = gx.tree_map(lambda t, g: self.decay * t + g, trace, updates)
        return trace, trace


def compiled(framework: str, function: Any) -> Any:
    if framework == "jax":
        import jax

        return jax.jit(function)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


@pytest.mark.parametrize("where", [None, "a/**"])
@pytest.mark.parametrize("framework", lookup.installed())
def test_a_state_that_is_a_tree_takes_gradients_that_are_none(framework: str, where: str | None) -> None:
    own, ours = (tx if where is None else gx.masked(tx, where) for tx in (Momentum(0.5), gx.trace(0.5)))
    found = []
    for tx in (gx.chain(gx.clip_norm(2.0), own), gx.chain(gx.clip_norm(2.0), ours)):
        update = compiled(framework, tx.update)
        state, made = tx.init(tensors(framework, LEAVES)), []
        for none in (False, True, False):
            grads = {**LEAVES, "a": {**LEAVES["a"], "b": None if none else LEAVES["a"]["b"]}}
            updates, state = update(tensors(framework, grads), state)
            assert (updates["a"]["b"] is None) is none
            made.append(
                [array(leaf) for leaf in (updates["a"]["w"], updates["c"], updates["a"]["b"]) if leaf is not None]
            )
        found.append(made)
    for one, other in zip(*found, strict=True):
        for leaf, wanted in zip(one, other, strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-6)


def test_trees_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"tree_map: tree 2 must have the keys of the first tree.*'a'"):
        gx.tree_map(lambda x, y: x, {"a": np.ones(1)}, {"b": np.ones(1)})
    with pytest.raises(TypeError, match=r"returned 2 gradients for 1; .*gx\.tree_map\(lambda g, new: new, updates, "):
        gx.chain(Filled(0.5)).update(
            {"w": np.ones(2), "b": None}, ({"w": np.ones(2), "b": np.ones(1)},)
        )  # `Momentum` does what the message says
    assert gx.tree_map(lambda x: x, {"a": None}) == {"a": None}


def test_parity_of_an_own_object_in_a_chain() -> None:
    from gradxform.testing import assert_parity

    assert_parity(gx.chain(gx.clip_norm(1.0), Momentum(0.5)), LEAVES, frameworks=["numpy"])


def test_two_leaves_of_one_path_get_noise_of_their_own() -> None:
    tree = {"a/b": np.zeros(3), "a": {"b": np.zeros(3)}}
    tx = gx.add_noise(1.0, 3)
    found, _ = tx.update(tree, tx.init(tree))
    assert not np.any(found["a/b"] == found["a"]["b"])
