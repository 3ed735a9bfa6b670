"""gx.tensorflow.gradient_function and override_gradients: gradients of single ops, in graphs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_ulp, bits

import gradxform as gx

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

CLIP = gx.clip_value(0.1)
W = np.float32([3.0, 4.0])
CLIPPED = np.float32([0.6, 0.8])
numbers = itertools.count()


def register(tx: Any) -> str:
    """A unique name: TensorFlow's registry accepts each name once."""
    name = f"test_override_{next(numbers)}"
    tf.RegisterGradient(name)(gx.tensorflow.gradient_function(tx))
    return name


def registered(overrides: dict[str, Any]) -> Any:
    """Register and override by hand."""
    names = {kind: register(tx) for kind, tx in overrides.items()}
    return v1.get_default_graph().gradient_override_map(names)


Override = Callable[[dict[str, Any]], Any]
HOW: dict[str, Override] = {
    "gradient_function": registered,
    "override_gradients": gx.tensorflow.override_gradients,
}


@pytest.fixture(params=HOW)
def override(request: pytest.FixtureRequest) -> Override:
    return HOW[request.param]


# --- gradients in every mode -----------------------------------------------------------------------------------------

Build = Callable[[Override, Any], tuple[Any, Any]]
"""A function from an input to an output, with the gradient of the output."""


def gradients(build: Build, override: Override, x: Any) -> tuple[Any, Any]:
    out, upstream = build(override, x)
    return out, tf.convert_to_tensor(tf.gradients(out, x, upstream, unconnected_gradients="zero")[0])


def in_session(build: Build, override: Override, value: Any) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, np.shape(value))
        return session.run(gradients(build, override, x), {x: value})


def in_function(build: Build, override: Override, value: Any, jit_compile: bool = False) -> Any:
    return tf.function(lambda x: gradients(build, override, x), jit_compile=jit_compile)(tf.constant(value))


def with_a_tape_around(build: Build, override: Override, value: Any) -> Any:
    x = tf.constant(value)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out, upstream = tf.function(lambda x: build(override, x))(x)
    return out, tf.convert_to_tensor(tape.gradient(out, x, upstream, unconnected_gradients="zero"))


MODES: dict[str, Callable[..., Any]] = {
    "session": in_session,
    "function": in_function,
    "XLA": functools.partial(in_function, jit_compile=True),
    "tape around": with_a_tape_around,
}


def identity(override: Override, x: Any, *, tx: Any, upstream: Any = W) -> Any:
    with tf.name_scope("encoder"), override({"Identity": tx}):
        out = tf.identity(x, name="gate")
    return out, tf.constant(upstream)


def three_types(override: Override, x: Any) -> Any:
    with override({"Identity": gx.clip_value(1.5), "Sign": gx.identity(), "Round": gx.scale(-1.0)}):
        out = tf.identity(tf.sign(x)) + tf.round(x)
    return out, tf.constant([1.0, 3.0])


def two_outputs(override: Override, x: Any, *, tx: Any, used: slice = slice(None)) -> Any:
    """One tree, in which an output that nothing uses counts as zero."""
    with tf.name_scope("scope"), override({"IdentityN": tx}):
        outputs = tf.identity_n([x[:1], x[1:]], name="pair")
    return tf.concat(outputs[used], 0), tf.constant([3.0, 4.0, 12.0][used.start or 0 :])


def each_by_itself(override: Override, x: Any) -> Any:
    with override({"Identity": gx.clip_norm(1.0)}):
        return tf.identity(x) + 2.0 * tf.identity(x), tf.constant(W)


def contexts_within_each_other(override: Override, x: Any) -> Any:
    with override({"Identity": gx.scale(10.0), "Sign": gx.identity()}):
        outer = tf.identity(x)
        with override({"Identity": gx.scale(100.0)}):
            inner, sign = tf.identity(x), tf.sign(x)
        after = tf.identity(x)
    return outer + inner + sign + after + tf.identity(x), tf.ones(2)


def branch(override: Override, x: Any) -> Any:
    return tf.cond(x[0] > 0.0, lambda: each_by_itself(override, x)[0], lambda: 2.0 * x), tf.constant(W)


