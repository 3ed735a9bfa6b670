"""`top_k`: which elements stay, in every framework; sparse results; what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support import MOST, array, call, tensors

import gradxform as gx

RNG = np.random.default_rng(0)


def by_hand(x: Any, fraction: float) -> Any:
    """The elements whose size is at least that of the k-th in a sorted copy."""
    if not x.size:
        return x
    sizes = np.abs(x.astype(np.float64))
    least = np.sort(sizes, axis=None)[-max(1, math.floor(fraction * x.size + 0.5))]
    return np.where((sizes >= least) | np.isnan(sizes), x, 0)


HALF = gx.top_k(0.5)
ODD: dict[str, tuple[list[float], list[float], gx.GradientTransformation, Any]] = {
    "one element at least": ([3.0, -4.0, 1.0], [0.0, -4.0, 0.0], gx.top_k(1e-9), np.float32),
    "all elements": ([3.0, -4.0, 0.0], [3.0, -4.0, 0.0], gx.top_k(1), np.float32),
    "compared before they overflow": (
        [1e4, -3e4, 2e4, 4e4, 0.5],
        [0.0, -math.inf, 0.0, math.inf, 0.0],
        gx.chain(gx.scale(10.0), gx.top_k(0.4)),
        np.float16,
    ),
    "equal sizes stay together": ([3.0, -2.0, 2.0, 1.0], [3.0, -2.0, 2.0, 0.0], HALF, np.float32),
    "all are equal": ([1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 1.0, -1.0], HALF, np.float32),
    "zeros": ([0.0, -0.0, 0.0, 0.0], [0.0, -0.0, 0.0, 0.0], HALF, np.float32),
    "NaN is the largest": ([math.nan, 5.0, -math.inf, 1.0], [math.nan, 0.0, -math.inf, 0.0], HALF, np.float32),
    "many NaN stay together": (
        [math.nan, 5.0, -math.nan, math.nan],
        [math.nan, 0.0, math.nan, math.nan],
        HALF,
        np.float32,
    ),
    "numbers below the normal ones": ([3e-42, -7e-42, 5e-42, 4e-42], [0.0, -7e-42, 5e-42, 0.0], HALF, np.float32),
    "the ends of the range": ([3e38, -1e-38, 3.3e38, 1.0], [3e38, 0.0, 3.3e38, 0.0], HALF, np.float32),
    "neighbours": (
        [1.0, 1.0 + 2**-23, -1.0 - 2**-22, 1.0 - 2**-24],
        [0.0, 1.0 + 2**-23, -1.0 - 2**-22, 0.0],
        HALF,
        np.float32,
    ),
}


@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize("case", ODD)
def test_odd_numbers(case: str, framework: str, mode: str) -> None:
    """Every bit, also of numbers that a comparison would flush."""
    given, wanted, tx, dtype = ODD[case]
    (found,) = map(array, call(framework, mode, tx, [np.array(given, dtype)]))
    kept, right = (x.view(f"i{x.itemsize}")[~np.isnan(x)] for x in (found, np.array(wanted, dtype)))
    np.testing.assert_array_equal(kept, right)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


# --- with others -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_shapes_that_are_known_late(framework: str) -> None:
    x = RNG.standard_normal((6, 10)).astype(np.float32)
    if framework == "jax":
        jax = pytest.importorskip("jax")
        from jax import export

        (rows,) = export.symbolic_shape("rows")
        program = export.export(jax.jit(lambda g: gx.top_k(0.1)([g])[0]))(jax.ShapeDtypeStruct((rows, 10), np.float32))
        found = program.call(x)
    else:
        tf = pytest.importorskip("tensorflow")
        found = tf.function(lambda g: gx.top_k(0.1)([g])[0]).get_concrete_function(
            tf.TensorSpec([None, 10], tf.float32)
        )(tf.constant(x))
    np.testing.assert_array_equal(np.asarray(found), by_hand(x, 0.1))


def test_no_rows_at_all_in_tensorflow(tf: Any) -> None:
    step = tf.function(lambda g: gx.top_k(0.1)([g])[0]).get_concrete_function(tf.TensorSpec([None, 10], tf.float32))
    assert step(tf.zeros([0, 10])).shape == (0, 10)


def test_counts_of_huge_leaves_in_tensorflow(tf: Any) -> None:
    for size, dtype in ((2**31 + 8, tf.int64), (2**31 - 8, tf.int32)):
        step = tf.function(lambda g: gx.top_k(0.1)([g])[0])
        graphs = step.get_concrete_function(tf.TensorSpec([size], tf.float16)).graph.as_graph_def()
        nodes = [node for function in graphs.library.function for node in function.node_def]
        assert {node.attr["T"].type for node in nodes if node.op == "Sum"} == {dtype.as_datatype_enum}


# --- sparse ----------------------------------------------------------------------------------------------------------


def test_sparse_results_in_pytorch(torch: Any) -> None:
    x = RNG.standard_normal((10, 10)).astype(np.float32)
    (found,) = gx.top_k(0.1, sparse=True)([torch.tensor(x)])
    assert found.is_sparse
    assert found._nnz() == 10
    np.testing.assert_array_equal(found.to_dense().numpy(), by_hand(x, 0.1))
    again = gx.chain(gx.top_k(0.1, sparse=True), gx.clip_norm(1.0), gx.clip_value(0.3))([torch.tensor(x)])[0]
    dense = gx.chain(gx.top_k(0.1), gx.clip_norm(1.0), gx.clip_value(0.3))([torch.tensor(x)])[0]
    assert again.is_sparse
    np.testing.assert_array_equal(again.to_dense().numpy(), dense.numpy())


def test_only_pytorch_has_them(framework: str) -> None:
    given, tx = tensors(framework, {"w": np.ones(3, np.float32)}), gx.top_k(0.5, sparse=True)
    if framework == "torch":
        assert tx(given)["w"].is_sparse
    else:
        with pytest.raises(TypeError, match=r"top_k: .*'w' .*leave sparse=True out"):
            tx(given)


def test_indexed_slices_need_the_shape_of_the_whole(tf: Any) -> None:
    with pytest.raises(ValueError, match="dense_shape"):
        gx.top_k(0.2)([tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 2]), None)])


def test_an_optimizer_with_sparse_gradients(torch: Any) -> None:
    found = []
    for sparse in (False, True):
        model = torch.nn.Linear(4, 3)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        gx.torch.attach(optimizer, gx.error_feedback(gx.top_k(0.2, sparse=sparse)))
        for step in range(3):
            optimizer.zero_grad()
            model(torch.arange(8.0).reshape(2, 4) - step).square().sum().backward()
            optimizer.step()
            assert model.weight.grad.is_sparse == sparse
        found.append(model.weight.detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)  # PyTorch adds sparse gradients by another kernel


def test_a_gradient_that_is_kept_whole_is_not_overwritten(framework: str) -> None:
    """With fewer nonzero elements than are kept, like an embedding's: the k-th largest is zero."""
    leaf = np.zeros((1000, 8), np.float32)
    leaf[:50] = 1.0
    for tx in (gx.scale(2.0), gx.clip_norm(1.0), gx.clip_value(0.1)):
        gradients = tensors(framework, {"embedding": leaf})
        before = array(gradients["embedding"]).copy()
        found = gx.chain(gx.top_k(0.1), tx)(gradients)
        np.testing.assert_array_equal(array(gradients["embedding"]), before)
        np.testing.assert_array_equal(array(found["embedding"]), array(tx(gradients)["embedding"]))
