"""Identity forward, transformed gradients backward: in JAX, TensorFlow and PyTorch, eager and compiled."""

from __future__ import annotations

import functools
import gc
import json
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import EAGER as EAGER_JAX
from support import INDUCTOR, array, assert_bits, assert_ulp, in_mode, python, slow, tensors
from trees import STATELESS, few, first

import gradxform as gx
from gradxform.proof import parity
from gradxform.proof.registry import Row

# torch.compile instantiates an autograd.Function and then warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

Function = Callable[..., Any]
SLOWLY = {"torch-compiled": INDUCTOR, "mlx-compiled": "MLX hands each fused loop to a C++ compiler"}
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
    in_mode("torch", "compiled" if compiled else "eager", f)(*tensors).backward()
    return pytree.tree_map(lambda x: x.grad, tensors)


def mlx_gradient(f: Function, *given: Any, compiled: bool = False) -> Any:
    import mlx.core as mx

    found = mx.grad(f, argnums=tuple(range(len(given))))
    found = (mx.compile(found) if compiled else found)(*tensors("mlx", given))
    return found if len(given) > 1 else (found,)


def _leaf(torch: Any, x: Any) -> Any:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.tensor(x.astype(np.float32), dtype=torch.bfloat16, requires_grad=True)
    return torch.tensor(x, requires_grad=True)


COMPILED = {"compiled": True}
MODES: dict[str, Function] = {
    "jax": jax_gradient,
    "jax-jit": functools.partial(jax_gradient, **COMPILED),
    "tensorflow": tensorflow_gradient,
    "tensorflow-function": functools.partial(tensorflow_gradient, **COMPILED),
    "tensorflow-XLA": functools.partial(tensorflow_gradient, **COMPILED, jit_compile=True),
    "tensorflow-session": session_gradient,
    "torch": torch_gradient,
    "torch-compiled": functools.partial(torch_gradient, **COMPILED),
    "mlx": mlx_gradient,
    "mlx-compiled": functools.partial(mlx_gradient, **COMPILED),
}


@pytest.fixture(
    params=[pytest.param(mode, marks=pytest.mark.slow(reason=SLOWLY[mode]) if mode in SLOWLY else ()) for mode in MODES]
)
def gradient(request: pytest.FixtureRequest) -> Function:
    pytest.importorskip(request.param.partition("-")[0])
    return MODES[request.param]


def total(x: Any) -> Any:
    """Sum in the framework of an array."""
    return gx.xp(x).sum(x)


# --- the cases -------------------------------------------------------------------------------------------------------

CLIP = gx.on_backward(gx.clip_norm(1.0))
WEIGHTS = np.float32([30.0, 40.0])


def signs(backward: Function | None = None) -> Function:
    """The sign, whose derivative is that of another function."""
    return gx.straight_through(lambda x: gx.xp(x).sign(x), *filter(None, [backward]))


def by_tree(x: Any) -> Any:
    """A clip of two leaves together, whose gradients are of sizes 3 and 4."""
    tree = gx.on_backward(gx.clip_global_norm(2.5))({"a": x, "b": [x * 1.0]})
    return tree["a"] * 3.0 + tree["b"][0] * 4.0


