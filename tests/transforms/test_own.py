"""Transforms of one's own: a state that is a tree, and gradients that are None."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import (
    EVERY_MODE,
    EVERYWHERE,
    INDUCTOR,
    array,
    by_graph,
    f32,
    in_mode,
    run_advice,
    slow,
    tensors,
)
from trees import Momentum

import gradxform as gx
from gradxform.testing import assert_parity

LEAVES: Any = {"a": {"w": np.float32([3.0, -4.0]), "b": np.float32([1.0])}, "c": np.float32(2.0)}


def own(update: Any) -> Any:
    return SimpleNamespace(init=Momentum(0.5).init, update=lambda updates, state, params=None: update(updates, state))


@pytest.mark.parametrize("framework", EVERYWHERE)
def test_a_state_that_is_lost_is_an_error_of_the_step_that_loses_it(framework: str) -> None:
    """At the next gradient it would start again without a word."""
    losing = own(lambda updates, state: (updates, gx.tree_map(lambda g, t: 0.5 * t + g, updates, state)))
    grads, tx = tensors(framework, {**LEAVES, "c": None}), gx.chain(gx.clip_norm(2.0), losing)
    with pytest.raises(TypeError, match="lost its state at 'c'") as raised:
        tx.update(grads, tx.init(tensors(framework, LEAVES)))
    assert run_advice(str(raised.value), lambda: {"gx": gx, "state": LEAVES, "updates": LEAVES})
    masked = gx.masked(losing, "a/**")  # has no state of the others
    masked.update(tensors(framework, LEAVES), masked.init(tensors(framework, LEAVES)))


@pytest.mark.parametrize("where", [None, "a/**"])
@by_graph
@pytest.mark.parametrize(("framework", "mode"), EVERY_MODE)
def test_a_state_that_is_a_tree_takes_gradients_that_are_none(framework: str, mode: str, where: str | None) -> None:
    own, ours = (tx if where is None else gx.masked(tx, where) for tx in (Momentum(0.5), gx.trace(0.5)))
    found = []
    for tx in (gx.chain(gx.clip_norm(2.0), own), gx.chain(gx.clip_norm(2.0), ours)):
        update = in_mode(framework, mode, tx.update)
        state, made = tx.init(tensors(framework, LEAVES)), []
        for none in (False, True, False):
            grads = {**LEAVES, "a": {**LEAVES["a"], "b": None if none else LEAVES["a"]["b"]}}
            updates, state = update(tensors(framework, grads), state)
            assert (updates["a"]["b"] is None) is none
            leaves = updates["a"]["w"], updates["c"], updates["a"]["b"]
            made += [array(leaf) for leaf in leaves if leaf is not None]
        found.append(made)
    for leaf, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-6)


def test_trees_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"tree_map: tree 2 must have the keys of the first tree.*'a'"):
        gx.tree_map(lambda x, y: x, {"a": np.ones(1)}, {"b": np.ones(1)})
    filled = own(lambda updates, state: (state, state))  # `Momentum` does what the message says
    with pytest.raises(TypeError, match=r"returned 2 gradients for 1; .*gx\.tree_map\(lambda g, new: new, updates, "):
        gx.chain(filled).update({"w": np.ones(2), "b": None}, ({"w": np.ones(2), "b": np.ones(1)},))
    assert gx.tree_map(lambda x: x, {"a": None}) == {"a": None}


@slow(INDUCTOR, framework="torch")
@pytest.mark.parametrize("framework", EVERYWHERE)
def test_parity_of_an_own_object_in_a_chain(framework: str) -> None:
    assert_parity(gx.chain(gx.clip_norm(1.0), Momentum(0.5)), LEAVES, frameworks=[framework])


@pytest.mark.parametrize("framework", EVERYWHERE)
def test_two_leaves_of_one_path_get_noise_of_their_own(framework: str) -> None:
    tree, tx = tensors(framework, {"a/b": f32(0, 0, 0), "a": {"b": f32(0, 0, 0)}}), gx.add_noise(1.0, 3)
    found, _ = tx.update(tree, tx.init(tree))
    assert not np.any(array(found["a/b"]) == array(found["a"]["b"]))