def loop(override: Override, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        with override({"Identity": gx.clip_norm(1.0)}):
            return i + 1, tf.identity(y) * 3.0

    return tf.while_loop(lambda i, y: i < 3, body, [0, x], maximum_iterations=3)[1], tf.constant(W)


def sparse(override: Override, x: Any) -> Any:
    with override({"Identity": gx.clip_norm(1.0)}):
        read = tf.identity(x)
    return tf.gather(read, [1, 1, 3]), tf.constant([[3.0], [3.0], [8.0]])


SMALL, NAN = np.float32([1e-40, -0.0]), np.float32([np.nan, 1.0])
CASES: dict[str, tuple[Build, Any, Any, Any]] = {  # with an input, its output and its gradient
    **{
        f"{tx!r} of {upstream}": (functools.partial(identity, tx=tx, upstream=upstream), SMALL, SMALL, wanted)
        for tx, upstream, wanted in (
            (gx.scale(5.0), W, W * 5),
            (CLIP, W, [0.1, 0.1]),
            (gx.clip_norm(1.0), W, CLIPPED),
            (gx.clip_norm(9.0), W, W),
            (gx.chain(gx.clip_value(3.0), gx.clip_global_norm(1.0), gx.scale(-2.0)), W, -np.sqrt(2) * np.ones(2)),
            (gx.stop(), W, [0.0, 0.0]),
            (gx.stop(), NAN, [0.0, 0.0]),
            (gx.identity(), W, W),
            (gx.zero_nonfinite(), NAN, [0.0, 1.0]),
            (gx.masked(gx.scale(2.0), "encoder/gate"), W, 2 * W),
        )
    },
    **{
        f"{tx!r} of two outputs": (functools.partial(two_outputs, tx=tx), [7.0, 8.0, 9.0], [7.0, 8.0, 9.0], wanted)
        for tx, wanted in (
            (gx.clip_global_norm(1.0), np.float32([3.0, 4.0, 12.0]) / 13),
            (gx.clip_norm(1.0), [1.0, *(np.float32([4.0, 12.0]) / np.float32(160**0.5))]),
            (gx.masked(gx.scale(2.0), "**/pair/1"), [3.0, 8.0, 24.0]),
            (gx.freeze("**/0"), [0.0, 4.0, 12.0]),
        )
    },
    "one output of two": (
        functools.partial(two_outputs, tx=gx.clip_global_norm(2.0), used=slice(1, None)),
        [7.0, 8.0, 9.0],
        [8.0, 9.0],
        [0.0, *(np.float32([4.0, 12.0]) * np.float32(2 / 160**0.5))],
    ),
    "sign as straight-through beside other types": (three_types, [-0.3, 2.0], [-1.0, 3.0], [0.0, -1.5]),
    "each op by itself": (each_by_itself, W, 3 * W, 2 * CLIPPED),
    "contexts within each other": (contexts_within_each_other, W, 4 * W + 1, [122.0, 122.0]),
    "a branch": (branch, W, 3 * W, 2 * CLIPPED),
    "the other branch": (branch, -W, -2 * W, 2 * W),
    "each turn of a loop": (loop, W, 27 * W, CLIPPED),
    "a sparse gradient": (sparse, np.zeros((4, 1)), np.zeros((3, 1)), [[0.0], [0.6], [0.0], [0.8]]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_an_op_is_replaced(name: str, override: Override, mode: str) -> None:
    build, x, right, wanted = CASES[name]
    out, gradient = MODES[mode](build, override, np.float32(x))
    assert bits(out) == bits(np.float32(right))
    assert_ulp(gradient, np.float32(wanted))


def test_in_a_variable_that_a_v1_optimizer_trains() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.float32([0.0, 0.0]), use_resource=False)
        with gx.tensorflow.override_gradients({"Identity": gx.clip_norm(1.0)}):
            read = tf.identity(w)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(read * W))
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert_ulp(session.run(w), -CLIPPED)


def test_the_override_is_of_one_graph_and_ends_with_an_error_too() -> None:
    one, other = tf.Graph(), tf.Graph()
    with one.as_default(), gx.tensorflow.override_gradients({"Identity": gx.scale(10.0)}):
        with other.as_default(), v1.Session() as session:
            assert session.run(gradients(plain, None, tf.constant(W))[1]).tolist() == [1.0, 1.0]
        with v1.Session(graph=one) as session:
            assert session.run(gradients(plain, None, tf.constant(W))[1]).tolist() == [10.0, 10.0]
    with other.as_default(), v1.Session() as session:
        with pytest.raises(KeyError), gx.tensorflow.override_gradients({"Identity": gx.scale(10.0)}):
            raise KeyError("own")
        assert session.run(gradients(plain, None, tf.constant(W))[1]).tolist() == [1.0, 1.0]


def plain(_: Any, x: Any) -> Any:
    return tf.identity(x), None


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_limit_that_is_a_placeholder(override: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x, limit = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.float32, ())
        with override({"Identity": gx.clip_norm(limit)}):
            y = tf.identity(x)
        slope = tf.gradients(y, x, tf.constant(W))[0]
        for value in (1.0, 2.0, 0.0, 100.0):
            wanted = W / 5 * np.float32(min(value, 5.0))
            assert_ulp(session.run(slope, {x: W, limit: value}), wanted)


# --- shapes, dtypes, derivatives -------------------------------------------------------------------------------------


def test_the_second_derivative() -> None:
    weights, point = np.array([20.0, -10.0]), np.array([3.0, 4.0])

    @tf.function
    def slopes(x: Any) -> Any:
        with gx.tensorflow.override_gradients({"Identity": gx.clip_norm(1.0)}):
            y = tf.identity(x)
        first = tf.gradients(tf.reduce_sum(y**2) / 2.0, x)[0]
        return first, tf.gradients(tf.reduce_sum(first * weights), x)[0]

    first, second = slopes(tf.constant(point))
    np.testing.assert_allclose(first, point / 5, rtol=1e-14)
    # The incoming gradient is y, and its own derivative passes through the override again.
    jacobian = (np.eye(2) - np.outer(point, point) / 25) / 5
    wanted = jacobian @ weights
    assert np.linalg.norm(wanted) > 1.0
    np.testing.assert_allclose(second, wanted / np.linalg.norm(wanted), rtol=1e-12)


# --- errors ----------------------------------------------------------------------------------------------------------


def taped(tape_around: bool, tape_within: bool) -> Any:
    @tf.function
    def slope(x: Any) -> Any:
        with tf.GradientTape() if tape_around else contextlib.nullcontext() as outer:
            if outer is not None:
                outer.watch(x)
            with gx.tensorflow.override_gradients({"Identity": CLIP}):
                with tf.GradientTape() if tape_within else contextlib.nullcontext() as inner:
                    if inner is not None:
                        inner.watch(x)
                    y = tf.identity(x * 1.0)
        return (outer or inner).gradient(y, x)

    return slope


@pytest.mark.parametrize("tapes", [(True, False), (False, True)], ids=["around", "within"])
def test_a_tape_in_the_same_function_is_refused(tapes: Any) -> None:
    for x in (tf.constant(W), tf.Variable(W)):
        with pytest.raises(RuntimeError, match=r"gx\.on_backward"):
            taped(*tapes)(x)


def test_tapes_of_what_does_not_go_through_are_let_be() -> None:
    w = tf.Variable(W)

    @tf.function
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            before = tf.identity(w * 2.0)
            with gx.tensorflow.override_gradients({"Identity": CLIP}):
                y, z = tf.identity(x), before * 3.0
        return tf.gradients(y, x)[0], tape.gradient(z, w)

    clipped, plain = both(tf.constant(W))
    assert_ulp(clipped, [0.1, 0.1])
    assert plain.numpy().tolist() == [6.0, 6.0]


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: gx.tensorflow.gradient_function(gx.trace(0.5)), TypeError, "must be stateless"),
    (lambda: gx.tensorflow.gradient_function(0.5), TypeError, "gradient_function"),
    (lambda: entered({"Identity": gx.chain(gx.clip_norm(1.0), gx.ema(0.5))}), TypeError, "stateless"),
    *((lambda tx=tx: entered({"Identity": tx}), TypeError, "") for tx in (0.5, None, "clip")),
    (lambda: entered({3: CLIP}), TypeError, "must be a str, got 3"),
    *((lambda kind=kind: entered({kind: CLIP}), ValueError, "no op of type") for kind in ("identity", "NoSuchOp", "")),
]