FLOWS: dict[str, tuple[Function, list[float], list[float], list[float]]] = {
    "case 7, scale": (gx.on_backward(gx.scale(5.0)), [3.0], [1.0], [5.0]),
    "case 7, clip_value": (gx.on_backward(gx.clip_value(0.1)), [3.0], [1.0], [0.1]),
    "case 7, stop": (gx.on_backward(gx.stop()), [3.0], [1.0], [0.0]),
    "norms over a tree": (by_tree, [0.0], [1.0], [3.5]),
    "reversed": (gx.reverse_gradient, [1.0, 2.0], [3.0, 3.0], [-3.0, -3.0]),
    "reversed by a number": (lambda x: gx.reverse_gradient(x, 0.25), [1.0, 2.0], [3.0, 3.0], [-0.75, -0.75]),
    "stopped": (lambda x: gx.stop_gradient({"a": x})["a"] * x, [3.0, 2.0], [1.0, 1.0], [3.0, 2.0]),
    "case 9": (
        gx.straight_through(lambda x: gx.xp(x).exp(x), lambda x: x * x), [2.0, -1.0], [3.0, 3.0], [12.0, -6.0]
    ),
    "sign, hard tanh": (signs(gx.clip_value(1.0)), [-0.5, 3.0], [1.0, 1.0], [1.0, 0.0]),
    "sign": (signs(), [-0.5, 3.0], [1.0, 1.0], [1.0, 1.0]),
    "round": (gx.straight_through(lambda x: gx.xp(x).floor(x + 0.5)), [0.4, 1.6], [1.0, 1.0], [1.0, 1.0]),
    "clip": (gx.straight_through(gx.clip_value(1.0)), [0.5, 3.0], [1.0, 1.0], [1.0, 1.0]),
    "tanh": (signs(lambda x: gx.xp(x).tanh(x)), [0.0, 99.0], [1.0, 1.0], [1.0, 0.0]),
}  # fmt: skip
"""A function, its argument, the gradient of its result, and of its argument."""


def test_what_flows_back(gradient: Function) -> None:
    """All in one program, which compilers take seconds for."""

    def loss(*given: Any) -> Any:
        flows = zip(FLOWS.values(), given[::2], given[1::2], strict=True)
        return sum(total(function(x) * w) for (function, *_), x, w in flows)

    found = gradient(loss, *(np.float32(given) for _, x, upstream, _ in FLOWS.values() for given in (x, upstream)))
    for (name, (*_, wanted)), own in zip(FLOWS.items(), found[::2], strict=True):
        assert_ulp(own, wanted, ulp=0, what=name)


