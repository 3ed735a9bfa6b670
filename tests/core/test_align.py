"""Trees that do not match raise an error that names the first differing path, in every framework."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from entries import ENTRIES
from support import EVERYWHERE, FRAMEWORKS, GRAPHS, MODES, assert_bits, call, slow, tensors

import gradxform as gx

A, B = np.float32([1.0, 2.0]), np.float32([3.0])
PAIRS: dict[str, tuple[Any, Any, str]] = {
    "another key": ({"a": A, "w": B}, {"a": A, "v": B}, "at 'w': a leaf in .* only"),
    "a key less": ({"a": A, "b": B}, {"a": A}, "at 'b': a leaf in .* only"),
    "a key more": ({"a": A}, {"a": A, "b": B}, "at 'b': a leaf in .* only"),
    "a nested key": ({"x": {"a": A, "b": B}}, {"x": {"a": A, "c": B}}, "at 'x/b'"),
    "a list that is shorter": ({"x": [A, B]}, {"x": [A]}, "at 'x/1'"),
    "a leaf and a dict": ({"x": A}, {"x": {"y": A}}, "at 'x': a leaf in .* only"),
    "an array and a list": (A, [A], "at the root: a leaf in .* only"),
    "None and a dict": ({"x": None, "y": B}, {"x": {"y": A}, "y": B}, "at 'x': a leaf in .* only"),
}
Two = Callable[[Any, Any], Any]
FUNCTIONS: dict[str, Two] = {
    "mean": lambda one, other: gx.mean([one, other]),
    "pcgrad": lambda one, other: gx.pcgrad([one, other], 0),
    "mgda": lambda one, other: gx.mgda([one, other]),
    "add_decayed_weights": lambda one, other: gx.add_decayed_weights(0.1)(one, params=other),
    "clip_adaptive": lambda one, other: gx.clip_adaptive(0.1, axes="keras")(one, params=other),
    "trace": lambda one, other: step(gx.trace(0.5), one, other),
    "ema": lambda one, other: step(gx.ema(0.5), one, other),
    "accumulate": lambda one, other: step(gx.accumulate(gx.identity(), 2), one, other),
    "in a chain": lambda one, other: step(gx.chain(gx.clip_norm(1.0), gx.skip_large(gx.trace(0.5), 1e9)), one, other),
}
TASKS = ("mean", "pcgrad", "mgda")
ANEW = r"tx\.init\(params\)"
ADVICE = dict.fromkeys(FUNCTIONS, ANEW) | dict.fromkeys(TASKS, "gradients of the same parameters")
ADVICE |= dict.fromkeys(("add_decayed_weights", "clip_adaptive"), "parameters of these gradients")


def step(tx: Any, gradients: Any, params: Any) -> Any:
    return tx.update(gradients, tx.init(params))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", PAIRS)
def test_trees_of_other_keys_and_containers(framework: str, function: str, case: str) -> None:
    one, other, match = PAIRS[case]
    with pytest.raises(ValueError, match=f"(?s){match}.*{ADVICE[function]}") as raised:
        FUNCTIONS[function](tensors(framework, one), tensors(framework, other))
    if function in ("add_decayed_weights", "clip_adaptive"):
        assert str(raised.value).startswith(f"{function}: the parameters")


@slow(GRAPHS, framework="tensorflow", function=("accumulate", "ema", "in a chain"))
@pytest.mark.parametrize(("framework", "mode"), [(f, m) for f, m in MODES if m == "compiled" and f != "torch"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_trees_of_other_keys_in_compiled_code(framework: str, mode: str, function: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)at 'w': a leaf.*{ADVICE[function]}"):
        call(framework, mode, FUNCTIONS[function], {"w": A}, {"v": A})


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f not in TASKS])
def test_dicts_in_another_order_fit(framework: str, function: str) -> None:
    one, other = tensors(framework, ({"a": A, "x": {"b": B, "c": A}}, {"x": {"c": A, "b": B}, "a": A}))
    assert_bits(FUNCTIONS[function](one, other), FUNCTIONS[function](one, one))
    found, wanted = (FUNCTIONS[function](other, params) for params in (one, other))
    assert_bits(*(pair[0] if isinstance(pair, tuple) else pair for pair in (found, wanted)))


def test_names_with_dots_fit_nested_dicts(framework: str) -> None:
    flat, nested = tensors(framework, ({"x.b": B, "x.c": A}, {"x": {"b": 2 * B, "c": 3 * A}}))
    found, _ = gx.add_decayed_weights(0.5).update(flat, None, nested)
    assert_bits(found, tensors(framework, {"x.b": 2 * B, "x.c": 2.5 * A}))


def test_lists_of_trees_in_two_orders_and_with_none(framework: str) -> None:
    trees = tensors(framework, [{"a": A, "b": B}, {"b": 3 * B, "a": None}])
    assert_bits(gx.mean(trees), tensors(framework, {"a": A / 2, "b": 2 * B}))


def test_none_in_the_gradients_or_beside_them_fits(framework: str) -> None:
    full, part = tensors(framework, ({"a": A, "b": [B, A]}, {"a": None, "b": [B, None]}))
    assert_bits(FUNCTIONS["trace"](part, full)[0], part)
    decayed = gx.add_decayed_weights(1.0)(part, params=full)
    assert_bits(decayed, tensors(framework, {"a": None, "b": [2 * B, None]}))
    with pytest.raises(ValueError, match=f"None at 'a'.*{ANEW}"):
        FUNCTIONS["trace"](full, part)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("other", [{"x": (A, B), "y": A}, collections.OrderedDict(y=A, x={"0": A, "1": B})], ids=str)
def test_other_containers_with_the_same_paths_fit(framework: str, function: str, other: Any) -> None:
    one, other = tensors(framework, ({"x": [A, B], "y": A}, other))
    pair = FUNCTIONS[function](one, other), FUNCTIONS[function](one, one)
    assert_bits(*(found if function in TASKS or not isinstance(found, tuple) else found[0] for found in pair))


def test_a_state_of_named_parameters_fits_their_paths(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    tx, found = gx.trace(0.5), {}
    for name, state in (("paths", gx.torch.init(tx, model)), ("names", tx.init(dict(model.named_parameters())))):
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            state = gx.torch.apply_(tx, model, state)
        found[name] = {path.replace("/", "."): leaf for path, leaf in state.trace.items()}
    assert_bits(found["names"], found["paths"])
    with pytest.raises(ValueError, match="at '0/weight': a leaf"):
        gx.torch.apply_(tx, model, tx.init({"0.weights": model[0].weight}))


def test_the_containers_of_a_module_of_tensorflow_fit(tf: Any) -> None:
    module = tf.Module()
    module.params = {"x": [tf.constant(A), tf.constant(B)]}
    grads = {"x": [tf.constant(A), tf.constant(B)]}
    assert_bits(gx.trace(0.5).update(grads, gx.trace(0.5).init(module.params))[0], grads)
    module.state = gx.trace(0.5).init(grads)
    assert_bits(gx.trace(0.5).update(grads, module.state)[0], grads)


def test_a_frozen_dict_of_flax_fits(flax: Any) -> None:
    grads = tensors("jax", {"x": {"a": A, "b": B}})
    tx = gx.trace(0.5)
    assert_bits(tx.update(grads, tx.init(flax.core.freeze(grads)))[0], grads)


def test_a_foreign_transformation_in_a_mask_has_the_parameters_of_its_gradients(optax: Any) -> None:
    tx = gx.masked(optax.add_decayed_weights(1.0), lambda path, leaf: path == "c")
    grads, params = tensors("jax", ({"a": None, "b": A, "c": B}, {"a": A, "b": A, "c": B}))
    updates, _ = tx.update(grads, tx.init(params), params)
    assert_bits(updates, tensors("jax", {"a": None, "b": A, "c": 2 * B}))
    with pytest.raises(ValueError, match=r"masked: the parameters .* at 'a'"):
        tx.update(grads, tx.init(params), {"b": params["b"], "c": params["c"]})


@pytest.mark.parametrize("mask", [[True, False], [False, False]])
def test_a_foreign_transformation_in_a_mask_starts_with_its_parameters_alone(mask: list[bool]) -> None:
    class Foreign:
        def init(self, params: Any) -> Any:
            return params

        def update(self, updates: Any, state: Any, params: Any = None) -> Any:
            return updates, state

    state = gx.masked(Foreign(), mask).init([A, B])
    assert_bits(state, [A if mask[0] else None, None])


def test_a_foreign_transformation_may_make_floats_of_integers(optax: Any) -> None:
    """As optax's sgd does, also beside half precision."""
    for kind in ("bfloat16", "float32"):
        (grads,) = tensors("jax", ({"w": A, "i": np.int32([3, -7])},))
        tx, grads = gx.chain(optax.sgd(0.5)), {"w": grads["w"].astype(kind), "i": grads["i"]}
        found, _ = tx.update(grads, tx.init(grads))
        assert found["i"].tolist() == [-1.5, 3.5]


