"""Stateful transforms that select no gradient, through every API and framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
from support import MODES, STATEFUL, assert_bits, by_inductor, in_mode, tensors

import gradxform as gx
from gradxform.backend import lookup


def nothing(path: str, leaf: Any) -> bool:
    """Selects no gradient."""
    return False


CHOICES: dict[str, Callable[[Any], Any]] = {
    "masked": lambda tx: gx.masked(tx, nothing),
    "partition": lambda tx: gx.partition({"**": gx.scale(1.0)}, default=tx),
    "masked in masked": lambda tx: gx.masked(gx.masked(tx, nothing), lambda path, leaf: path == "w"),
    "beside a pending factor": lambda tx: gx.chain(gx.scale(2.0), gx.masked(tx, nothing), gx.scale(0.5)),
}
GRADS = {"w": np.float32([3.0, 4.0]), "b": np.float32([1.0]), "unused": None}
CASES = [(choice, name) for choice in CHOICES for name in STATEFUL if choice == "masked" or "per leaf" in name]
RUNS = [(*mode, *case) for mode in MODES if mode != ("torch", "compiled") for case in CASES]
RUNS += [("torch", "compiled", "masked", "clip_zscore, per leaf")] if ("torch", "compiled") in MODES else []


@by_inductor
@pytest.mark.parametrize(("framework", "mode", "choice", "name"), RUNS)
def test_update(framework: str, mode: str, choice: str, name: str) -> None:
    tx, grads = CHOICES[choice](STATEFUL[name]), tensors(framework, GRADS)
    update, state = in_mode(framework, mode, tx.update), tx.init(grads)
    assert {lookup.owner(leaf).name for leaf in optree.tree_leaves(state)} <= {framework}
    for _ in range(3):
        updates, state = update(grads, state)
        assert_bits(updates, grads)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_tree_of_nothing_but_none(framework: str, name: str) -> None:
    for tx in (STATEFUL[name], gx.masked(STATEFUL[name], nothing)):
        for tree in ({"w": None, "b": [None, None]}, [], {}):
            state = tx.init(tree)
            assert tx.update(tree, state)[0] == tree