def test_case_10_clip_between_layers(gradient: Function) -> None:
    at_x, at_y = gx.on_backward(gx.clip_norm(1.0)), gx.on_backward(gx.clip_norm(0.5))
    losses = (
        lambda x, y: total(x @ y),
        lambda x, y: total(at_x(x) @ at_y(y)),
        lambda x, y: total(at_x(x @ y) @ y),
    )

    def loss(*given: Any) -> Any:
        return sum(of(x, y) for of, x, y in zip(losses, given[::2], given[1::2], strict=True))

    plain, _, x_bar, y_bar, between, _ = gradient(loss, *[X] * 6)
    assert array(plain).tolist() == [[3.0, 7.0], [3.0, 7.0]]
    np.testing.assert_allclose(array(x_bar), [[0.278543, 0.6499337]] * 2, rtol=0, atol=5e-8)
    assert np.linalg.norm(array(y_bar).astype(np.float64)) == pytest.approx(0.5, rel=1e-6)
    np.testing.assert_allclose(array(between), [[1.57841039, 3.43536377]] * 2, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(gradient: Function, dtype: str, request: pytest.FixtureRequest) -> None:
    if dtype == "float64" and "[jax" in request.node.name:
        pytest.skip("without 64 bits JAX has none")
    given = np.array([30.0, 40.0]).astype(dtype)
    found = gradient(lambda x, w: total(CLIP(x) * w), given * 0, given)[0]
    assert dtype in str(found.dtype)
    wanted = gx.clip_norm(1.0)(given.astype(np.float64)).astype(dtype)
    assert_ulp(found, wanted, 2 if dtype == "float64" else 1)


# --- what passes by --------------------------------------------------------------------------------------------------

EAGER = {name: MODES[name] for name in ("jax", "tensorflow", "torch", "mlx")}


@pytest.mark.parametrize("framework", EAGER)
def test_forward_is_bit_by_bit_the_same(framework: str) -> None:
    values = [np.float32([np.nan, -0.0, 1e-40, np.inf, 3.0]), np.float64([0.1]), np.int32([1, 2]), np.array([True])]
    given = tensors(framework, values if framework != "jax" else [values[0], *values[2:]])
    found = gx.on_backward(gx.clip_norm(1.0))([*given, None])
    assert found[-1] is None
    for new, old in zip(found, given, strict=False):
        assert type(new) is type(old)
        assert_bits(new, old)


@pytest.mark.parametrize("framework", EAGER)
def test_nothing_to_transform(framework: str) -> None:
    (integers,) = tensors(framework, [np.int32([1])])
    for tree in ([], {}, [None], {"a": None, "b": []}):
        for use in (CLIP, gx.reverse_gradient, gx.stop_gradient, gx.straight_through(lambda x: x)):
            assert use(tree) == tree
    assert CLIP([integers]) == [integers]


# --- limits that are arrays ------------------------------------------------------------------------------------------


ARRAYS: dict[str, tuple[Any, Function, list[float]]] = {
    "a limit": (
        np.float32(2.0),
        lambda c: gx.on_backward(gx.chain(gx.partition({"**": gx.clip_norm(c)}), gx.scale(0.5))),
        [0.6, 0.8],
    ),
    "a factor": (np.float32(0.5), lambda factor: lambda x: gx.reverse_gradient(x, factor), [-15.0, -20.0]),
    "integers beside what flows": (np.int32([1, 2]), lambda n: lambda x: CLIP({"n": n, "x": x})["x"], [0.6, 0.8]),
}


@pytest.mark.parametrize("framework", EAGER)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_the_framework(name: str, framework: str) -> None:
    number, make, wanted = ARRAYS[name]
    function = make(*tensors(framework, [number]))
    assert_ulp(EAGER[framework](lambda x, w: total(function(x) * w), WEIGHTS * 0, WEIGHTS)[0], wanted)


# --- per example, and twice ------------------------------------------------------------------------------------------


def test_the_gradient_of_the_gradient(jax: Any, torch: Any, tf: Any, jnp: Any) -> None:
    """The derivative of the clipped gradient w c / |w| in w."""
    clip, w = gx.on_backward(gx.clip_norm(1.0)), np.array([3.0, 4.0])
    wanted = (np.array([1.0, 0.0]) - w * w[0] / 25) / 5
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


def test_writing_into_the_output_does_not_reach_the_input(torch: Any) -> None:
    x = torch.zeros(2, requires_grad=True)
    y = gx.on_backward(gx.clip_norm(1.0))(x)
    y.add_(1.0).mul_(50.0)
    y.sum().backward()
    assert x.tolist() == [0.0, 0.0]
    assert_ulp(x.grad, np.float32([1.0, 1.0]) / np.sqrt(np.float32(2.0)))


def test_sparse_gradients_flow_back_sparse(tf: Any) -> None:
    table = tf.Variable([[0.0], [0.0], [0.0]])
    with tf.GradientTape() as tape:
        rows = tf.gather(gx.on_backward(gx.clip_norm(1.0))(table), [0, 0, 2])
        loss = tf.reduce_sum(rows * [[3.0], [3.0], [4.0]])
    found = tape.gradient(loss, table)
    assert_ulp(tf.convert_to_tensor(found), np.float32([[6.0], [0.0], [4.0]]) / np.sqrt(np.float32(52)))


# --- straight through ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", EAGER)
def test_the_value_is_forwards_bit_by_bit(framework: str, rng: Any) -> None:
    """The formula with stop_gradient is not."""
    (x,) = tensors(framework, [(rng.normal(size=100_000) * 10.0 ** rng.integers(-8, 8, 100_000)).astype(np.float32)])

    def f(x: Any) -> Any:
        return gx.xp(x).sin(x) * 0.1

    def b(x: Any) -> Any:
        return x * 3.0

    wanted = np.asarray(f(x))
    assert np.asarray(gx.straight_through(f, b)(x)).tobytes() == wanted.tobytes()
    formula = np.asarray(b(x) + gx.stop_gradient(f(x) - b(x)))
    assert np.mean(formula != wanted) > 0.5


def test_straight_through_in_jax(jax: Any, jnp: Any) -> None:
    through = gx.straight_through(jnp.round, lambda x: x**3)
    x = jnp.array([1.4, 2.6])
    value, slope = jax.jvp(through, (x,), (jnp.ones(2),))
    assert value.tolist() == [1.0, 3.0]
    assert_ulp(slope, 3 * np.asarray(x) ** 2)
    assert_ulp(jax.vmap(jax.grad(jax.grad(through)))(x), 6 * np.asarray(x))
    assert_ulp(jax.vmap(through)(x[:, None])[:, 0], value)


ONES = np.ones(2, np.float32)
WRONG: list[tuple[Any, type[Exception], str]] = [
    *((lambda use=use: use(ONES), TypeError, "NumPy .*no backward pass") for use in (
        gx.on_backward(gx.scale(2.0)), gx.reverse_gradient, gx.stop_gradient, gx.straight_through(abs))),
    (lambda: gx.straight_through(lambda x: ONES, lambda x: ONES)(None), TypeError, "NumPy .*no backward pass"),
    *((lambda tx=tx: gx.on_backward(tx), TypeError, "on_backward: .*stateless") for tx in (
        gx.trace(0.9), gx.chain(gx.clip_norm(1.0), gx.ema(0.9)), gx.scale(lambda step: 1.0))),
    (lambda: gx.on_backward(3.0), TypeError, "on_backward: expected a transformation"),
    (lambda: gx.straight_through(3.0), TypeError, "straight_through: forward"),
    (lambda: gx.straight_through(abs, 3.0), TypeError, "straight_through: backward"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "match"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_call(call: Function, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_a_wrong_call_in_jax(jax: Any) -> None:
    jnp, double = jax.numpy, gx.on_backward(gx.scale(2.0))
    for scale in (True, "a", None, float("nan"), np.ones(2)):
        with pytest.raises((TypeError, ValueError), match="reverse_gradient: scale"):
            gx.reverse_gradient(jnp.ones(1), scale)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(CLIP, (jnp.ones(2),), (jnp.ones(2),))
    with pytest.raises(TypeError, match="float8_e4m3fn"):
        jax.grad(lambda x: double(x.astype(jnp.float8_e4m3fn)).astype(jnp.float32).sum())(jnp.ones(2))


@pytest.mark.parametrize("framework", EAGER)
def test_results_that_do_not_fit(framework: str) -> None:
    x, integers = tensors(framework, [ONES, np.int32([1, 2])])
    with pytest.raises(ValueError, match=r"straight_through: .*'a' .*\(1,\).*\(2,\)"):
        gx.straight_through(lambda x: {"a": x[:1]}, lambda x: {"a": x})(x)
    with pytest.raises(ValueError, match="same structure"):
        gx.straight_through(lambda x: [x, x], lambda x: [x])(x)
    with pytest.raises(TypeError, match=r"int32 .*float32"):
        gx.straight_through(lambda x: integers)(x)


# --- within JAX's transformations, and other libraries' modules ------------------------------------------------------


def slope(jax: Any, limit: Any) -> Any:
    """The gradient under a clip."""
    return jax.grad(lambda x: (gx.on_backward(gx.clip_norm(limit))(x) * WEIGHTS).sum())(jax.numpy.zeros(2))


def of_tracers(jax: Any, wrap: Function) -> Any:
    """Limits and factors anywhere in a transform may be tracers from within the gradient."""

    def transformed(x: Any, limit: Any, factor: Any) -> Any:
        tx = gx.chain(gx.partition({"**": gx.clip_norm(limit, ord=1)}), gx.scale(factor))
        return gx.on_backward(tx)(x)

    limits, factors, w = (np.float32(x) for x in ([100.0, 2.0], [2.0, 3.0], [30.0, 10.0]))
    found = jax.grad(lambda x: (jax.vmap(transformed)(x, limits, factors) * w).sum())
    return wrap(found)(jax.numpy.zeros((2, 2)))


def scanned(jax: Any, wrap: Function, compile: Function) -> Any:
    """In each of three backward steps, the carry's gradient is clipped before it is multiplied."""

    def run(x: Any) -> Any:
        last, _ = jax.lax.scan(wrap(lambda c, _: (CLIP(c) * 2.0, None)), x, None, length=3)
        return (last * WEIGHTS).sum()

    return compile(jax.grad(run))(jax.numpy.zeros(2))


def through_a_tree(jax: Any) -> Any:
    through = gx.straight_through(
        lambda t: {"a": jax.numpy.sign(t["a"]), "n": 3, "b": None}, lambda t: {"a": t["a"] * 2, "n": 4, "b": None}
    )
    assert through({"a": jax.numpy.ones(1)})["n"] == 3
    return jax.grad(lambda x: through({"a": x})["a"].sum())(jax.numpy.ones(2))


def through_forward(jax: Any) -> Any:
    """Nothing flows back through forward."""

    def loss(w: Any) -> Any:
        made = gx.straight_through(lambda x: [x, w * 2.0], lambda x: [x, jax.numpy.int32(0)])
        return made(jax.numpy.ones(1))[1].sum()

    return jax.grad(loss)(jax.numpy.ones(1))


def without_leaks(jax: Any) -> Any:
    with jax.checking_leaks():
        return jax.jit(jax.grad(lambda x: (CLIP({"a": x})["a"] * WEIGHTS).sum()))(jax.numpy.zeros(2))


def equinox_module(jax: Any) -> Any:
    equinox = pytest.importorskip("equinox")
    dense = equinox.nn.Linear(1, 2, use_bias=False, key=jax.random.key(0))
    model = equinox.nn.Sequential([dense, equinox.nn.Lambda(CLIP)])
    assert type(gx.on_backward(gx.clip_global_norm(1.0))(dense)) is type(dense)  # a module is a tree of arrays
    found = equinox.filter_jit(equinox.filter_grad(lambda m: (m(jax.numpy.ones(1)) * WEIGHTS).sum()))(model)
    return found[0].weight[:, 0]


def itself(function: Function) -> Function:
    return function


CLIPPED, OF_TRACERS = [0.6, 0.8], [[60.0, 20.0], [4.5, 1.5]]
JAX: dict[str, tuple[Function, list[Any]]] = {
    "a traced limit": (lambda jax: jax.jit(functools.partial(slope, jax))(1.0), CLIPPED),
    "limits under vmap": (
        lambda jax: jax.vmap(functools.partial(slope, jax))(np.float32([1.0, 2.0])), [[0.6, 0.8], [1.2, 1.6]]
    ),
    "limits in a scan": (
        lambda jax: jax.lax.scan(lambda c, limit: (c, slope(jax, limit)), 0.0, np.float32([1.0, 2.0]))[1],
        [[0.6, 0.8], [1.2, 1.6]],
    ),
    "tracers from within the gradient": (lambda jax: of_tracers(jax, itself), OF_TRACERS),
    "such tracers, compiled": (lambda jax: of_tracers(jax, jax.jit), OF_TRACERS),
    "scan": (lambda jax: scanned(jax, itself, itself), CLIPPED),
    "scan, compiled": (lambda jax: scanned(jax, itself, jax.jit), CLIPPED),
    "checkpoint": (lambda jax: scanned(jax, jax.checkpoint, itself), CLIPPED),
    "checkpoint, compiled": (lambda jax: scanned(jax, jax.checkpoint, jax.jit), CLIPPED),
    "an unsigned scale": (
        lambda jax: jax.grad(lambda x: gx.reverse_gradient(x, np.uint8(2)).sum())(jax.numpy.ones(1)), [-2.0]
    ),
    "no leaks": (without_leaks, CLIPPED),
    "a tree straight through": (through_a_tree, [2.0, 2.0]),
    "nothing through forward": (through_forward, [0.0]),
    "equinox": (equinox_module, CLIPPED),
}  # fmt: skip


@pytest.mark.parametrize("name", JAX)
def test_in_jax(name: str) -> None:
    found, wanted = JAX[name]
    assert_ulp(found(pytest.importorskip("jax")), wanted)


# --- PyTorch's modules, compiled from cold ---------------------------------------------------------------------------


def test_modules(torch: Any) -> None:
    layers = (gx.torch.GradientTransform(gx.clip_norm(1.0)), gx.torch.GradientReversal(0.5))
    model = torch.nn.Sequential(*layers)
    x = torch.zeros(2, requires_grad=True)
    (model(x) * torch.tensor(WEIGHTS)).sum().backward()
    assert_ulp(x.grad, [-0.6, -0.8])
    assert "clip_norm(1.0)" in repr(model)
    assert "scale=0.5" in repr(model)
    assert model.state_dict()["1.scale"] == 0.5
    assert repr(pickle.loads(pickle.dumps(model))) == repr(model)
    layers[1].scale.fill_(2.0)
    x.grad = None
    (model(x) * torch.tensor(WEIGHTS)).sum().backward()
    assert_ulp(x.grad, [-0.6, -0.8])
    with pytest.raises(TypeError, match="stateless"):
        gx.torch.GradientTransform(gx.trace(0.9))
    y = torch.zeros(2, requires_grad=True)
    layers[1](y).sum().backward()
    assert y.grad.tolist() == [-2.0, -2.0]


@slow(INDUCTOR)
@pytest.mark.timeout(300)
def test_compiled_from_cold(torch: Any) -> None:
    """In a new process, the first trace covers everything without a graph break."""
    code = """
import torch, gradxform as gx
layer = torch.nn.Sequential(gx.torch.GradientTransform(gx.clip_norm(1.0)), gx.torch.GradientReversal(0.5))
sign = gx.straight_through(torch.sign, gx.clip_value(1.0))
f = torch.compile(lambda x: (layer(x) * torch.tensor([30.0, 40.0])).sum() + sign(x).sum(), fullgraph=True)
x = torch.zeros(2, requires_grad=True)
f(x).backward()
print([round(v, 6) for v in x.grad.tolist()])
"""
    assert python("-c", code).stdout.strip() == "[0.4, 0.2]"


def test_vmap_in_pytorch(torch: Any) -> None:
    through = gx.straight_through(torch.round, lambda x: x**2)
    x = torch.tensor([1.4, 2.6])
    assert_ulp(torch.func.vmap(torch.func.grad(through))(x), 2 * x)
    assert torch.func.vmap(through)(x).tolist() == [1.0, 3.0]
    y = through(x.clone().requires_grad_())
    y.mul_(2.0)  # the output has its own memory
    limits = torch.tensor([1.0, 2.0])
    slope = torch.func.grad(lambda x, c, w: (gx.on_backward(gx.clip_norm(c))(x) * w).sum())
    found = torch.func.vmap(slope, (None, 0, None))(torch.zeros(2), limits, torch.tensor(WEIGHTS))
    assert_ulp(found, [[0.6, 0.8], [1.2, 1.6]])


# --- batches of some and not of others -------------------------------------------------------------------------------


def test_a_batch_of_some_leaves_and_limits_alone(jax: Any, torch: Any, jnp: Any) -> None:
    """The gradient of an unbatched leaf is transformed per example and then summed."""
    ones = jnp.ones((5, 2))

    def loss(tx: Any, weight: Any, data: Any) -> Any:
        both = gx.on_backward(tx)({"w": weight, "d": data})
        return (both["w"] * both["d"]).sum()

    for tx, wanted in ((gx.clip_global_norm(1e9), [5.0, 5.0]), (gx.clip_global_norm(1.0), [2.5, 2.5])):
        found = jax.grad(lambda w, tx=tx: jax.vmap(lambda d: loss(tx, w, d))(ones).sum())(jnp.ones(2))
        assert_ulp(found, wanted)
        weight = torch.ones(2, requires_grad=True)
        torch.func.vmap(lambda d, w=weight, tx=tx: loss(tx, w, d))(torch.ones(5, 2)).sum().backward()
        assert_ulp(weight.grad, wanted)
    reverse = jax.vmap(lambda x, s: gx.reverse_gradient(x, s).sum(), (None, 0))
    assert jax.grad(lambda x: reverse(x, jnp.ones(3)).sum())(jnp.ones(2)).tolist() == [-3.0, -3.0]
    limits = jax.vmap(lambda x, c: (gx.on_backward(gx.clip_norm(c))(x) * WEIGHTS).sum(), (None, 0))
    assert_ulp(jax.grad(lambda x: limits(x, jnp.array([1.0, 1e9])).sum())(jnp.zeros(2)), [30.6, 40.8])


# --- what a review found ---------------------------------------------------------------------------------------------


@slow(EAGER_JAX, lambda framework, row: framework == "jax" and row not in first())
@pytest.mark.parametrize("row", [row for row in STATELESS if not row.matrix], ids=str)
@pytest.mark.parametrize("framework", EAGER)
def test_every_stateless_transform(framework: str, row: Row) -> None:
    """The backward pass applies the transform to the gradients."""
    tree = parity.named_leaves(few("float32"))

    def loss(given: Any, weights: Any) -> Any:
        same = gx.on_backward(row.tx)(given)
        parts = [total(same[path] * weights[path]) for path in sorted(given)]
        return sum(parts[1:], parts[0])

    zeros = {path: np.zeros_like(leaf) for path, leaf in tree.items()}
    found = EAGER[framework](loss, zeros, tree)[0]
    assert_ulp(found, row.tx(tree), ulp=row.budget("float32"))


def test_reference_variables_of_a_v1_graph(tf: Any) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=[0.0, 0.0], use_resource=False)
        clipped, reversed_ = (tf.reduce_sum(f(x) * WEIGHTS) for f in (CLIP, gx.reverse_gradient))
        session.run(x.initializer)
        found = session.run([tf.gradients(clipped, x)[0], tf.gradients(reversed_, x)[0]])
        assert tf.gradients(tf.reduce_sum(gx.stop_gradient(x)), x) == [None]
    assert_ulp(found[0], [0.6, 0.8])
    assert found[1].tolist() == [-30.0, -40.0]


@pytest.mark.parametrize("variable", [True, False])
def test_a_limit_of_tensorflow_in_a_loop_and_a_branch(variable: bool, tf: Any) -> None:
    clip = gx.on_backward(gx.clip_norm(tf.Variable(1.0) if variable else tf.constant(1.0)))

    def loop(x: Any) -> Any:
        return tf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, clip(c)), (0, x))[1]

    def branch(x: Any) -> Any:
        return tf.cond(x[0] >= 0.0, lambda: clip(x), lambda: x)

    for function in (loop, branch):

        @tf.function(autograph=False)
        def slope(x: Any, function: Any = function) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(function(x) * WEIGHTS)
            return tape.gradient(loss, x)

        assert_ulp(slope(tf.zeros(2)), [0.6, 0.8])


@slow(INDUCTOR)
def test_a_number_that_changes_is_compiled_once_or_twice_and_never_breaks_the_graph(torch: Any) -> None:
    x, w = torch.zeros(2, requires_grad=True), torch.tensor(WEIGHTS)
    reverse = torch.compile(lambda x, s: (gx.reverse_gradient(x, s) * w).sum(), fullgraph=True)
    clip = torch.compile(lambda x, c: (gx.on_backward(gx.clip_norm(c))(x) * w).sum(), fullgraph=True)
    for size in (0.5, 1.0, 2.0):
        for function, wanted in ((reverse, -size * WEIGHTS), (clip, size * WEIGHTS / 50)):
            x.grad = None
            function(x, size).backward()
            assert_ulp(x.grad, wanted)


def test_the_input_is_not_held(torch: Any) -> None:
    x = torch.zeros(2, requires_grad=True)
    between = x * 2.0
    held = weakref.ref(between)
    y = CLIP(between)
    del between
    gc.collect()
    assert held() is None
    (y * torch.tensor(WEIGHTS)).sum().backward()
    assert_ulp(x.grad, [1.2, 1.6])


def test_each_of_two_shards_is_clipped_by_itself(jax: Any) -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np, gradxform as gx
spec, mesh = jax.sharding.PartitionSpec, jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
clip = jax.shard_map(gx.on_backward(gx.clip_norm(1.0)), mesh=mesh, in_specs=spec("i"), out_specs=spec("i"))
w = np.float32([30, 40, 0.3, 0.4])
print(len(jax.devices()), jax.jit(jax.grad(lambda x: jnp.sum(clip(x) * w)))(jnp.zeros(4)).round(5).tolist())
"""
    flags = "--xla_force_host_platform_device_count=2"
    found = python("-c", code, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    count, _, values = found.stdout.strip().partition(" ")
    assert count == "2", found.stderr[-2000:]
    np.testing.assert_allclose(json.loads(values), [0.6, 0.8, 0.3, 0.4], atol=1e-5)
