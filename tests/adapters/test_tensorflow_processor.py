"""gx.tensorflow.GradientProcessor: a stateful transformation between computing and applying gradients."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from conformance import TRANSFORMS, ZEROS, drawn
from support import assert_ulp, bits, slow, tensors

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
v1 = tf.compat.v1

W = np.float32([3.0, 4.0])


def variable(value: Any = (0.0, 0.0), name: str = "w") -> Any:
    return tf.Variable(np.asarray(value, np.float32), name=name)


# --- lists of pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_any_iterable_of_pairs_and_of_variables(compiled: bool) -> None:
    made = [variable(name="a"), variable(name="b")]
    for form in (
        tuple,
        iter,
        lambda pairs: zip(*zip(*pairs, strict=True), strict=True),
        lambda pairs: map(list, pairs),
    ):
        processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), (v for v in made))

        def step(first: Any, form: Any = form, processor: Any = processor) -> Any:
            result = processor(form([(first, made[0]), (first * 2, made[1])]))
            assert isinstance(result, list)
            assert [v is own for (_, v), own in zip(result, made, strict=True)] == [True, True]
            return [g for g, _ in result]

        step = tf.function(step) if compiled else step
        step(tf.constant(W))
        assert [g.numpy().tolist() for g in step(tf.constant(W))] == [[4.5, 6.0], [9.0, 12.0]]


@pytest.mark.parametrize("name", ["several", "accumulate", "clip_zscore, per leaf", "add_noise"])
@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_pairs_in_another_order_find_their_own_state(kind: Any, name: str) -> None:
    """A pair that is not there is as good as None."""
    tx, zeros = TRANSFORMS[name], {path: ZEROS[path] for path in ("body/b", "body/w")}
    with contextlib.nullcontext() if kind is tf.Variable else keras.name_scope("body"):
        made = {path: kind(value, name=path if kind is tf.Variable else path[5:]) for path, value in zeros.items()}
    processor, state = gx.tensorflow.GradientProcessor(tx, list(made.values())), tx.init(zeros)
    for step, order in enumerate((["body/b", "body/w"], ["body/w", "body/b"], ["body/w"], ["body/w", "body/b"])):
        given = {path: drawn(step, name)[path] if path in order else None for path in zeros}
        wanted, state = tx.update(given, state)
        result = processor([(tensors("tensorflow", given[path]), made[path]) for path in order])
        assert all(v is made[path] for (_, v), path in zip(result, order, strict=True))
        assert_ulp([g for g, _ in result], [wanted[path] for path in order])


def test_a_state_is_not_set_within_a_graph() -> None:
    w = variable()
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])

    @tf.function
    def step() -> None:
        processor.state = {"trace": {"w": W}}

    with pytest.raises(RuntimeError, match=r"GradientProcessor: set the state eagerly"):
        step()


def test_two_variables_of_one_name_have_a_state_each() -> None:
    made = [tf.Variable([0.0, 0.0], name="w") for _ in range(3)]
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), made)
    for _ in range(2):
        pairs = processor([(W * np.float32(i), v) for i, v in enumerate(made)])  # NumPy's are adopted
    assert [g.numpy().tolist() for g, _ in pairs] == [[0.0, 0.0], [4.5, 6.0], [9.0, 12.0]]
    assert set(processor.state.trace) == {"w", "w_1", "w_2"}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_sparse_gradient_stays_sparse_where_its_transform_lets_it(compiled: bool) -> None:
    table = variable(np.zeros((3, 1)), "table")
    processor = gx.tensorflow.GradientProcessor(gx.clip_zscore(0.5, warmup=1), [table])
    kinds = []

    def step() -> Any:
        rows = tf.IndexedSlices(tf.constant([[3.0], [3.0], [4.0]]), tf.constant([0, 0, 1]), tf.constant([3, 1]))
        ((gradient, _),) = processor([(rows, table)])
        kinds.append(type(gradient))
        return tf.convert_to_tensor(gradient)

    assert bits((tf.function(step) if compiled else step)()) == bits(np.float32([[6.0], [4.0], [0.0]]))
    assert kinds == [tf.IndexedSlices]
    assert_ulp(processor.state.average, np.float32([52.0]) ** 0.5)


def test_parameters_are_the_processors_variables_whatever_the_order() -> None:
    a, b = variable([1.0, 2.0], "a"), variable([3.0, 4.0], "b")
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.add_decayed_weights(0.5)), [a, b])
    zero = tf.zeros(2)
    (second, _), (first, _) = processor([(zero, b), (zero, a)])
    assert [first.numpy().tolist(), second.numpy().tolist()] == [[0.5, 1.0], [1.5, 2.0]]
    ((second, _),) = processor([(zero, b)], params=[tf.constant([9.0, 9.0]), tf.constant([1.0, 1.0])])
    assert second.numpy().tolist() == [0.5, 0.5]


# --- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference variables", "resource variables"])
def test_a_run_of_a_session_moves_the_state_once_whatever_it_fetches(use_resource: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        made = [v1.get_variable(name, (2,), use_resource=use_resource) for name in "ab"]
        processor = gx.tensorflow.GradientProcessor(gx.ema(0.5, debias=False), made)
        before = processor.state
        place = v1.placeholder(tf.float32, (2,))
        (first, _), (second, _) = processor([(place, made[0]), (place * 2.0, made[1])])
        session.run(v1.global_variables_initializer())
        assert session.run(first, {place: [2.0, 4.0]}).tolist() == [1.0, 2.0]
        assert session.run(second, {place: [2.0, 4.0]}).tolist() == [3.0, 6.0]
        assert session.run([second, first], {place: [2.0, 4.0]})[1].tolist() == [1.75, 3.5]
        for state in (before, processor.state):
            assert session.run(state.count) == 3
            assert [x.tolist() for x in session.run(list(state.ema.values()))] == [[1.75, 3.5], [3.5, 7.0]]


# --- the state -------------------------------------------------------------------------------------------------------


def test_its_variables_are_its_state_named_after_their_place_and_none_of_the_models() -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [variable(name="a"), variable(np.zeros((2, 2)), name="b")]

    model, kernel = Model(), keras.Variable(W, name="kernel")
    tx = gx.chain(gx.clip_norm(1.0), gx.trace(0.5), gx.ema(0.9))
    model.processor = processor = gx.tensorflow.GradientProcessor(tx, [*model.layers, kernel], name="momentum")
    assert (processor.name, processor.tx, processor.trainable_variables) == ("momentum", tx, ())
    leaves = [f"{part}_{name}" for part in ("1_trace", "2_ema") for name in ("a", "b", "kernel")]
    assert {v.name for v in processor.variables} == {f"momentum/{leaf}:0" for leaf in ["2_count", "2_divisor", *leaves]}
    assert {tuple(v.shape) for v in processor.variables} == {(2,), (2, 2), ()}
    assert not any(own is v for own in processor.variables for v in (*model.layers, kernel, kernel.value))
    assert (len(model.trainable_variables), len(model.variables)) == (2, 10)
    assert gx.tensorflow.GradientProcessor(gx.clip_norm(1.0), model.layers).variables == ()


# --- checkpoints and saved models ------------------------------------------------------------------------------------


class Trained(tf.Module):
    """A module to save: a variable, a processor, and a step that uses both."""

    def __init__(self, tx: Any) -> None:
        super().__init__()
        self.w = variable([1.0, -1.0])
        self.processor = gx.tensorflow.GradientProcessor(tx, [self.w])

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
    def step(self, gradient: Any) -> Any:
        for result, w in self.processor([(gradient, self.w)]):
            w.assign_sub(0.1 * result)
        return tf.identity(self.w)


@slow("saves and loads models; one stays quick", lambda tx: "skip_nonfinite" not in repr(tx))
@pytest.mark.parametrize(
    "tx",
    [
        gx.chain(gx.trace(0.9), gx.clip_zscore(0.1, warmup=2), gx.scale(lambda t: 1.0 / (1.0 + t))),
        gx.chain(gx.add_noise(0.3, seed=1), gx.accumulate(gx.ema(0.5), 3)),
        gx.chain(gx.masked(gx.trace(0.5), "w"), gx.skip_nonfinite(gx.clip_percentile(40.0, window=3))),
    ],
    ids=lambda tx: tx.arguments[0][1].name,
)
def test_a_saved_model_goes_on_bit_by_bit(tx: Any, tmp_path: Any) -> None:
    model = Trained(tx)
    values = [tf.constant(np.float32([1.0 + i, (-2.0) ** i])) for i in range(6)]
    for value in values[:3]:
        model.step(value)
    tf.saved_model.save(model, str(tmp_path))
    wanted = [bits(model.step(value)) for value in values[3:]]
    loaded = tf.saved_model.load(str(tmp_path))
    assert [bits(loaded.step(value)) for value in values[3:]] == wanted
    assert bits(loaded.w) == bits(model.w)


# --- traces and limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit_compile", [False, True])
def test_limits_and_decays_that_are_variables_change_without_a_retrace(jit_compile: bool) -> None:
    limit, decay, w = tf.Variable(1.0), tf.Variable(0.5), variable()
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(decay), gx.clip_norm(limit)), [w])
    run = tf.function(lambda gradient: processor([(gradient, w)])[0][0], jit_compile=jit_compile)
    assert_ulp(run(tf.constant(W)), W / 5)
    limit.assign(100.0)
    assert run(tf.constant(W)).numpy().tolist() == [4.5, 6.0]
    decay.assign(0.0)
    assert run(tf.constant(W)).numpy().tolist() == [3.0, 4.0]
    assert run.experimental_get_tracing_count() == 1
    assert not any(own is each for own in processor.variables for each in (limit, decay))


@pytest.mark.parametrize("compiled", [False, True])
def test_in_a_loop_of_the_graph(compiled: bool) -> None:
    w = variable()
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])

    def train(steps: Any) -> Any:
        for _ in tf.range(steps):
            for gradient, v in processor([(tf.constant(W), w)]):
                v.assign_sub(gradient)
        return tf.identity(w)

    assert (tf.function(train) if compiled else train)(tf.constant(3)).numpy().tolist() == [-12.75, -17.0]
    assert processor.state.trace["w"].numpy().tolist() == [5.25, 7.0]


# --- errors ----------------------------------------------------------------------------------------------------------


def made_for(*made: Any) -> Any:
    return gx.tensorflow.GradientProcessor(gx.trace(0.5), made)


WRONG_PAIRS: dict[str, tuple[Any, type[Exception], str]] = {
    "stranger": (lambda g, w: [(g, variable(name="stranger"))], ValueError, "'stranger'; .* kernel, other"),
    "twice": (lambda g, w: [(g, w), (g, w)], ValueError, "'kernel' is in two pairs"),
    "short": (lambda g, w: [(g[:1], w)], ValueError, r"'kernel'.*shape.*\(2,\)"),
    "integers": (lambda g, w: [(tf.constant([1, 2]), w)], TypeError, "'kernel'.*int32"),
}


@pytest.mark.parametrize("name", WRONG_PAIRS)
@pytest.mark.parametrize("compiled", [False, True])
def test_refused_pairs_leave_the_state_as_it_is(name: str, compiled: bool) -> None:
    pairs, error, words = WRONG_PAIRS[name]
    w = variable(name="kernel")
    processor = made_for(w, variable(name="other"))
    processor([(tf.constant(W), w)])
    before = bits(list(processor.variables))

    def step() -> Any:
        return processor(pairs(tf.constant(W), w))[0][0]

    with pytest.raises(error, match=words):
        (tf.function(step) if compiled else step)()
    assert bits(list(processor.variables)) == before


def test_a_variable_given_twice() -> None:
    plain, kernel = variable(name="kernel"), keras.Variable(W, name="kernel")
    for first, second in ((plain, plain), (kernel, kernel.value)):
        with pytest.raises(ValueError, match=r"kernel.* is given twice"):
            made_for(variable(name="other"), first, second)


@pytest.mark.parametrize("shape", [None, [None], [None, 2]], ids=repr)
def test_a_variable_of_unknown_shape(shape: Any) -> None:
    value = np.zeros((1, 2) if shape == [None, 2] else (2,), np.float32)
    w = tf.Variable(value, shape=tf.TensorShape(shape), name="kernel")
    with pytest.raises(ValueError, match="shape of the variable 'kernel' is unknown"):
        made_for(w)


def test_variables_are_chosen_by_identity() -> None:
    """Variables with equal names are distinguished, and a Keras variable equals the TensorFlow variable inside it."""
    first, second, third = variable(name="w"), variable(name="w"), keras.Variable(W, name="k")
    pairs = [(tf.constant(W), v) for v in (first, second, third)]
    for where in ([second, third], [second, third.value], [second, "k"]):
        tx = gx.freeze(where)
        assert [v is first for _, v in gx.tensorflow.apply(tx, pairs)] == [True]
        for own in (third, third.value):
            assert [v is first for _, v in gx.tensorflow.GradientProcessor(tx, [first, second, own])(pairs)] == [True]
        compiled = tf.function(lambda tx=tx: [g for g, _ in gx.tensorflow.apply(tx, pairs)])
        assert len(compiled()) == 1
    inside = [(tf.constant(W), v) for v in (first, second, third.value)]
    assert len(gx.tensorflow.apply(gx.freeze(third), inside)) == 2
    assert gx.tensorflow.GradientProcessor(gx.trace(0.5), [third])(inside[2:])[0][1] is third.value
    assert repr(gx.freeze([second, third])) == "freeze(<w, k>)"


def test_paths_of_variables() -> None:
    first, second = variable(name="a/w"), variable(name="a/b")
    for given in ([first, second], ((tf.constant(W), first), (None, second)), iter([(W, first), (W, second)])):
        assert gx.paths(given) == ["a/w", "a/b"]
    assert gx.paths(gx.tensorflow.GradientProcessor(gx.trace(0.5), [first, second])) == ["a/b", "a/w"]
    assert gx.paths({"x": first, "y": [second]}) == ["x", "y/0"]
    assert gx.paths([tf.constant(W), tf.constant(W)]) == ["0", "1"]
    module = tf.Module()
    module.w = first
    assert gx.paths(module) == ["a/w"]


def test_a_state_is_restored_by_paths_and_not_by_places(tmp_path: Any) -> None:
    a, b = tf.Variable([0.0], name="a"), tf.Variable([0.0], name="b")
    one, other = (gx.tensorflow.GradientProcessor(gx.trace(0.5), order) for order in ([a, b], [b, a]))
    one([(tf.constant([1.0]), a), (tf.constant([9.0]), b)])
    tf.train.Checkpoint(processor=one).write(str(tmp_path / "state"))
    tf.train.Checkpoint(processor=other).read(str(tmp_path / "state")).assert_consumed()
    ((first, _), (second, _)) = other([(tf.constant([0.0]), b), (tf.constant([0.0]), a)])
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([4.5], [0.5])


@pytest.mark.parametrize("tx", [gx.chain(gx.ema(0.5), gx.trace(0.5)), gx.clip_zscore()])
def test_a_state_of_another_chain_is_not_taken_for_this_one(tx: Any, tmp_path: Any) -> None:
    w = tf.Variable([0.0], name="w")
    one = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.ema(0.5)), [w])
    other = gx.tensorflow.GradientProcessor(tx, [w])
    tf.train.Checkpoint(processor=one).write(str(tmp_path / "state"))
    with pytest.raises(AssertionError):
        tf.train.Checkpoint(processor=other).read(str(tmp_path / "state")).assert_existing_objects_matched()


def test_a_processor_says_what_it_does_to_what() -> None:
    trace = gx.trace(0.5)
    one, two = [variable()], [variable(), variable(name="b")]
    assert repr(gx.tensorflow.GradientProcessor(trace, one)) == "<tensorflow.GradientProcessor: trace(0.5), 1 variable>"
    assert repr(gx.tensorflow.GradientProcessor(trace, two)).endswith("trace(0.5), 2 variables>")


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


def test_a_step_that_may_be_skipped_changes_no_setting_of_tensorflow() -> None:
    seen = []

    class Optimizer(v1.train.MomentumOptimizer):
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(v1.control_flow_v2_enabled())
            return super().apply_gradients(*args, **kwargs)

    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.ones(2, np.float32), use_resource=False)
        given = v1.placeholder(tf.float32, [2])
        processor = gx.tensorflow.GradientProcessor(gx.skip_nonfinite(gx.identity()), [w])
        step = processor.apply_gradients(Optimizer(0.5, 0.5), [(given, w)])
        session.run(v1.global_variables_initializer())
        for gradient in ([1.0, 2.0], [np.nan, 2.0], [0.0, 0.0]):
            session.run(step, {given: gradient})
        assert session.run(w).tolist() == [0.25, -0.5]  # the last step has half of the first one's momentum
    assert seen == [v1.control_flow_v2_enabled()]
