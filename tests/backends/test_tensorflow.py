"""gradxform on TensorFlow: lists of (gradient, variable), eager, compiled and in TF1 graphs, with its optimizers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support import assert_ulp, bits

import gradxform as gx

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

CLIP = gx.clip_norm(1.0)
W = np.float32([3.0, 4.0])
CLIPPED = np.float32([0.6, 0.8])


def variable(value: Any = (0.0, 0.0), name: str = "w", dtype: Any = tf.float32) -> Any:
    return tf.Variable(tf.cast(tf.constant(value), dtype), name=name)


# --- what a list may be ----------------------------------------------------------------------------------------------


def test_parameters_are_the_variables_or_those_given() -> None:
    a, b = variable([1.0, 2.0], "a"), variable([3.0, 4.0], "b")
    tx, pairs = gx.add_decayed_weights(0.5), [(tf.zeros(2), a), (tf.zeros(2), b)]
    assert [g.numpy().tolist() for g, _ in gx.tensorflow.apply(tx, pairs)] == [[0.5, 1.0], [1.5, 2.0]]
    given = gx.tensorflow.apply(tx, pairs, params=[tf.constant([9.0, 9.0]), tf.constant([1.0, 1.0])])
    assert [g.numpy().tolist() for g, _ in given] == [[4.5, 4.5], [0.5, 0.5]]


def test_a_variable_as_its_own_gradient_is_read() -> None:
    w = variable(W)
    ((gradient, _),) = gx.tensorflow.apply(CLIP, [(w, w)])
    assert tf.is_tensor(gradient)
    assert_ulp(gradient, CLIPPED)
    assert bits(w) == bits(W)


# --- sparse gradients ------------------------------------------------------------------------------------------------


def slices(values: Any = (3.0, 3.0, 4.0), rows: Any = (0, 0, 1), count: int = 3) -> Any:
    values = np.asarray(values, np.float32)
    values = values[:, None] if values.ndim == 1 else values
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([count, values.shape[1]]))


def test_a_sparse_gradient_without_rows() -> None:
    nothing = slices(np.zeros((0, 2)), np.zeros(0, np.int32))
    ((gradient, _),) = gx.tensorflow.apply(gx.chain(CLIP, gx.clip_value(1.0)), [(nothing, variable(np.zeros((3, 2))))])
    assert gradient.values.shape == (0, 2)


def test_a_stopped_sparse_gradient_is_left_out_or_zero() -> None:
    w = variable(np.zeros((3, 1)), "w")
    other = (tf.constant([1.0]), variable([0.0], "other"))
    assert len(gx.tensorflow.apply(gx.freeze("w"), [(slices(), w), other])) == 1
    assert not np.any(tf.convert_to_tensor(gx.stop()([slices()])[0]))


def test_zeros_of_both_signs_in_one_process() -> None:
    for dtype in (tf.float64, tf.float32):
        for factor in (-0.0, 0.0, -0.0):
            found, _ = gx.scale(factor).update([tf.constant([1.0, 2.0], dtype)], None)
            assert np.signbit(found[0].numpy()).tolist() == [np.signbit(factor)] * 2, (dtype, factor)


# --- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1.0, "placeholder", "variable"])
def test_unknown_shapes_in_a_v1_graph(limit: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.zeros((2, 2), np.float32), validate_shape=False)
        a, b = v1.placeholder(tf.float32), v1.placeholder(tf.float32, (None, 2))
        feed: dict[Any, Any] = {a: [[3.0, 0.0], [0.0, 4.0]], b: np.zeros((2, 2))}
        c: Any = limit
        if limit == "placeholder":
            c = v1.placeholder(tf.float32)
            feed[c] = 1.0
        if limit == "variable":
            c = v1.get_variable("limit", initializer=1.0)
            session.run(c.initializer)
        v = v1.get_variable("v", (2, 2))
        for tx in (gx.clip_norm(c), gx.clip_global_norm(c), gx.clip_global_norm(c, ord=float("inf"))):
            (first, _), (second, _) = gx.tensorflow.apply(tx, [(a, w), (b, v)])
            results = session.run([first, second], feed)
            biggest = 4.0 if "inf" in repr(tx) else 5.0
            assert_ulp(results[0], np.float32([[3.0, 0.0], [0.0, 4.0]]) / np.float32(biggest))
            assert not results[1].any()


def test_lengths_that_are_unknown_are_counted() -> None:
    for shape in ([None, 2], [2, None], [None, None]):
        centralize = tf.function(gx.centralize().__call__, input_signature=[tf.TensorSpec(shape, tf.float32)])
        assert centralize(tf.constant([[1.0, 3.0], [2.0, 6.0]])).numpy().tolist() == [[-1.0, 1.0], [-2.0, 2.0]]


# --- trees -----------------------------------------------------------------------------------------------------------


def test_ragged_and_sparse_tensors_are_refused_by_path() -> None:
    with pytest.raises(TypeError, match=r"'r'.*RaggedTensor|RaggedTensor.*'r'"):
        CLIP({"a": tf.constant(W), "r": tf.ragged.constant([[1.0], [2.0, 3.0]])})


# --- errors ----------------------------------------------------------------------------------------------------------

PAIR = "item 1 of grads_and_vars is not a"
WRONG: list[tuple[str, type[Exception], str]] = [
    *((f"[(g, w), {item}]", TypeError, PAIR) for item in ("3", "'ab'", "(1.0,)", "(1.0, 2.0, 3.0)", "None", "g")),
    ("[(g, w), {'g': 1, 'v': 2}]", TypeError, PAIR),
    *((given, TypeError, "must be (gradient, variable) pairs") for given in ("3.0", "None", "'gw'", "{}")),
    ("{('g', 'w'): 1}", TypeError, "must be (gradient, variable) pairs"),
    ("[(g, w, 1.0)]", TypeError, "item 0 of grads_and_vars, of the variable 'kernel'"),
    *((f"[(g, {second})]", TypeError, "second item of pair 0 is not") for second in ("3.0", "'w'", "None", "W")),
    ("[(w, g)]", TypeError, "pair 0 has the variable 'kernel' first"),
    *((f"[({value}, w)]", ValueError, "'kernel'") for value in ("tf.ones(1)", "tf.ones((1, 2))", "tf.ones(())")),
    ("[(slices(), w)]", ValueError, "(2,)"),
    ("[(g, w), (g, w)]", ValueError, "'kernel' is in two pairs"),
    *((f"[({value}, w)]", TypeError, "'kernel'") for value in ("'text'", "[3.0, 4.0]", "object()")),
    ("[(np.array([object(), object()]), w)]", TypeError, "'kernel' cannot be an array of tensorflow"),
]


@pytest.mark.parametrize(("pairs", "error", "words"), WRONG)
def test_wrong_pairs_are_refused_by_name(pairs: str, error: type[Exception], words: str) -> None:
    names = {"tf": tf, "np": np, "W": W, "slices": slices, "g": tf.constant(W), "w": variable(name="kernel")}
    with pytest.raises(error, match=re.escape(words)):
        gx.tensorflow.apply(CLIP, eval(pairs, names))


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_a_gradient_of_another_framework(framework: str) -> None:
    module = pytest.importorskip(framework)
    for others in ([(tf.constant(W), variable())], []):
        with pytest.raises(TypeError, match="'kernel'.*" + framework.partition(".")[0]):
            gx.tensorflow.apply(CLIP, [*others, (module.ones(2), variable(name="kernel"))])


def test_a_limit_of_several_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_norm.*\(2,\)"):
        gx.clip_norm(tf.Variable([1.0, 2.0]))


# --- distribution, mixed precision, saving ---------------------------------------------------------------------------


def test_in_map_fn_and_while_loop() -> None:
    rows = tf.constant([[3.0, 4.0], [0.3, 0.4]])
    assert_ulp(tf.map_fn(CLIP, rows), [[0.6, 0.8], [0.3, 0.4]])
    assert_ulp(tf.vectorized_map(CLIP, rows), [[0.6, 0.8], [0.3, 0.4]])


@pytest.mark.parametrize("wide", ["gradient", "parameter"])
def test_a_weight_in_a_tensor_beside_an_array_of_another_width(wide: str) -> None:
    rng = np.random.default_rng(0)
    made = {name: rng.normal(size=50).astype("d" if name == wide else "f") for name in ("gradient", "parameter")}
    weight = np.float32(0.1)
    tx = gx.add_decayed_weights(tf.Variable(weight))
    step = tf.function(lambda gradient, parameter: tx.update([gradient], None, [parameter])[0])
    found = step(*map(tf.constant, made.values()))
    wanted, _ = gx.add_decayed_weights(float(weight)).update([made["gradient"]], None, [made["parameter"]])
    near = 4e-15 if wide == "gradient" else 1e-6  # of terms up to 3, in the sum's dtype
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=near)
