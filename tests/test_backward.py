"""The identity forward, a transformation of what flows back: in JAX, TensorFlow and PyTorch, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradxform as gx
from gradxform import _backend
from gradxform.testing import max_ulp

# torch.compile makes an instance of an autograd.Function, of which it then complains.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

Function = Callable[..., Any]
X = np.float32([[1.0, 2.0], [3.0, 4.0]])


def jax_gradient(f: Function, *given: Any, compiled: bool = False) -> Any:
    import jax
    import jax.numpy as jnp

    found = jax.grad(f, argnums=tuple(range(len(given))))
    return (jax.jit(found) if compiled else found)(*jax.tree.map(jnp.asarray, given))


def tensorflow_gradient(f: Function, *given: Any, compiled: bool = False, jit_compile: bool = False) -> Any:
    import tensorflow as tf

    def found(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = f(*given)
        return tape.gradient(loss, given)

    constants = tf.nest.map_structure(tf.constant, given)
    return (tf.function(found, jit_compile=jit_compile) if compiled else found)(*constants)


def session_gradient(f: Function, *given: Any) -> Any:
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = tf.nest.map_structure(lambda x: tf.compat.v1.placeholder(x.dtype), given)
        feed = dict(zip(tf.nest.flatten(places), tf.nest.flatten(given), strict=True))
        found = tf.gradients(f(*places), tf.nest.flatten(places))
        return tf.nest.pack_sequence_as(given, session.run(found, feed))


def torch_gradient(f: Function, *given: Any, compiled: bool = False) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    tensors = pytree.tree_map(lambda x: _leaf(torch, x), given)
    (torch.compile(f, fullgraph=True) if compiled else f)(*tensors).backward()
    return pytree.tree_map(lambda x: x.grad, tensors)


def _leaf(torch: Any, x: Any) -> Any:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.tensor(x.astype(np.float32), dtype=torch.bfloat16, requires_grad=True)
    return torch.tensor(x, requires_grad=True)


MODES: dict[str, Function] = {
    "jax": jax_gradient,
    "jax-jit": lambda f, *given: jax_gradient(f, *given, compiled=True),
    "tensorflow": tensorflow_gradient,
    "tensorflow-function": lambda f, *given: tensorflow_gradient(f, *given, compiled=True),
    "tensorflow-XLA": lambda f, *given: tensorflow_gradient(f, *given, compiled=True, jit_compile=True),
    "tensorflow-session": session_gradient,
    "torch": torch_gradient,
    "torch-compiled": lambda f, *given: torch_gradient(f, *given, compiled=True),
}


@pytest.fixture(params=MODES)
def gradient(request: pytest.FixtureRequest) -> Function:
    pytest.importorskip(request.param.partition("-")[0])
    return MODES[request.param]


def total(x: Any) -> Any:
    """The sum in the framework of an array."""
    return gx.xp(x).sum(x)


def array(x: Any) -> Any:
    return np.asarray(x.float() if "bfloat16" in str(getattr(x, "dtype", "")) and hasattr(x, "float") else x)


def assert_close(found: Any, wanted: Any, ulp: float = 2) -> None:
    assert max_ulp(array(found), np.asarray(wanted, array(found).dtype)) <= ulp, (found, wanted)


# --- the cases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tx", "wanted"), [(gx.scale(5.0), 5.0), (gx.clip_value(0.1), 0.1), (gx.stop(), 0.0)], ids=repr
)
def test_case_7_the_gradient_of_one_op(gradient: Function, tx: Any, wanted: float) -> None:
    (found,) = gradient(lambda x: total(gx.on_backward(tx)(x)), np.float32([3.0]))
    assert_close(found, [wanted], ulp=0)


def test_case_10_clip_between_layers(gradient: Function) -> None:
    at_x, at_y = gx.on_backward(gx.clip_norm(1.0)), gx.on_backward(gx.clip_norm(0.5))
    plain, _ = gradient(lambda x, y: total(x @ y), X, X)
    x_bar, y_bar = gradient(lambda x, y: total(at_x(x) @ at_y(y)), X, X)
    between, _ = gradient(lambda x, y: total(at_x(x @ y) @ y), X, X)
    assert array(plain).tolist() == [[3.0, 7.0], [3.0, 7.0]]
    np.testing.assert_allclose(array(x_bar), [[0.278543, 0.6499337]] * 2, rtol=0, atol=5e-8)
    assert np.linalg.norm(array(y_bar).astype(np.float64)) == pytest.approx(0.5, rel=1e-6)
    np.testing.assert_allclose(array(between), [[1.57841039, 3.43536377]] * 2, rtol=1e-7, atol=0)


def test_a_chain_is_applied_in_its_order(gradient: Function) -> None:
    tx = gx.chain(gx.clip_value(4.0), gx.clip_norm(1.0), gx.scale(-0.5))
    (found,) = gradient(lambda x: total(gx.on_backward(tx)(x) * x), np.float32([3.0, -40.0, 0.5]))
    direct = np.float32([3.0, -40.0, 0.5])  # the derivative of the other factor, which is not transformed
    assert_close(array(found) - direct, tx(direct), ulp=64)


def test_norms_are_over_the_tree(gradient: Function) -> None:
    clip = gx.on_backward(gx.clip_global_norm(1.0))

    def loss(tree: Any) -> Any:
        clipped = clip(tree)
        return total(clipped["a"] * 3.0) + total(clipped["b"][0] * 4.0)

    (found,) = gradient(loss, {"a": np.float32([0.0]), "b": [np.float32([0.0])]})
    assert_close(found["a"], [0.6])
    assert_close(found["b"][0], [0.8])


def test_within_the_limit_not_a_bit_changes(gradient: Function) -> None:
    weights = np.random.default_rng(0).normal(size=33).astype(np.float32)
    (found,) = gradient(lambda x, w: total(gx.on_backward(gx.clip_norm(100.0))(x) * w), weights * 0, weights)[:1]
    assert array(found).tobytes() == weights.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(gradient: Function, dtype: str, request: pytest.FixtureRequest) -> None:
    if dtype == "float64" and "[jax" in request.node.name:
        pytest.skip("without 64 bits JAX has none")
    given = np.array([30.0, 40.0]).astype(dtype)
    found = gradient(lambda x, w: total(gx.on_backward(gx.clip_norm(1.0))(x) * w), given * 0, given)[0]
    assert dtype in str(found.dtype)
    np.testing.assert_allclose(array(found).astype(np.float64), [0.6, 0.8], rtol={"float64": 1e-6}.get(dtype, 4e-3))


# --- what passes by --------------------------------------------------------------------------------------------------

EAGER = {"jax": jax_gradient, "tensorflow": tensorflow_gradient, "torch": torch_gradient}


def constants(framework: str, tree: Any) -> Any:
    pytest.importorskip(framework)
    import optree

    return optree.tree_map(_backend.backend(framework).from_numpy, tree)


@pytest.mark.parametrize("framework", EAGER)
def test_forward_is_bit_by_bit_the_same(framework: str) -> None:
    values = [np.float32([np.nan, -0.0, 1e-40, np.inf, 3.0]), np.float64([0.1]), np.int32([1, 2]), np.array([True])]
    given = constants(framework, values if framework != "jax" else [values[0], *values[2:]])
    found = gx.on_backward(gx.clip_norm(1.0))([*given, None])
    assert found[-1] is None
    for new, old in zip(found, given, strict=False):
        assert type(new) is type(old)
        assert new.dtype == old.dtype
        assert np.asarray(new).tobytes() == np.asarray(old).tobytes()


@pytest.mark.parametrize("framework", EAGER)
def test_nothing_to_transform(framework: str) -> None:
    (integers,) = constants(framework, [np.int32([1])])
    for tree in ([], {}, [None], [integers]):
        assert gx.on_backward(gx.scale(2.0))(tree) == tree


def test_numpy_has_no_backward_pass() -> None:
    with pytest.raises(TypeError, match="NumPy's arrays have no backward pass"):
        gx.on_backward(gx.scale(2.0))([np.ones(2)])


@pytest.mark.parametrize("tx", [gx.trace(0.9), gx.chain(gx.clip_norm(1.0), gx.ema(0.9)), gx.scale(lambda step: 1.0)])
def test_a_stateful_transformation(tx: Any) -> None:
    with pytest.raises(TypeError, match=r"on_backward takes a stateless transformation.*backward pass"):
        gx.on_backward(tx)


def test_what_is_no_transformation() -> None:
    with pytest.raises(TypeError, match="on_backward: a transformation"):
        gx.on_backward(3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", EAGER)
def test_paths_are_those_of_the_tree(framework: str) -> None:
    tx = gx.masked(gx.scale(2.0), "layers/1")

    def loss(tree: Any) -> Any:
        scaled = gx.on_backward(tx)(tree)
        return total(scaled["layers"][0]) + total(scaled["layers"][1])

    pytest.importorskip(framework)
    (found,) = EAGER[framework](loss, {"layers": [np.float32([1.0]), np.float32([1.0])]})
    assert [float(leaf[0]) for leaf in found["layers"]] == [1.0, 2.0]


# --- limits that are arrays ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", EAGER)
def test_a_limit_that_is_an_array(framework: str) -> None:
    (limit,) = constants(framework, [np.float32(2.0)])
    tx = gx.chain(gx.partition({"**": gx.clip_norm(limit)}), gx.scale(0.5))
    weights = np.float32([30.0, 40.0])
    found = EAGER[framework](lambda x, w: total(gx.on_backward(tx)(x) * w), weights * 0, weights)[0]
    assert_close(found, [0.6, 0.8])


def test_a_limit_that_is_a_tracer() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def slope(limit: Any, w: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(gx.on_backward(gx.clip_norm(limit))(x) * w))(jnp.zeros(2))

    w = jnp.array([30.0, 40.0])
    assert_close(jax.jit(slope)(1.0, w), [0.6, 0.8])
    found = jax.vmap(slope, (0, None))(jnp.array([1.0, 2.0]), w)
    assert_close(found, [[0.6, 0.8], [1.2, 1.6]])
    _, outs = jax.lax.scan(lambda c, limit: (c, slope(limit, w)), 0.0, jnp.array([1.0, 2.0]))
    assert_close(outs, [[0.6, 0.8], [1.2, 1.6]])


def test_a_limit_in_a_tensorflow_variable_changes_without_a_retrace() -> None:
    tf = pytest.importorskip("tensorflow")
    limit, traces = tf.Variable(1.0), []

    @tf.function
    def slope(x: Any) -> Any:
        traces.append(1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(gx.on_backward(gx.clip_norm(limit))(x) * [30.0, 40.0])
        return tape.gradient(loss, x)

    assert_close(slope(tf.zeros(2)), [0.6, 0.8])
    limit.assign(2.0)
    assert_close(slope(tf.zeros(2)), [1.2, 1.6])
    assert len(traces) == 1


# --- per example, and twice ------------------------------------------------------------------------------------------


def test_vmap_clips_each_example() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    clip, w = gx.on_backward(gx.clip_norm(1.0)), np.float32([[30.0, 40.0], [0.3, 0.4]])
    wanted = [[0.6, 0.8], [0.3, 0.4]]
    assert_close(jax.vmap(jax.grad(lambda x, w: (clip(x) * w).sum()))(w * 0, w), wanted)
    slope = torch.func.vmap(torch.func.grad(lambda x, w: (clip(x) * w).sum()))
    assert_close(slope(torch.zeros(2, 2), torch.tensor(w)), wanted)


def test_the_gradient_of_the_gradient() -> None:
    """d/dw of the clipped gradient w c / |w|, against its derivative."""
    clip, w = gx.on_backward(gx.clip_norm(1.0)), np.array([3.0, 4.0])
    wanted = (np.array([1.0, 0.0]) - w * w[0] / 25) / 5
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    jnp = jax.numpy
    inner = jax.grad(lambda x, w: jnp.sum(clip(x) * w))
    np.testing.assert_allclose(jax.grad(lambda w: inner(w * 0, w)[0])(jnp.array(w, jnp.float32)), wanted, atol=1e-6)
    t = torch.tensor(w, requires_grad=True)
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad((clip(x) * t).sum(), x, create_graph=True)
    np.testing.assert_allclose(torch.autograd.grad(first[0], t)[0], wanted, atol=1e-12)
    v = tf.constant(w)
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as tape:
            z = v * 0
            tape.watch(z)
            loss = tf.reduce_sum(clip(z) * v)
        kept = tape.gradient(loss, z)[0]
    np.testing.assert_allclose(outer.gradient(kept, v), wanted, atol=1e-12)


def test_writing_into_the_output_does_not_reach_the_input() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, requires_grad=True)
    y = gx.on_backward(gx.clip_norm(1.0))(x)
    y.add_(1.0).mul_(50.0)
    y.sum().backward()
    assert x.tolist() == [0.0, 0.0]
    assert_close(x.grad, np.float32([1.0, 1.0]) / np.sqrt(np.float32(2.0)))


def test_sparse_gradients_flow_back_sparse() -> None:
    tf = pytest.importorskip("tensorflow")
    table = tf.Variable([[0.0], [0.0], [0.0]])
    with tf.GradientTape() as tape:
        rows = tf.gather(gx.on_backward(gx.clip_norm(1.0))(table), [0, 0, 2])
        loss = tf.reduce_sum(rows * [[3.0], [3.0], [4.0]])
    found = tape.gradient(loss, table)
    assert_close(tf.convert_to_tensor(found), np.float32([[6.0], [0.0], [4.0]]) / np.sqrt(np.float32(52)))