def entered(overrides: Any) -> None:
    with tf.Graph().as_default(), gx.tensorflow.override_gradients(overrides):
        pass


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_a_wrong_call_says_what_to_write(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words or None):
        call()


def test_eager_execution_within_run_functions_eagerly_is_refused() -> None:
    @tf.function
    def run(x: Any) -> Any:
        with gx.tensorflow.override_gradients({"Identity": CLIP}):
            return tf.identity(x)

    with pytest.raises(RuntimeError, match=r"gx\.on_backward"):
        run.python_function(tf.constant(W))
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(RuntimeError, match=r"gx\.on_backward"):
            run(tf.constant(W))
    finally:
        tf.config.run_functions_eagerly(False)


def test_after_a_refusal_the_map_is_gone() -> None:
    @tf.function
    def slope(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with (
                pytest.raises(RuntimeError, match="tape"),
                gx.tensorflow.override_gradients({"Identity": gx.scale(10.0)}),
            ):
                tf.identity(x)
        del tape
        return tf.gradients(tf.identity(x), x)[0]

    assert slope(tf.constant(W)).numpy().tolist() == [1.0, 1.0]


# --- what the map does not reach --------------------------------------------------------------------------------------

SQUARE = "has the op '.*Square' of type 'Square', but does not inherit"
"""TensorFlow does not apply the map to functions that are built in the context, and would silently ignore it."""
REFUSED: dict[str, tuple[dict[str, Any], Callable[[Any], Any], str]] = {
    "two inputs": ({"Mul": CLIP}, lambda x: tf.multiply(x, 2.0, name="op"), "'op' of type Mul has 2 inputs and 1 out"),
    "two outputs": ({"Unpack": CLIP}, lambda x: tf.unstack(x, name="op"), "'op' of type Unpack has 1 inputs and 2 out"),
    "a pattern": (
        {"Identity": gx.freeze("decoder/**")},
        lambda x: tf.identity(x, name="gate"),
        r"'decoder/\*\*' matches no path; the paths are 'gate'",
    ),
    "cond": ({"Square": gx.stop()}, lambda x: tf.cond(x[0] > 0, lambda: tf.square(x), lambda: x), SQUARE),
    "while_loop": (
        {"Square": gx.stop()},
        lambda x: tf.while_loop(lambda i, c: i < 2, lambda i, c: (i + 1, tf.square(c)), [0, x])[1],
        SQUARE,
    ),
    "map_fn": ({"Square": gx.stop()}, lambda x: tf.map_fn(tf.square, x), SQUARE),
    "function": ({"Square": gx.stop()}, lambda x: tf.function(tf.square)(x), SQUARE),
    "function in a function": (
        {"Square": gx.stop()},
        lambda x: tf.function(lambda x: tf.function(tf.square)(x))(x),
        SQUARE,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_override_reaches_is_named(name: str) -> None:
    overrides, make, words = REFUSED[name]
    hows = ["override_gradients"] if words == SQUARE else HOW

    def slope(x: Any, how: str) -> Any:
        with HOW[how](overrides):
            y = make(x)
        return tf.gradients(y, x)

    for how in hows:
        with pytest.raises((ValueError, RuntimeError), match=words):
            tf.function(slope)(tf.constant(W), how)
        with tf.Graph().as_default(), pytest.raises((ValueError, RuntimeError), match=words):
            slope(tf.constant(W), how)


def test_functions_without_such_ops_may_be_built() -> None:
    @tf.function
    def slope(x: Any) -> Any:
        with gx.tensorflow.override_gradients({"Square": gx.scale(5.0)}):
            y = tf.square(tf.cond(x[0] > 0, lambda: x * 2.0, lambda: x))
        return tf.gradients(y, x)[0]

    assert slope(tf.constant([3.0])).numpy().tolist() == [10.0]


def test_a_context_without_such_an_op_is_told_of() -> None:
    with tf.Graph().as_default():
        x = tf.constant([3.0])
        with (
            pytest.warns(UserWarning, match="no op of type 'Sign' was made in the context"),
            gx.tensorflow.override_gradients({"Sign": gx.clip_value(0.1)}),
        ):
            tf.identity(x)