def test_results_of_a_straight_through_estimator() -> None:
    with pytest.raises(ValueError, match="differ at 'w'"):
        gx.straight_through(lambda x: {"w": x}, lambda x: {"v": x})(tensors("jax", A))


# --- states ----------------------------------------------------------------------------------------------------------


TITLES = {"numpy": "NumPy", "jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}


@pytest.mark.parametrize("of", [f for f in FRAMEWORKS if f != "numpy"])
def test_the_state_of_another_framework(framework: str, of: str) -> None:
    tx = gx.chain(gx.clip_norm(1.0), gx.ema(0.9))
    grads, state = tensors(framework, {"w": A}), tx.init(tensors(of, {"w": A}))
    if framework == of or (framework, of) == ("numpy", "jax"):  # as in optax
        tx.update(grads, state)
        return
    with pytest.raises(ValueError, match=rf"{TITLES[of]}.*{TITLES[framework]}.*gx.from_numpy\(gx.to_numpy\(state\)"):
        tx.update(grads, state)
    tx.update(grads, gx.from_numpy(gx.to_numpy(state), like=tx.init(grads)))


def test_a_state_of_numpy_is_adopted(framework: str) -> None:
    tx, grads = gx.trace(0.5), tensors(framework, {"w": A, "b": B})
    updates, state = tx.update(grads, tx.init({"w": A, "b": B}))
    assert_bits(updates, grads)
    assert_bits(state.trace, grads)


def test_the_state_of_another_framework_in_place(torch: Any) -> None:
    tx = gx.trace(0.5)
    with pytest.raises(ValueError, match=r"PyTorch.*NumPy"):
        gx.numpy.apply_(tx, {"w": A.copy()}, tx.init({"w": torch.ones(2)}))
    w = torch.nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"JAX.*PyTorch"):
        gx.torch.apply_(tx, [("w", w)], tx.init(tensors("jax", {"w": A})))


