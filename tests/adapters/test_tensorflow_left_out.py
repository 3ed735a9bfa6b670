"""`GradientProcessor`: a skipped step does not run the optimizer; metrics in a graph belong to their step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import array

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
v1 = tf.compat.v1

INF = float("inf")
STEPS = [[3.0, 4.0], [INF, 1.0], [1.0, 0.0], [30.0, 40.0], [0.5, 0.5]]
CASES: dict[str, tuple[Any, list[bool]]] = {
    "skip_nonfinite": (gx.skip_nonfinite(gx.clip_norm(1.0)), [True, False, True, True, True]),
    "skip_large": (gx.chain(gx.skip_large(gx.trace(0.5), 10.0)), [True, False, True, False, True]),
    "accumulate": (gx.accumulate(gx.zero_nonfinite(), 2), [False, True, False, True, False]),
    "nothing": (gx.zero_nonfinite(), [True] * 5),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.AdamW(0.1, weight_decay=0.1), initial_scale=1.0
    ),
    "v1": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
}
MODES = {"eager": lambda f: f, "function": tf.function, "XLA": tf.function(jit_compile=True)}


RUNS = [(name, optimizer, mode) for name in CASES for optimizer in OPTIMIZERS for mode in ("eager", "function")]
RUNS += [("accumulate", "AdamW", "XLA"), ("skip_large", "v1", "XLA")]


def expected(name: str, optimizer: Any) -> list[Any]:
    """The weights after each step of an optimizer that does not run on skipped steps."""
    tx, due = CASES[name]
    w = tf.Variable([1.0, 1.0], name="w")
    processor, found = gx.tensorflow.GradientProcessor(tx, [w]), []
    for gradient, applied in zip(STEPS, due, strict=True):
        pairs = processor([(tf.constant(gradient), w)])
        if applied:
            optimizer.apply_gradients(pairs)
        found.append(array(w))
    return found


@pytest.mark.parametrize(("name", "optimizer", "mode"), RUNS)
def test_a_step_that_is_left_out_leaves_the_optimizer_alone(name: str, optimizer: str, mode: str) -> None:
    tx, due = CASES[name]
    w, used = tf.Variable([1.0, 1.0], name="w"), OPTIMIZERS[optimizer]()
    processor = gx.tensorflow.GradientProcessor(tx, [w])

    def step(gradient: Any) -> None:
        processor.apply_gradients(used, [(gradient, w)])

    step = MODES[mode](step)
    before = array(w)
    for gradient, applied, wanted in zip(STEPS, due, expected(name, OPTIMIZERS[optimizer]()), strict=True):
        step(tf.constant(gradient))
        assert applied or array(w).tobytes() == before.tobytes()
        np.testing.assert_allclose(array(w), wanted, rtol=0, atol=2e-6)  # XLA fuses the optimizer's own arithmetic
        before = array(w)
    if optimizer == "AdamW":
        assert int(used.iterations) == sum(due)


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_in_a_session(name: str, use_resource: bool) -> None:
    tx, due = CASES[name]
    wanted = expected(name, OPTIMIZERS["v1"]())
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.float32([1.0, 1.0]), use_resource=use_resource)
        given = v1.placeholder(tf.float32, [2])
        processor = gx.tensorflow.GradientProcessor(tx, [w])
        train = processor.apply_gradients(OPTIMIZERS["v1"](), [(given, w)])
        updated = tf.constant(True) if tx is CASES["nothing"][0] else gx.has_updated(processor)
        session.run(v1.global_variables_initializer())
        for gradient, applied, right in zip(STEPS, due, wanted, strict=True):
            _, found = session.run([train, updated], {given: gradient})
            assert bool(found) is applied
            np.testing.assert_allclose(session.run(w), right, rtol=1e-6)


def test_masked_parts_leave_nothing_out() -> None:
    made = [tf.Variable([1.0], name=name) for name in ("a", "b")]
    processor = gx.tensorflow.GradientProcessor(gx.masked(gx.accumulate(gx.identity(), 2), "a"), made)
    processor.apply_gradients(keras.optimizers.SGD(1.0), [(tf.constant([1.0]), v) for v in made])
    assert [float(v[0]) for v in made] == [1.0, 0.0]


def test_what_is_no_optimizer() -> None:
    w = tf.Variable([1.0])
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])
    with pytest.raises(TypeError, match=r"write processor\.apply_gradients\(optimizer, grads_and_vars\)"):
        processor.apply_gradients([(tf.constant([1.0]), w)], keras.optimizers.SGD())


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("fetched", ["beside the train op", "alone"])
def test_metrics_of_a_session_are_those_of_the_step_they_are_fetched_with(fetched: str, use_resource: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.zeros(2, np.float32), use_resource=use_resource)
        given = v1.placeholder(tf.float32, [2])
        processor = gx.tensorflow.GradientProcessor(gx.chain(gx.measure(gx.clip_norm(1.0)), gx.trace(0.5)), [w])
        before = gx.metrics(processor)["clip_norm/norm_before"]
        train = v1.train.GradientDescentOptimizer(1.0).apply_gradients(processor([(given, w)]))
        norm, last = (gx.metrics(held)["clip_norm/norm_before"] for held in (processor, processor.state))
        session.run(v1.global_variables_initializer())
        for step in (1.0, 2.0, 3.0):
            feed = {given: [3.0 * step, 4.0 * step]}
            old = session.run(w)
            found, *_ = session.run([norm, train] if fetched == "beside the train op" else [norm], feed)
            assert found == 5.0 * step
            if fetched == "alone":  # which does not advance the state
                assert session.run(w).tolist() == old.tolist()
                session.run(train, feed)
            assert session.run(last) == session.run(before) == 5.0 * step


def test_metrics_within_a_loop_of_a_graph_are_those_of_the_variables() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.zeros(2, np.float32), use_resource=True)
        processor = gx.tensorflow.GradientProcessor(gx.measure(gx.clip_norm(1.0)), [w])

        def body(i: Any) -> Any:
            ((gradient, _),) = processor([(tf.constant([3.0, 4.0]), w)])
            with tf.control_dependencies([gradient]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 2, body, [0])
        norm = gx.metrics(processor)["clip_norm/norm_before"]
        session.run(v1.global_variables_initializer())
        session.run(loop)
        assert session.run(norm) == 5.0
