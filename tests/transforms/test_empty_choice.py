"""Stateful transforms that select no gradient, through every API and framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
from support import FRAMEWORKS, INDUCTOR, MODES, STATEFUL, array, assert_bits, in_mode, slow, tensors

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


@slow(INDUCTOR, framework="torch", mode="compiled")
@pytest.mark.parametrize(("framework", "mode", "choice", "name"), RUNS)
def test_update(framework: str, mode: str, choice: str, name: str) -> None:
    tx, grads = CHOICES[choice](STATEFUL[name]), tensors(framework, GRADS)
    update, state = in_mode(framework, mode, tx.update), tx.init(grads)
    assert {lookup.owner(leaf).name for leaf in optree.tree_leaves(state)} <= {framework}
    for _ in range(3):
        updates, state = update(grads, state)
        assert_bits(updates, grads)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", STATEFUL)
def test_a_tree_of_nothing_but_none(framework: str, name: str) -> None:
    for tx in (STATEFUL[name], gx.masked(STATEFUL[name], nothing)):
        for tree in ({"w": None, "b": [None, None]}, [], {}):
            state = tx.init(tree)
            assert tx.update(tree, state)[0] == tree


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_goes_to_numpy_and_back(framework: str, name: str) -> None:
    tx, grads = gx.masked(STATEFUL[name], nothing), tensors(framework, GRADS)
    _, state = tx.update(grads, tx.init(grads))
    for moved in (gx.to_numpy(state), gx.to_numpy(state, by_path=True)):
        again = gx.from_numpy(moved, like=tx.init(grads))
        assert_bits(again, state)
        assert_bits(tx.update(grads, again)[0], grads)


def test_in_place() -> None:
    for choice, name in CASES:
        tx, tree = CHOICES[choice](STATEFUL[name]), optree.tree_map(np.copy, GRADS)
        state = tx.init(tree)
        for _ in range(3):
            state = gx.numpy.apply_(tx, tree, state)
            assert_bits(tree, GRADS)


def test_in_a_session() -> None:
    v1 = pytest.importorskip("tensorflow").compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        grads = optree.tree_map(v1.convert_to_tensor, GRADS)
        for name in ("accumulate", "clip_percentile, per leaf", "clip_zscore, per leaf", "trace"):
            tx = gx.masked(STATEFUL[name], nothing)
            _, state = tx.update(grads, tx.init(grads))
            updates, state = tx.update(grads, state)
            assert all(leaf.graph is session.graph for leaf in optree.tree_leaves((updates, state)))
            assert_bits(
                dict(zip("bw", session.run([updates["b"], updates["w"]]), strict=True)) | {"unused": None}, GRADS
            )


def test_attached_to_an_optimizer_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for choice, name in CASES:
        w = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([("w", w)], lr=1.0)
        handle = gx.torch.attach(optimizer, CHOICES[choice](STATEFUL[name]))
        for step in (1.0, 2.0):
            w.grad = torch.tensor([3.0, 4.0])
            optimizer.step()
            assert w.tolist() == [-3.0 * step, -4.0 * step], (choice, name)
        handle.state = gx.to_numpy(handle.state)
        optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.filterwarnings("ignore:keras.wrap.* cannot be saved with the model:UserWarning")
def test_wrapped_around_an_optimizer_of_keras() -> None:
    keras = pytest.importorskip("keras")
    for choice, name in CASES:
        w = keras.Variable(np.zeros(2, np.float32), name="w")
        optimizer = gx.keras.wrap(keras.optimizers.SGD(1.0), CHOICES[choice](STATEFUL[name]))
        for step in (1.0, 2.0):
            optimizer.apply([keras.ops.array([3.0, 4.0])], [w])
            assert array(keras.ops.convert_to_tensor(w)).tolist() == [-3.0 * step, -4.0 * step], (choice, name)
        optimizer.gradient_transformation_state = gx.to_numpy(optimizer.gradient_transformation_state)


@pytest.mark.parametrize("compiled", [False, True])
def test_in_a_processor_of_tensorflow(compiled: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    for choice, name in CASES if not compiled else CASES[:4]:
        w = tf.Variable([0.0, 0.0], name="w")
        processor = gx.tensorflow.GradientProcessor(CHOICES[choice](STATEFUL[name]), [w])

        def process(g: Any, processor: Any = processor, w: Any = w) -> Any:
            return processor([(g, w)])[0][0]

        process = tf.function(process) if compiled else process
        for _ in range(2):
            assert process(tf.constant([3.0, 4.0])).numpy().tolist() == [3.0, 4.0], (choice, name)
        processor.state = gx.to_numpy(processor.state)