EACH_STATE = {entry.name: entry.rows[0].tx for entry in ENTRIES if entry.rows and entry.rows[0].tx.stateful}
EACH_STATE |= {
    "chain": gx.chain(gx.trace(0.5), gx.ema(0.5)),
    "schedule": gx.scale_by_schedule(lambda t: 1.0 / (1.0 + t)),
}


@pytest.mark.parametrize("name", EACH_STATE)
def test_the_state_of_another_transformation(framework: str, name: str) -> None:
    tx, grads = EACH_STATE[name], tensors(framework, {"w": A.reshape(1, 2)})
    for other, given in EACH_STATE.items():
        if other != name:
            with pytest.raises(ValueError, match=r"state must be .*tx.init"):
                tx.update(grads, given.init(grads))
    tx.update(grads, tx.init(grads))
    with pytest.raises(ValueError, match=r"state must be .*tx.init"):
        tx.update(grads, gx.EmptyState())


PER_LEAF = {name: EACH_STATE[name] for name in ("chain", "accumulate", "clip_adagc")}
GLOBAL = {tx.name: tx for tx in (gx.clip_zscore(), gx.clip_percentile(50.0), gx.measure(gx.stop()))}


@pytest.mark.parametrize("framework", EVERYWHERE)
@pytest.mark.parametrize("name", [*PER_LEAF, *GLOBAL])
def test_no_gradients_and_the_state_of_some(framework: str, name: str) -> None:
    """A state of numbers alone is known to be of some once it has seen them."""
    tx, grads = (PER_LEAF | GLOBAL)[name], tensors(framework, {"w": A})
    state = tx.init(grads) if name in PER_LEAF else tx.update(grads, tx.init(grads))[1]
    for empty in ({}, [], *([None] if name != "clip_adagc" else [])):
        with pytest.raises(ValueError, match=r"there are no gradients in .*tx.init\(params\)"):
            tx.update(empty, state)
        assert tx.update(empty, tx.init({}))[0] == empty
    assert tx.update({"w": None}, state)[0] == {"w": None}


