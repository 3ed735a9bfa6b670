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


@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize("fraction", [1e-9, 0.05, 0.5, 1])
def test_the_largest_of_each_leaf(fraction: float, framework: str, mode: str) -> None:
    leaves = [RNG.standard_normal(shape).astype(np.float32) for shape in ((30, 7), (501,), (2, 3, 5), (1,), ())]
    found = call(framework, mode, gx.top_k(fraction), leaves)
    for leaf, new in zip(leaves, map(array, found), strict=True):
        np.testing.assert_array_equal(new, by_hand(leaf, fraction))
        assert np.count_nonzero(new) == max(1, math.floor(fraction * leaf.size + 0.5))


ODD = {
    "equal sizes stay together": ([3.0, -2.0, 2.0, 1.0], [3.0, -2.0, 2.0, 0.0]),
    "all are equal": ([1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 1.0, -1.0]),
    "zeros": ([0.0, -0.0, 0.0, 0.0], [0.0, -0.0, 0.0, 0.0]),
    "NaN is the largest": ([math.nan, 5.0, -math.inf, 1.0], [math.nan, 0.0, -math.inf, 0.0]),
    "many NaN stay together": ([math.nan, 5.0, -math.nan, math.nan], [math.nan, 0.0, math.nan, math.nan]),
    "numbers below the normal ones": ([3e-42, -7e-42, 5e-42, 4e-42], [0.0, -7e-42, 5e-42, 0.0]),
    "the ends of the range": ([3e38, -1e-38, 3.3e38, 1.0], [3e38, 0.0, 3.3e38, 0.0]),
    "neighbours": ([1.0, 1.0 + 2**-23, -1.0 - 2**-22, 1.0 - 2**-24], [0.0, 1.0 + 2**-23, -1.0 - 2**-22, 0.0]),
}


@pytest.mark.parametrize(("framework", "mode"), MOST)
@pytest.mark.parametrize("case", ODD)
def test_odd_numbers(case: str, framework: str, mode: str) -> None:
    given, wanted = (np.array(numbers, np.float32) for numbers in ODD[case])
    (found,) = map(array, call(framework, mode, gx.top_k(0.5), [given]))
    kept = found.view(np.int32)[~np.isnan(found)], wanted.view(np.int32)[~np.isnan(wanted)]
    np.testing.assert_array_equal(*kept)  # every bit, also of numbers that a comparison would flush
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def test_views_and_byte_orders() -> None:
    whole = RNG.standard_normal((8, 9)).astype(np.float32)
    for leaf in (whole.T, whole[::2, ::-1], whole.astype(">f4"), np.asfortranarray(whole), whole[0, 0]):
        before = leaf.copy()
        np.testing.assert_array_equal(gx.top_k(0.2)([leaf])[0], by_hand(np.asarray(leaf), 0.2))
        np.testing.assert_array_equal(leaf, before)


def test_views_in_pytorch(torch: Any) -> None:
    whole = torch.tensor(RNG.standard_normal((8, 9)).astype(np.float32))
    for leaf in (whole.T, whole[::2], whole[0].expand(3, 9), torch._neg_view(whole), whole[0, 0]):
        for given in (leaf, leaf.clone().requires_grad_(), torch._neg_view(-leaf).requires_grad_()):
            gx.chain(gx.top_k(0.2), gx.scale(2.0))([given])  # writes into what `top_k` made
            (found,) = gx.top_k(0.2)([given])
            assert torch.equal(found, torch.tensor(by_hand(leaf.resolve_neg().numpy(), 0.2)))
            assert found.stride() == gx.sign()([given])[0].stride()


# --- with others -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("framework", "mode"), MOST)
def test_elements_are_compared_before_they_overflow(framework: str, mode: str) -> None:
    x = np.array([1e4, -3e4, 2e4, 4e4, 0.5], np.float16)
    (found,) = call(framework, mode, gx.chain(gx.scale(10.0), gx.top_k(0.4)), [x])
    np.testing.assert_array_equal(array(found), np.float16([0.0, -np.inf, 0.0, np.inf, 0.0]))


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


def test_a_replicated_leaf_beside_a_sharded_one_in_shard_map(jax: Any) -> None:
    from jax.sharding import PartitionSpec as P

    mesh, x = (
        jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)),
        np.float32(RNG.standard_normal((8, 5))),
    )
    step = jax.shard_map(
        lambda *leaves: tuple(gx.top_k(0.3)(list(leaves))), mesh=mesh, in_specs=(P(), P("d")), out_specs=(P(), P("d"))
    )
    for found in (*step(x, x), *jax.jit(step)(x, x)):
        np.testing.assert_array_equal(found, by_hand(x, 0.3))


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


@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
def test_sparse_gradients_stay_sparse(fraction: float, torch: Any) -> None:
    x = np.where(RNG.random((10, 10)) < 0.2, RNG.standard_normal((10, 10)), 0).astype(np.float32)
    for tx in (gx.top_k(fraction), gx.top_k(fraction, sparse=True)):
        (found,) = tx([torch.tensor(x).to_sparse()])
        assert found.is_sparse
        np.testing.assert_array_equal(found.to_dense().numpy(), by_hand(x, fraction))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.9])
def test_indexed_slices_stay_slices(fraction: float, graph: bool, tf: Any) -> None:
    rows = RNG.standard_normal((3, 4)).astype(np.float32)
    dense = np.zeros((8, 4), np.float32)
    np.add.at(dense, [5, 1, 5], rows)

    def step(rows: Any, shape: Any) -> Any:
        return gx.top_k(fraction)([tf.IndexedSlices(rows, tf.constant([5, 1, 5]), shape)])[0]

    (found,) = [(tf.function(step) if graph else step)(tf.constant(rows), tf.constant([8, 4]))]
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_array_equal(tf.convert_to_tensor(found).numpy(), by_hand(dense, fraction))
    with pytest.raises(ValueError, match="dense_shape"):
        step(tf.constant(rows), None)


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
