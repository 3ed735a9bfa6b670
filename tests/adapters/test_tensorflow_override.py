"""gx.tensorflow.gradient_function and override_gradients: gradients of single ops, in graphs."""

from __future__ import annotations

import contextlib
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


HOW: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gradient_function": registered,
    "override_gradients": gx.tensorflow.override_gradients,
}


@pytest.fixture(params=HOW)
def override(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], Any]:
    return HOW[request.param]


# --- one function, every mode ----------------------------------------------------------------------------------------

Built = Callable[[Any], tuple[Any, Any]]
"""A function from an input to an output, with the gradient of the output."""


def in_session(build: Built, *values: Any) -> list[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        places = [v1.placeholder(tf.float32, np.shape(value)) for value in values]
        out, upstream = build(*places)
        gradients = tf.gradients(out, places, upstream, unconnected_gradients="zero")
        return session.run([out, *gradients], dict(zip(places, values, strict=True)))


def in_function(build: Built, *values: Any) -> list[Any]:
    @tf.function
    def run(*places: Any) -> Any:
        out, upstream = build(*places)
        return out, *tf.gradients(out, list(places), upstream, unconnected_gradients="zero")

    return list(run(*map(tf.constant, values)))


def in_xla(build: Built, *values: Any) -> list[Any]:
    @tf.function(jit_compile=True)
    def run(*places: Any) -> Any:
        out, upstream = build(*places)
        return out, *tf.gradients(out, list(places), upstream, unconnected_gradients="zero")

    return list(run(*map(tf.constant, values)))


def with_a_tape_around(build: Built, *values: Any) -> list[Any]:
    places = list(map(tf.constant, values))
    with tf.GradientTape() as tape:
        tape.watch(places)
        out, upstream = tf.function(build)(*places)
    return [out, *tape.gradient(out, places, upstream, unconnected_gradients="zero")]


MODES: dict[str, Callable[..., list[Any]]] = {
    "session": in_session,
    "function": in_function,
    "XLA": in_xla,
    "tape around": with_a_tape_around,
}


@pytest.fixture(params=MODES)
def run(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    return MODES[request.param]


TRANSFORMS = [
    (gx.scale(5.0), W, W * 5),
    (CLIP, W, [0.1, 0.1]),
    (gx.clip_norm(1.0), W, CLIPPED),
    (gx.clip_norm(9.0), W, W),
    (gx.chain(gx.clip_value(3.0), gx.clip_global_norm(1.0), gx.scale(-2.0)), W, -np.sqrt(2) * np.ones(2)),
    (gx.stop(), W, [0.0, 0.0]),
    (gx.stop(), np.float32([np.nan, 1.0]), [0.0, 0.0]),
    (gx.identity(), W, W),
    (gx.zero_nonfinite(), np.float32([np.nan, 1.0]), [0.0, 1.0]),
]


@pytest.mark.parametrize(("tx", "upstream", "wanted"), TRANSFORMS, ids=lambda value: repr(value)[:40])
def test_the_gradient_of_identity_is_replaced(run: Any, override: Any, tx: Any, upstream: Any, wanted: Any) -> None:
    x = np.float32([1e-40, -0.0])

    def build(given: Any) -> Any:
        with override({"Identity": tx}):
            out = tf.identity(given)
        return out, tf.constant(upstream)

    out, gradient = run(build, x)
    assert bits(out) == bits(x)
    assert_ulp(gradient, np.float32(wanted))


def test_in_a_variable_that_a_v1_optimizer_trains() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.float32([0.0, 0.0]), use_resource=False)
        with gx.tensorflow.override_gradients({"Identity": gx.clip_norm(1.0)}):
            read = tf.identity(w)
        loss = tf.reduce_sum(read * W)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert_ulp(session.run(w), -CLIPPED)


# --- several types, several outputs ----------------------------------------------------------------------------------


def test_several_types_at_once_with_sign_as_straight_through(run: Any, override: Any) -> None:
    x = np.float32([-0.3, 2.0])

    def build(given: Any) -> Any:
        with override({"Identity": gx.clip_value(1.5), "Sign": gx.identity(), "Round": gx.scale(-1.0)}):
            out = tf.identity(tf.sign(given)) + tf.round(given)
        return out, tf.constant([1.0, 3.0])

    out, gradient = run(build, x)
    assert np.asarray(out).tolist() == [-1.0, 3.0]
    assert np.asarray(gradient).tolist() == [0.0, -1.5]


@pytest.mark.parametrize(
    ("tx", "wanted"),
    [
        (gx.clip_global_norm(1.0), [np.float32([3.0]) / 13, np.float32([4.0, 12.0]) / 13]),
        (gx.clip_norm(1.0), [[1.0], np.float32([4.0, 12.0]) / np.float32(160**0.5)]),
        (gx.masked(gx.scale(2.0), "**/pair/1"), [[3.0], [8.0, 24.0]]),
        (gx.freeze("**/0"), [[0.0], [4.0, 12.0]]),
    ],
    ids=repr,
)
def test_several_outputs_of_one_op_are_one_tree(override: Any, tx: Any, wanted: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = v1.placeholder(tf.float32, [1]), v1.placeholder(tf.float32, [2])
        with tf.name_scope("scope"), override({"IdentityN": tx}):
            outputs = tf.identity_n([a, b], name="pair")
        gradients = tf.gradients(outputs, [a, b], [tf.constant([3.0]), tf.constant([4.0, 12.0])])
        values = session.run([*outputs, *gradients], {a: [7.0], b: [8.0, 9.0]})
    assert [value.tolist() for value in values[:2]] == [[7.0], [8.0, 9.0]]
    for value, expected in zip(values[2:], wanted, strict=True):
        assert_ulp(value, np.float32(expected))


def test_an_output_that_nothing_uses_counts_as_zero(override: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = tf.constant([7.0]), tf.constant([8.0, 9.0])
        with override({"IdentityN": gx.clip_global_norm(1.0)}):
            _, second = tf.identity_n([a, b])
        found = session.run(tf.gradients(second, [a, b], tf.constant(W), unconnected_gradients="zero"))
    assert found[0].tolist() == [0.0]
    assert_ulp(found[1], CLIPPED)


def test_the_path_is_the_name_of_the_op(override: Any) -> None:
    seen: list[str] = []
    tx = gx.masked(gx.identity(), lambda path, leaf: bool(seen.append(path)))
    with tf.Graph().as_default():
        x = tf.constant(W)
        with tf.name_scope("encoder"), override({"Identity": tx}):
            y = tf.identity(x, name="gate")
        tf.gradients(y, x)
    assert seen == ["encoder/gate"]


def test_each_op_is_clipped_by_itself(run: Any) -> None:
    def build(x: Any) -> Any:
        with gx.tensorflow.override_gradients({"Identity": gx.clip_norm(1.0)}):
            out = tf.identity(x) + 2.0 * tf.identity(x)
        return out, tf.constant(W)

    _, gradient = run(build, W)
    assert_ulp(gradient, 2 * CLIPPED)


# --- where it begins and ends ----------------------------------------------------------------------------------------


def test_the_override_ends_with_an_error_too() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant(W)
        with pytest.raises(KeyError), gx.tensorflow.override_gradients({"Identity": gx.scale(10.0)}):
            raise KeyError("own")
        assert session.run(tf.gradients(tf.identity(x), x)[0]).tolist() == [1.0, 1.0]


def test_contexts_within_each_other(run: Any, override: Any) -> None:
    def build(x: Any) -> Any:
        with override({"Identity": gx.scale(10.0), "Sign": gx.identity()}):
            outer = tf.identity(x)
            with override({"Identity": gx.scale(100.0)}):
                inner, sign = tf.identity(x), tf.sign(x)
            after = tf.identity(x)
        return tf.stack([outer, inner, sign, after, tf.identity(x)]), tf.ones((5, 2))

    _, gradient = run(build, W)
    assert np.asarray(gradient).tolist() == [122.0, 122.0]


def test_graphs_do_not_share_their_overrides() -> None:
    one, other = tf.Graph(), tf.Graph()
    with one.as_default(), gx.tensorflow.override_gradients({"Identity": gx.scale(10.0)}):
        with other.as_default(), v1.Session() as session:
            x = tf.constant(W)
            assert session.run(tf.gradients(tf.identity(x), x)[0]).tolist() == [1.0, 1.0]
        x = tf.constant(W)
        slope = tf.gradients(tf.identity(x), x)[0]
        with v1.Session(graph=one) as session:
            assert session.run(slope).tolist() == [10.0, 10.0]


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


@pytest.mark.parametrize("around", [False, True], ids=["tf.gradients", "tape around"])
@pytest.mark.parametrize("make", [gx.clip_norm, gx.clip_value])
def test_a_limit_that_is_a_variable_changes_without_a_retrace(override: Any, make: Any, around: bool) -> None:
    limit, traces = tf.Variable(1.0), []

    @tf.function
    def run(x: Any) -> Any:
        traces.append(1)
        with override({"Identity": make(limit)}):
            y = tf.identity(x) * [0.0, 4.0]
        return y if around else tf.gradients(y, x)[0]

    def slope() -> Any:
        x = tf.constant(W)
        if not around:
            return run(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        return tape.gradient(y, x)

    assert slope().numpy().tolist() == [0.0, 1.0]
    seen = len(traces)
    limit.assign(2.0)
    assert slope().numpy().tolist() == [0.0, 2.0]
    assert len(traces) == seen


# --- control flow, shapes, dtypes ------------------------------------------------------------------------------------


def test_within_a_branch(run: Any) -> None:
    def build(x: Any) -> Any:
        def yes() -> Any:
            with gx.tensorflow.override_gradients({"Identity": gx.clip_norm(1.0)}):
                return tf.identity(x)

        return tf.cond(tf.reduce_sum(x) > 0.0, yes, lambda: 2.0 * x), tf.constant(W)

    assert_ulp(run(build, W)[1], CLIPPED)
    assert_ulp(run(build, -W)[1], 2 * W)


@pytest.mark.parametrize("mode", ["session", "function", "tape around"])
def test_within_a_loop_each_turn_is_clipped(override: Any, mode: str) -> None:
    def build(x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            with override({"Identity": gx.clip_norm(1.0)}):
                return i + 1, tf.identity(y) * 3.0

        _, out = tf.while_loop(lambda i, y: i < 3, body, [0, x])
        return out, tf.constant(W)

    out, gradient = MODES[mode](build, W)
    assert np.asarray(out).tolist() == [81.0, 108.0]
    assert_ulp(gradient, CLIPPED)


def test_unknown_shapes(override: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32)
        with override({"Identity": gx.chain(gx.clip_norm(1.0), gx.clip_value(0.7))}):
            y = tf.identity(x)
        slope = tf.gradients(y, x, x)[0]
        assert_ulp(session.run(slope, {x: W}), [0.6, 0.7])
        assert_ulp(session.run(slope, {x: [[3.0], [4.0]]}), [[0.6], [0.7]])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64, tf.complex64])
def test_dtypes(override: Any, dtype: Any) -> None:
    @tf.function
    def slope(x: Any) -> Any:
        with override({"Identity": gx.clip_norm(1.0)}):
            y = tf.identity(x)
        return tf.gradients(y, x, x)[0]

    x = tf.cast(tf.constant(W), dtype)
    found = slope(x)
    assert found.dtype == dtype
    assert_ulp(found, gx.clip_norm(1.0)(np.asarray(x)), ulp=1)


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


def test_a_sparse_gradient_of_a_table(override: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.placeholder(tf.float32, [4, 1])
        with override({"Identity": gx.clip_norm(1.0)}):
            read = tf.identity(table)
        loss = tf.reduce_sum(tf.gather(read, [1, 1, 3]) * [[3.0], [3.0], [8.0]])
        gradient = tf.convert_to_tensor(tf.gradients(loss, table)[0])
        found = session.run(gradient, {table: np.zeros((4, 1))})
    assert_ulp(found, np.float32([[0.0], [0.6], [0.0], [0.8]]))


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


OPS: dict[str, tuple[str, Any, str]] = {
    "Mul": ("Mul", lambda x: tf.multiply(x, 2.0, name="op"), "'scope/op' of type Mul has 2 inputs and 1 outputs"),
    "Unpack": ("Unpack", lambda x: tf.unstack(x, name="op"), "'scope/op' of type Unpack has 1 inputs and 2 outputs"),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_of_unequal_inputs_and_outputs_are_named(override: Any, name: str) -> None:
    kind, make, words = OPS[name]

    def slope(x: Any) -> Any:
        with tf.name_scope("scope"), override({kind: CLIP}):
            y = make(x)
        return tf.gradients(y, x)

    with pytest.raises(ValueError, match=words):
        tf.function(slope)(tf.constant(W))
    with tf.Graph().as_default(), pytest.raises(ValueError, match=words):
        slope(tf.constant(W))


def test_a_pattern_that_matches_no_op() -> None:
    with tf.Graph().as_default():
        x = tf.constant(W)
        with gx.tensorflow.override_gradients({"Identity": gx.freeze("decoder/**")}):
            y = tf.identity(x, name="gate")
        with pytest.raises(ValueError, match=r"'decoder/\*\*' matches no path; the paths are 'gate'"):
            tf.gradients(y, x)


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

BUILT_WITHIN = {
    "cond": lambda x: tf.cond(x[0] > 0, lambda: tf.square(x), lambda: x),
    "while_loop": lambda x: tf.while_loop(lambda i, c: i < 2, lambda i, c: (i + 1, tf.square(c)), [0, x])[1],
    "map_fn": lambda x: tf.map_fn(tf.square, x),
    "function": lambda x: tf.function(tf.square)(x),
    "function in a function": lambda x: tf.function(lambda x: tf.function(tf.square)(x))(x),
}


@pytest.mark.parametrize("name", BUILT_WITHIN)
def test_a_function_that_is_built_in_the_context_is_refused(name: str) -> None:
    """TensorFlow does not apply the map there, and would silently ignore it."""

    @tf.function
    def build(x: Any) -> Any:
        with gx.tensorflow.override_gradients({"Square": gx.stop()}):
            return BUILT_WITHIN[name](x)

    with pytest.raises(RuntimeError, match=r"has the op '.*Square' of type 'Square', but does not inherit"):
        build(tf.constant([3.0]))


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


def test_equal_transformations_share_a_registered_name() -> None:
    from tensorflow.python.framework import ops

    def build() -> None:
        with tf.Graph().as_default(), gx.tensorflow.override_gradients({"Identity": gx.clip_value(0.123)}):
            tf.identity(tf.constant([3.0]))

    build()
    before = len(ops.gradient_registry.list())
    build()
    assert len(ops.gradient_registry.list()) == before
