"""`across` over the replicas of tf.distribute: the cases, as a script, and the tests of what it prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import across_cases as table
import numpy as np
import pytest
from support import array, slow

import gradxform as gx
from gradxform.backend import lookup

tf = pytest.importorskip("tensorflow")
from replicas import COUNT, main, place, results  # noqa: E402

pytestmark = slow("starts one process with two logical devices, for all of its cases together")

CASES: dict[str, Callable[[Any], None]] = {}


def case(name: str) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        CASES[name] = function
        return function

    return decorate


# --- the cases, on two logical CPUs ----------------------------------------------------------------------------------


def everywhere(strategy: Any, step: Callable[..., Any], *, compiled: bool, per_replica: Any = ()) -> list[Any]:
    """Run a function on each replica's arguments; return the results."""

    def run() -> Any:
        return strategy.run(lambda: step(*(each[place()] for each in per_replica)))

    found = (tf.function(run) if compiled else run)()
    return [
        tf.nest.map_structure(lambda part, i=i: strategy.experimental_local_results(part)[i], found)
        for i in range(COUNT)
    ]


def right_everywhere(strategy: Any, expression: str, split: str, dtype: str, compiled: bool) -> None:
    tx = gx.across(gx.parse(expression), "replicas", split=split, replicated="**r")
    given = [[tensors_of(tree) for tree in trees] for trees in table.steps(expression, COUNT, dtype)]
    wanted, metrics = table.expected(expression, COUNT, dtype, split)
    states = [tx.init(tree) for tree in given[0]]

    def step(tree: Any, state: Any) -> Any:
        return tx.update(tree, state, tree)

    for trees, right in zip(given, wanted, strict=True):
        results = everywhere(strategy, step, compiled=compiled, per_replica=(trees, states))
        states = [state for _, state in results]
        for (updates, _), each in zip(results, right, strict=True):
            distance = table.off({name: array(leaf) for name, leaf in updates.items()}, each, expression)
            assert distance <= table.budget(expression, dtype), (expression, split, dtype, distance)
    if not table.is_by_leaf(expression) or split == "leaves":
        same_everywhere(states)
    for name, value in metrics.items():
        assert table.off({"": array(gx.metrics(states[0])[name])}, {"": value}) <= 2, name


def same_everywhere(states: list[Any]) -> None:
    """Assert that numbers in states are bit-identical; arrays of the gradients' shapes may differ."""
    for path, *leaves in zip(
        tf.__internal__.nest.yield_flat_paths(states[0]), *map(tf.nest.flatten, states), strict=True
    ):
        if str(path[-1]) not in table.SHAPES:
            assert len({array(leaf).tobytes() for leaf in leaves}) == 1, path


def tensors_of(tree: Any) -> Any:
    return {name: lookup.backend("tensorflow").from_numpy(leaf) for name, leaf in tree.items()}


for _dtype in table.DTYPES:
    for _compiled in (False, True):

        @case(f"every transform, {_dtype}, {'tf.function' if _compiled else 'eager'}")
        def _(strategy: Any, dtype: str = _dtype, compiled: bool = _compiled) -> None:
            few = table.FEW[: 1 if compiled and dtype != "float32" else None]
            chosen = table.TRANSFORMS if dtype == "float32" and not compiled else few
            for expression in chosen:
                for split in ("tree", "leaves"):
                    right_everywhere(strategy, expression, split, dtype, compiled)


@case("noise is drawn on each replica for itself, and alike where leaves are")
def _(strategy: Any) -> None:
    tx = gx.across(gx.add_noise(1.0, 3), "replicas", replicated="r")
    zeros = {"a": tf.zeros(64), "r": tf.zeros(64)}
    one, other = everywhere(strategy, lambda: tx.update(zeros, tx.init(zeros))[0], compiled=True)
    assert array(one["r"]).tobytes() == array(other["r"]).tobytes()
    assert array(one["a"]).tobytes() != array(other["a"]).tobytes()


@case("one collective a norm, of numbers")
def _(strategy: Any) -> None:
    tx = gx.across(gx.chain(gx.clip_norm(2.0), gx.clip_global_norm(1.0)), "replicas", split="leaves", replicated="**r")
    sizes: list[int] = []
    reduce = strategy.extended._batch_reduce_to

    def watched(op: Any, pairs: Any, options: Any) -> Any:
        sizes.extend(int(np.prod(strategy.experimental_local_results(value)[0].shape)) for value, _ in pairs)
        return reduce(op, pairs, options)

    strategy.extended._batch_reduce_to = watched
    trees = [tensors_of(table.device(i, 0, "float32")) for i in range(COUNT)]
    everywhere(strategy, tx, compiled=False, per_replica=(trees,))
    del strategy.extended._batch_reduce_to
    assert sizes == [COUNT * 3, COUNT * 3], sizes  # one number for each leaf


@case("where there are no replicas")
def _(strategy: Any) -> None:
    tx, tree = gx.across(gx.clip_global_norm(1.0), "replicas"), [tf.ones(2)]
    for words, call in (
        ("there are no 'replicas' here; call the transformation in strategy.run", lambda: tx(tree)),
        ("within strategy.run alone", lambda: _in_scope(strategy, lambda: tx(tree))),
        ("axis must be 'replicas'", lambda: gx.across(tx.arguments[0][1], "x")(tree)),
    ):
        try:
            call()
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def _in_scope(strategy: Any, function: Callable[[], Any]) -> Any:
    with strategy.scope():
        return function()


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_on_two_replicas(name: str) -> None:
    assert not results(__file__)[name], results(__file__)[name]


if __name__ == "__main__":
    main(CASES)