# --- variables -------------------------------------------------------------------------------------------------------


def made(kind: str) -> tuple[Any, Any]:
    """A gradient and a variable."""
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return torch.tensor([3.0, 4.0]), torch.nn.Parameter(torch.ones(2))
    tf = pytest.importorskip("tensorflow")
    if kind == "keras":
        return tf.constant([3.0, 4.0]), pytest.importorskip("keras").Variable([1.0, 1.0])
    return tf.constant([3.0, 4.0]), tf.Variable([1.0, 1.0])


@pytest.mark.parametrize("kind", ["torch", "tensorflow", "keras"])
def test_variables_among_the_gradients(kind: str) -> None:
    gradient, variable = made(kind)
    tx, words = gx.clip_norm(1.0), r"variables among the gradients.*'0/1'.*tx\(\[gradient for"
    for pairs in ([(gradient, variable)], [(None, variable)], [[None, variable], [gradient, variable]]):
        with pytest.raises(ValueError, match=words):
            tx.update(pairs)
    with pytest.raises(ValueError, match=r"variables among the gradients.*'b'"):
        tx({"a": gradient, "b": variable})


@pytest.mark.parametrize("kind", ["tf.function", "resource", "reference"])
def test_variables_among_the_gradients_in_a_graph(kind: str, tf: Any) -> None:
    tx, words = gx.clip_norm(1.0), "variables among the gradients.*'0/1'"
    if kind == "tf.function":
        variable = tf.Variable([1.0, 1.0])
        with pytest.raises(ValueError, match=words):
            tf.function(lambda gradient: tx([(gradient, variable)])[0][0])(tf.constant([3.0, 4.0]))
        return
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("w", initializer=[1.0, 1.0], use_resource=kind == "resource")
        with pytest.raises(ValueError, match=words):
            tx([(tf.constant([3.0, 4.0]), variable)])


@pytest.mark.parametrize("kind", ["tensorflow", "keras"])
def test_variables_alone_are_taken(kind: str) -> None:
    _, variable = made(kind)
    gx.clip_norm(1.0)([variable, None])
    gx.clip_norm(1.0)({"a": variable})
    gx.global_norm([variable])


@pytest.mark.parametrize("kind", ["torch", "tensorflow", "keras"])
def test_variables_as_parameters_are_taken(kind: str) -> None:
    gradient, variable = made(kind)
    gx.add_decayed_weights(0.1)([gradient], params=[variable])
    tx = gx.trace(0.5)
    tx.update([gradient], tx.init([variable]))


@pytest.mark.parametrize("kind", ["torch", "tensorflow"])
def test_variables_beside_arrays_go_straight_through(kind: str) -> None:
    array, variable = made(kind)
    found = gx.straight_through(lambda tree: [2.0 * leaf for leaf in tree], gx.clip_value(1.0))([array, variable])
    assert [leaf.tolist() if kind == "torch" else leaf.numpy().tolist() for leaf in found] == [[6.0, 8.0], [2.0, 2.0]]


def test_a_list_of_pairs_of_gradients_is_a_tree(framework: str) -> None:
    tree = tensors(framework, [(0.1 * A, 0.1 * A)])
    assert_bits(gx.clip_norm(1.0)(tree), tree)
