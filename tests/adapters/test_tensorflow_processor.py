"""gx.tensorflow.GradientProcessor: a stateful transformation between computing and applying gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import array, assert_ulp, bits, one_sentence
from support import tensors as of_framework

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
v1 = tf.compat.v1

SHAPES = [(2, 3), (4,), (), (3,)]
tensors = functools.partial(of_framework, "tensorflow")
NO_GRADIENT = 3
"""The position of the variable that never has a gradient."""
STEPS = 4
W = np.float32([3.0, 4.0])

# Paths of a list are indices. The variables here are named by these indices, so one pattern and one noise stream fit
# both the processor and the plain list.
TRANSFORMS = {
    "stateless": gx.chain(gx.clip_norm(3.0), gx.clip_global_norm(2.0), gx.scale(-0.1)),
    "chain": gx.chain(
        gx.masked(gx.trace(0.9), "1"), gx.skip_nonfinite(gx.ema(0.9)), gx.scale_by_schedule(lambda t: 1.0 / (1.0 + t))
    ),
    "schedule as a factor": gx.chain(gx.trace(0.5, nesterov=True), gx.scale(lambda t: 0.5 ** (t + 1.0))),
    "accumulate": gx.accumulate(gx.chain(gx.trace(0.5), gx.clip_global_norm(1.0)), 2),
    "clip_percentile": gx.clip_percentile(40.0, window=3),
    "clip_percentile, per leaf": gx.clip_percentile(40.0, window=3, per_leaf=True),
    "clip_zscore": gx.clip_zscore(0.5, 0.9, warmup=2),
    "clip_zscore, per leaf": gx.clip_zscore(0.5, 0.9, warmup=2, per_leaf=True),
    "add_noise": gx.chain(gx.add_noise(lambda t: 0.3 / (1.0 + t), seed=7), gx.clip_global_norm(1.0)),
    "freeze": gx.chain(gx.freeze("1"), gx.trace(0.5), gx.clip_global_norm(1.0)),
    "partition": gx.partition({"0": gx.ema(0.5), "1": gx.stop()}, default=gx.clip_norm(0.5)),
    "skip_large": gx.skip_large(gx.trace(0.9), 6.0),
}
MAY_SKIP = {"chain"}
COMPILED = ["chain", "accumulate", "clip_zscore, per leaf", "freeze"]
"""The cases that also run under XLA, which compiles slowly."""


def variable(value: Any = (0.0, 0.0), name: str = "w") -> Any:
    return tf.Variable(np.asarray(value, np.float32), name=name)


def variables(kind: Any = None) -> list[Any]:
    made = kind or tf.Variable
    return [made(np.full(shape, 0.5, np.float32), name=str(i)) for i, shape in enumerate(SHAPES)]


def gradients(step: int, name: str) -> list[Any]:
    rng = np.random.default_rng(step)
    drawn: list[Any] = [rng.normal(size=shape).astype(np.float32) * (1 + step) for shape in SHAPES]
    if name in MAY_SKIP and step == 1:
        drawn[0][1, 1] = np.inf
    drawn[NO_GRADIENT] = None
    return drawn


def pairs_of(values: list[Any], made: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(tensors(values), made, strict=True))


def stopped(name: str) -> set[int]:
    return {1} if name in ("freeze", "partition") else set()


def kept(values: list[Any], name: str) -> list[Any]:
    return [value for i, value in enumerate(values) if i not in stopped(name)]


def by_path(values: list[Any]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}


def on_a_plain_dict(name: str, jit_compile: bool | None = None) -> tuple[list[list[Any]], Any]:
    """The results of `update` on dicts without stopped gradients, and the last state; eager or compiled."""
    tx, results = TRANSFORMS[name], []
    update = tx.update if jit_compile is None else tf.function(tx.update, jit_compile=jit_compile)
    state = tx.init(by_path([tf.zeros(shape) for shape in SHAPES]))
    for step in range(STEPS):
        updates, state = update(by_path(tensors(gradients(step, name))), state)
        results.append(kept(list(updates.values()), name))
    return results, state


# --- one run, every mode ---------------------------------------------------------------------------------------------


def eager(name: str) -> tuple[list[list[Any]], Any]:
    made, results = variables(), []
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)
    for step in range(STEPS):
        results.append([g for g, _ in processor(pairs_of(gradients(step, name), made))])
    return results, processor.state


def in_function(name: str, jit_compile: bool = False) -> tuple[list[list[Any]], Any]:
    made = variables()
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)

    @tf.function(jit_compile=jit_compile)
    def run(given: list[Any]) -> list[Any]:
        return [g for g, _ in processor(zip(given, made, strict=True))]

    return [list(run(tensors(gradients(step, name)))) for step in range(STEPS)], processor.state


def in_xla(name: str) -> tuple[list[list[Any]], Any]:
    return in_function(name, jit_compile=True)


def in_v1_graph(name: str, use_resource: bool) -> tuple[list[list[Any]], Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        made = [v1.get_variable(str(i), shape, use_resource=use_resource) for i, shape in enumerate(SHAPES)]
        processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)
        places = [None if i == NO_GRADIENT else v1.placeholder(tf.float32, s) for i, s in enumerate(SHAPES)]
        pairs = processor(zip(places, made, strict=True))
        session.run(v1.global_variables_initializer())
        results = []
        for step in range(STEPS):
            given = zip(places, gradients(step, name), strict=True)
            found = iter(session.run([g for g, _ in pairs if g is not None], {p: g for p, g in given if p is not None}))
            results.append([None if g is None else next(found) for g, _ in pairs])
        state = tf.nest.map_structure(lambda leaf: None if leaf is None else session.run(leaf), processor.state)
    return results, state


MODES: dict[str, tuple[Callable[[str], tuple[list[list[Any]], Any]], bool | None]] = {
    "eager": (eager, None),
    "function": (in_function, False),
    "XLA": (in_xla, True),
}


@pytest.mark.parametrize(
    ("mode", "name"),
    [(mode, name) for mode in MODES for name in (COMPILED if mode == "XLA" else TRANSFORMS)],
)
def test_every_mode_gives_bit_by_bit_what_update_gives_on_a_dict(mode: str, name: str) -> None:
    run, jit_compile = MODES[mode]
    wanted, state = on_a_plain_dict(name, jit_compile)
    results, kept_state = run(name)
    for step, (result, reference) in enumerate(zip(results, wanted, strict=True)):
        assert bits(result) == bits(reference), (step, result, reference)
    tf.nest.assert_same_structure(kept_state, state)
    assert bits(tf.nest.flatten(kept_state)) == bits(tf.nest.flatten(state))


@pytest.mark.parametrize(
    ("name", "use_resource"), [*((name, False) for name in TRANSFORMS), ("chain", True), ("freeze", True)]
)
def test_a_session_gives_what_update_gives_on_a_dict(name: str, use_resource: bool) -> None:
    wanted, state = on_a_plain_dict(name, jit_compile=False)
    results, kept_state = in_v1_graph(name, use_resource)
    for result, reference in zip(results, wanted, strict=True):
        assert_ulp(result, reference)
    tf.nest.assert_same_structure(kept_state, state)
    for a, b in zip(tf.nest.flatten(kept_state), tf.nest.flatten(state), strict=True):
        assert_ulp(a, b, 2 if a is not None and array(a).dtype.kind == "f" else 0)


def test_keras_variables_are_as_good() -> None:
    made = variables(keras.Variable)
    assert [v.path for v in made] == ["0", "1", "2", "3"]
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS["chain"], made)
    for step, wanted in enumerate(on_a_plain_dict("chain")[0]):
        pairs = processor(pairs_of(gradients(step, "chain"), made))
        assert bits([g for g, _ in pairs]) == bits(wanted)
        assert all(given is own for (_, given), own in zip(pairs, made, strict=True))


def test_a_keras_variable_and_the_one_of_tensorflow_inside_of_it_are_one() -> None:
    made = keras.Variable(W, name="w")
    for inside, outside in ((made, made.value), (made.value, made)):
        processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [inside])
        ((gradient, back),) = processor([(tf.constant(W), outside)])
        assert back is outside
        assert bits(gradient) == bits(W)


# --- lists of pairs --------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "generator": lambda pairs: (pair for pair in pairs),
    "zip": lambda pairs: zip([g for g, _ in pairs], [v for _, v in pairs], strict=True),
    "list of lists": lambda pairs: [list(pair) for pair in pairs],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_any_iterable_of_pairs_and_of_variables(form: str, compiled: bool) -> None:
    made = [variable(name="a"), variable(name="b")]
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), (v for v in made))

    def step(first: Any) -> Any:
        result = processor(FORMS[form]([(first, made[0]), (first * 2, made[1])]))
        assert isinstance(result, list)
        assert [v is own for (_, v), own in zip(result, made, strict=True)] == [True, True]
        return [g for g, _ in result]

    step = tf.function(step) if compiled else step
    step(tf.constant(W))
    assert [g.numpy().tolist() for g in step(tf.constant(W))] == [[4.5, 6.0], [9.0, 12.0]]


def test_pairs_in_another_order_find_their_own_state() -> None:
    made = variables()
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS["chain"], made)
    for step, wanted in enumerate(on_a_plain_dict("chain")[0]):
        pairs = pairs_of(gradients(step, "chain"), made)
        order = np.random.default_rng(step).permutation(len(made))
        result = processor([pairs[i] for i in order])
        assert [v is made[i] for (_, v), i in zip(result, order, strict=True)] == [True] * len(made)
        assert bits([g for g, _ in result]) == bits([wanted[i] for i in order])


@pytest.mark.parametrize("name", ["chain", "accumulate", "clip_zscore, per leaf", "add_noise"])
def test_no_pair_is_as_good_as_none(name: str) -> None:
    made = variables()
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)
    wanted, state = on_a_plain_dict(name)
    for step, reference in enumerate(wanted):
        result = processor(pairs_of(gradients(step, name), made)[:NO_GRADIENT])
        assert len(result) == NO_GRADIENT
        assert bits([g for g, _ in result]) == bits(reference[:NO_GRADIENT])
    assert bits(tf.nest.flatten(processor.state)) == bits(tf.nest.flatten(state))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_variable_without_a_gradient_keeps_its_trace(compiled: bool) -> None:
    a, b = variable(name="a"), variable(name="b")
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [a, b])

    def step(first: Any, second: Any) -> Any:
        return [g for g, _ in processor([(first, a), (second, b)])]

    step = tf.function(step) if compiled else step
    step(tf.constant(W), tf.constant(W))
    first, second = step(tf.constant(W), None)
    assert second is None
    assert first.numpy().tolist() == [4.5, 6.0]
    first, second = step(None, tf.constant(W))
    assert first is None
    assert second.numpy().tolist() == [4.5, 6.0]
    assert processor.state.trace["a"].numpy().tolist() == [4.5, 6.0]


@pytest.mark.parametrize("source", ["numpy", "jax", "tensorflow"])
def test_the_state_can_be_set_to_one_from_elsewhere(source: str) -> None:
    tx, make = gx.chain(gx.clip_norm(3.0), gx.trace(0.5)), pytest.importorskip(source)
    tree = {"layer": {"w": gx.from_numpy(np.float32(W), like=getattr(make, "numpy", make).zeros(1))}}
    _, state = tx.update(tree, tx.init(tree))
    w = variable(name="layer/w")
    processor = gx.tensorflow.GradientProcessor(tx, [w])
    processor.state = gx.to_numpy(state)
    assert_ulp(processor([(tf.constant(W), w)])[0][0], np.float32(W) * np.float32(0.9))
    with pytest.raises(ValueError, match=r"GradientProcessor: the state lacks '1/trace/layer/w'.*'1/trace/w'"):
        processor.state = (gx.EmptyState(), {"trace": {"w": np.float32(W)}})


def test_a_state_is_not_set_within_a_graph() -> None:
    w = variable()
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])

    @tf.function
    def step() -> None:
        processor.state = {"trace": {"w": W}}

    with pytest.raises(RuntimeError, match=r"GradientProcessor: set the state eagerly"):
        step()
    with pytest.raises(ValueError, match=r"'trace/w' has shape \(3,\), but the state needs \(2,\)"):
        processor.state = {"trace": {"w": np.zeros(3, np.float32)}}


def test_two_variables_of_one_name_have_a_state_each() -> None:
    made = [tf.Variable([0.0, 0.0], name="w") for _ in range(3)]
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), made)
    for _ in range(2):
        pairs = processor([(tf.constant(W) * float(i), v) for i, v in enumerate(made)])
    assert [g.numpy().tolist() for g, _ in pairs] == [[0.0, 0.0], [4.5, 6.0], [9.0, 12.0]]
    assert set(processor.state.trace) == {"w", "w_1", "w_2"}


def test_only_none_and_no_pairs_leave_the_state_as_it_is() -> None:
    w = variable()
    processor = gx.tensorflow.GradientProcessor(gx.ema(0.5), [w])
    processor([(tf.constant(W), w)])
    before = bits(list(processor.variables))
    assert processor([(None, w)])[0][0] is None
    assert processor([]) == []
    assert bits(list(processor.variables)) == before


def test_numpy_gradients_are_adopted() -> None:
    w = variable()
    ((gradient, _),) = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])([(W, w)])
    assert tf.is_tensor(gradient)
    assert bits(gradient) == bits(W)


@pytest.mark.parametrize("tx", [gx.trace(0.5), gx.clip_percentile(40.0, window=2), gx.accumulate(gx.identity(), 2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sparse_gradient_with_duplicates_gives_what_the_dense_one_gives(tx: Any, compiled: bool) -> None:
    table, other = variable(np.zeros((4, 2)), "table"), variable(name="other")
    found = []
    for dense in (False, True):
        processor = gx.tensorflow.GradientProcessor(gx.chain(tx, gx.clip_norm(9.0)), [table, other])

        def step(values: Any, dense: bool = dense, processor: Any = processor) -> Any:
            rows = tf.IndexedSlices(values, tf.constant([2, 0, 2]), tf.constant([4, 2]))
            pairs = processor([(tf.convert_to_tensor(rows) if dense else rows, table), (values[0], other)])
            return [tf.convert_to_tensor(g) for g, _ in pairs]

        step = tf.function(step) if compiled else step
        values = np.float32([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
        results = [step(tf.constant(values * factor)) for factor in (1.0, -3.0, 0.5)]
        found.append((results, processor.state))
    (sparse, sparse_state), (dense_results, dense_state) = found
    assert_ulp(sparse, dense_results)
    for a, b in zip(tf.nest.flatten(sparse_state), tf.nest.flatten(dense_state), strict=True):
        assert_ulp(a, b, 2 if a.dtype.is_floating else 0)


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


@pytest.mark.parametrize("compiled", [False, True])
def test_stopped_variables_are_left_out_and_do_not_count(compiled: bool) -> None:
    frozen, free, unused = variable(name="frozen"), variable(name="free"), variable(name="unused")
    tx = gx.chain(gx.freeze("frozen"), gx.trace(0.5), gx.clip_global_norm(1.0))
    processor = gx.tensorflow.GradientProcessor(tx, [frozen, free, unused])
    back: list[Any] = []

    def step(bad: Any) -> Any:
        pairs = processor([(bad, frozen), (None, unused), (tf.constant(W), free)])
        back[:] = [v for _, v in pairs]
        return pairs[1][0]

    result = (tf.function(step) if compiled else step)(tf.constant([np.nan, 1.0]))
    assert [v is own for v, own in zip(back, [unused, free], strict=True)] == [True, True]
    assert_ulp(result, W / 5)


def test_parameters_are_the_processors_variables_whatever_the_order() -> None:
    a, b = variable([1.0, 2.0], "a"), variable([3.0, 4.0], "b")
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.add_decayed_weights(0.5)), [a, b])
    zero = tf.zeros(2)
    (second, _), (first, _) = processor([(zero, b), (zero, a)])
    assert [first.numpy().tolist(), second.numpy().tolist()] == [[0.5, 1.0], [1.5, 2.0]]
    ((second, _),) = processor([(zero, b)], params=[tf.constant([9.0, 9.0]), tf.constant([1.0, 1.0])])
    assert second.numpy().tolist() == [0.5, 0.5]


# --- optimizers ------------------------------------------------------------------------------------------------------

KERAS: dict[str, Callable[[], Any]] = {
    "SGD, momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
}
TRAINED = gx.chain(gx.freeze("frozen"), gx.trace(0.9), gx.clip_zscore(0.5, warmup=2), gx.clip_global_norm(2.0))


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "function", "XLA"])
def test_a_keras_optimizer_trains_as_with_update_by_hand(name: str, jit_compile: bool | None) -> None:
    kind = keras.Variable if name == "AdamW" else tf.Variable

    def train(processed: bool) -> Any:
        frozen, free = kind(np.float32([0.1, -0.0]), name="frozen"), kind(np.float32([0.1, 0.2]), name="free")
        optimizer = KERAS[name]()
        optimizer.build([frozen, free])
        processor = gx.tensorflow.GradientProcessor(TRAINED, [frozen, free])
        state = TRAINED.init({"frozen": tf.zeros(2), "free": tf.zeros(2)})

        def step(state: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((free - 3.0) ** 4) + tf.reduce_sum(frozen)
            a, b = tape.gradient(loss, [frozen, free] if kind is tf.Variable else [frozen.value, free.value])
            if processed:
                optimizer.apply_gradients(processor([(a, frozen), (b, free)]))
                return state
            updates, state = TRAINED.update({"frozen": a, "free": b}, state)
            optimizer.apply_gradients([(updates["free"], free)])
            return state

        step = step if jit_compile is None else tf.function(step, jit_compile=jit_compile)
        for _ in range(4):
            state = step(state)
        return [bits(frozen), bits(free)]

    result = train(processed=True)
    assert result == train(processed=False)
    assert result[0] == bits(np.float32([0.1, -0.0]))


V1: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "Adam": lambda: v1.train.AdamOptimizer(0.1),
}


@pytest.mark.parametrize("name", V1)
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference variables", "resource variables"])
def test_a_v1_optimizer_in_a_session(name: str, use_resource: bool) -> None:
    def train(processed: bool) -> tuple[list[Any], Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=np.float32([0.5, 0.5]), use_resource=use_resource)
            frozen = v1.get_variable("frozen", initializer=np.float32([0.1, 0.2]), use_resource=use_resource)
            unused = v1.get_variable("unused", initializer=np.float32([7.0]), use_resource=use_resource)
            factor, step = v1.placeholder(tf.float32, (2,)), v1.train.get_or_create_global_step()
            optimizer, tx = V1[name](), gx.chain(gx.freeze("frozen"), gx.trace(0.5), gx.clip_global_norm(4.0))
            if processed:
                pairs = optimizer.compute_gradients(tf.reduce_sum(w * factor) + tf.reduce_sum(frozen))
                assert [g is None for g, _ in pairs] == [False, False, True]
                processor = gx.tensorflow.GradientProcessor(tx, [w, frozen, unused])
                train_op = optimizer.apply_gradients(processor(pairs), global_step=step)
            else:
                train_op = optimizer.apply_gradients([(factor, w)], global_step=step)
            session.run(v1.global_variables_initializer())
            seen, trace = [], np.zeros(2, np.float32)
            for i in range(4):
                given = np.float32([1.0 + i, -2.0])
                trace = np.float32(given + np.float32(0.5) * trace)
                session.run(train_op, {factor: given if processed else gx.clip_global_norm(4.0)([trace])[0]})
                seen.append(session.run(w))
            assert session.run(step) == 4
            assert bits(session.run(frozen)) == bits(np.float32([0.1, 0.2]))
            assert session.run(unused).tolist() == [7.0]
            state = session.run(processor.state[1].trace["w"]) if processed else trace
        return seen, state

    (result, state), (wanted, trace) = train(True), train(False)
    assert_ulp(state, trace)
    assert_ulp(result, wanted, ulp=4)


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


def test_the_state_of_a_session_has_a_saver(tmp_path: Any) -> None:
    found = []
    for restored in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", (2,), initializer=v1.zeros_initializer())
            processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.clip_zscore(0.1, warmup=2)), [w])
            place = v1.placeholder(tf.float32, (2,))
            ((gradient, _),) = processor([(place, w)])
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver()
            for step in range(2, 5) if restored else range(5):
                if restored and step == 2:
                    saver.restore(session, str(tmp_path / "run"))
                elif step == 2:
                    saver.save(session, str(tmp_path / "run"))
                result = session.run(gradient, {place: W * (1 + step)})
                found.append(bits(result))
    assert found[2:5] == found[5:]


def test_sparse_gradients_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=np.zeros((4, 1), np.float32), use_resource=False)
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]) * [[3.0], [3.0], [8.0]])
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(loss)
        assert isinstance(pairs[0][0], tf.IndexedSlices)
        processor = gx.tensorflow.GradientProcessor(gx.chain(gx.clip_norm(1.0), gx.trace(0.5)), [table])
        train = optimizer.apply_gradients(processor(pairs))
        session.run(v1.global_variables_initializer())
        session.run(train)
        session.run(train)
        assert_ulp(session.run(table), -2.5 * np.float32([[0.0], [0.6], [0.0], [0.8]]), ulp=4)


def test_a_sparse_gradient_moves_the_state_of_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", (3, 1))
        processor = gx.tensorflow.GradientProcessor(gx.clip_zscore(0.5, warmup=9), [table])
        rows = tf.IndexedSlices(tf.constant([[3.0], [4.0]]), tf.constant([0, 1]), tf.constant([3, 1]))
        ((gradient, _),) = processor([(rows, table)])
        assert isinstance(gradient, tf.IndexedSlices)
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            assert session.run(gradient.values).tolist() == [[3.0], [4.0]]
        assert session.run(processor.state.count).tolist() == [2]


# --- the state -------------------------------------------------------------------------------------------------------


def test_a_step_that_was_skipped_or_only_accumulated_is_told() -> None:
    w = variable()
    skipping = gx.tensorflow.GradientProcessor(gx.skip_nonfinite(gx.trace(0.5)), [w])
    summing = gx.tensorflow.GradientProcessor(gx.accumulate(gx.identity(), 2), [w])
    told = []
    for value in (W, W * np.inf, W):
        pairs = skipping([(tf.constant(value), w)])
        summing([(tf.constant(W), w)])
        told.append((bool(gx.has_updated(skipping.state)), bool(gx.has_updated(summing.state))))
    assert told == [(True, False), (False, True), (True, False)]
    assert pairs[0][0].numpy().tolist() == [4.5, 6.0]
    assert int(skipping.state.total) == 1


def test_an_optimizer_asks_in_a_function_whether_the_step_is_due() -> None:
    w = variable([0.0, 0.0])
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build([w])
    processor = gx.tensorflow.GradientProcessor(gx.accumulate(gx.clip_global_norm(1.0), 2), [w])

    @tf.function
    def step(gradient: Any) -> None:
        pairs = processor([(gradient, w)])
        if gx.has_updated(processor.state):
            optimizer.apply_gradients(pairs)

    seen = []
    for _ in range(4):
        step(tf.constant(W))
        seen.append(w.numpy().copy())
    assert int(optimizer.iterations) == 2
    assert not seen[0].any()
    assert bits(seen[1]) == bits(seen[2])
    assert_ulp(seen[1], np.float32([-0.3, -0.4]))
    assert_ulp(seen[3], np.float32([-0.87, -1.16]))


def test_has_updated_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", (2,))
        processor = gx.tensorflow.GradientProcessor(gx.accumulate(gx.identity(), 2), [w])
        ((gradient, _),) = processor([(tf.constant(W), w)])
        with tf.control_dependencies([gradient]):
            due = gx.has_updated(processor.state)
        session.run(v1.global_variables_initializer())
        assert [bool(session.run(due)) for _ in range(4)] == [False, True, False, True]


def test_its_variables_are_its_state_and_none_of_the_models() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")])
    made = [*model.trainable_variables, variable(name="own")]
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.clip_norm(1.0), gx.ema(0.9)), made)
    assert sorted(tuple(v.shape) for v in processor.variables) == sorted(
        [(2, 2), (2,), (2,), (), (2, 2), (2,), (2,), (2,)]
    )
    assert processor.trainable_variables == ()
    assert not {id(v) for v in processor.variables} & {id(getattr(v, "value", v)) for v in made}
    assert not any(own is v for own in processor.variables for v in made)
    assert gx.tensorflow.GradientProcessor(gx.clip_norm(1.0), made).variables == ()


def test_variables_of_the_state_are_named_after_their_place() -> None:
    w = variable()
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.clip_norm(1.0), gx.trace(0.5)), [w], name="momentum")
    assert processor.name == "momentum"
    assert [v.name for v in processor.variables] == ["momentum/1_trace_w:0"]
    assert processor.tx == gx.chain(gx.clip_norm(1.0), gx.trace(0.5))


def test_nested_masks_know_the_paths_of_the_variables() -> None:
    made = [variable(name=name) for name in ("head/w", "head/b", "body/w")]
    tx = gx.masked(gx.chain(gx.clip_norm(9.0), gx.masked(gx.trace(0.5), "**/w")), "head/**")
    processor = gx.tensorflow.GradientProcessor(tx, made)
    assert [v.shape.rank for v in processor.variables] == [1]
    for _ in range(2):
        pairs = processor([(tf.constant(W), v) for v in made])
    assert [g.numpy().tolist() for g, _ in pairs] == [[4.5, 6.0], [3.0, 4.0], [3.0, 4.0]]


def test_the_state_has_the_dtypes_of_sums() -> None:
    for dtype, wanted in ((tf.float16, tf.float32), (tf.bfloat16, tf.float32), (tf.float64, tf.float64)):
        w = tf.Variable(tf.zeros(2, dtype), name="w")
        processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])
        for _ in range(2):
            ((gradient, _),) = processor([(tf.cast(tf.constant(W), dtype), w)])
        assert gradient.dtype == dtype
        assert np.asarray(gradient, np.float64).tolist() == [4.5, 6.0]
        assert processor.state.trace["w"].dtype == wanted


def test_a_complex_variable() -> None:
    w = tf.Variable(tf.zeros(1, tf.complex64), name="w")
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.clip_norm(1.0)), [w])
    ((gradient, _),) = processor([(tf.constant([3.0 + 4.0j], tf.complex64), w)])
    np.testing.assert_allclose(gradient, [0.6 + 0.8j], rtol=1e-6)


def test_a_modules_containers_of_variables() -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [variable(name="a"), variable(name="b")]

    model = Model()
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), model.layers)
    model.processor = processor
    assert len(processor(zip([tf.constant(W)] * 2, model.layers, strict=True))) == 2
    assert len(model.trainable_variables) == 2
    assert len(model.variables) == 4


# --- checkpoints and saved models ------------------------------------------------------------------------------------


def stepper(processor: Any, made: list[Any], compiled: bool) -> Callable[[list[Any]], list[Any]]:
    def step(given: list[Any]) -> list[Any]:
        return [g for g, _ in processor(zip(given, made, strict=True))]

    return tf.function(step) if compiled else step


@pytest.mark.parametrize(
    ("compiled", "name"),
    [*((False, name) for name in TRANSFORMS if name != "stateless"), *((True, name) for name in COMPILED)],
)
def test_a_restored_run_goes_on_bit_by_bit(compiled: bool, name: str, tmp_path: Any) -> None:
    made = variables()
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)
    step = stepper(processor, made, compiled)
    for i in range(3):
        step(tensors(gradients(i, name)))
    path = tf.train.Checkpoint(processor=processor, made=made).save(str(tmp_path / "run"))
    wanted = [bits(step(tensors(gradients(i, name)))) for i in range(3, 6)]
    end = bits(list(processor.variables))

    others = variables()
    other = gx.tensorflow.GradientProcessor(TRANSFORMS[name], others)
    tf.train.Checkpoint(processor=other, made=others).restore(path).assert_consumed()
    again = stepper(other, others, compiled)
    assert [bits(again(tensors(gradients(i, name)))) for i in range(3, 6)] == wanted
    assert bits(list(other.variables)) == end

    # A traced function sees values that are restored later.
    tf.train.Checkpoint(processor=processor, made=made).restore(path).assert_consumed()
    assert [bits(step(tensors(gradients(i, name)))) for i in range(3, 6)] == wanted


def test_a_checkpoint_of_another_transform_is_not_taken_for_this_one(tmp_path: Any) -> None:
    w = variable()
    path = tf.train.Checkpoint(processor=gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])).save(str(tmp_path / "a"))
    other = gx.tensorflow.GradientProcessor(gx.clip_zscore(), [w])
    status = tf.train.Checkpoint(processor=other).restore
    with pytest.raises((ValueError, AssertionError, tf.errors.InvalidArgumentError)):
        status(path).assert_consumed()


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


@pytest.mark.parametrize(
    ("name", "jit_compile"), [("chain", True), ("accumulate", False), ("clip_percentile", False), ("add_noise", False)]
)
def test_steps_do_not_retrace(name: str, jit_compile: bool) -> None:
    made, traces = variables(), []
    processor = gx.tensorflow.GradientProcessor(TRANSFORMS[name], made)

    @tf.function(jit_compile=jit_compile)
    def run(given: list[Any]) -> list[Any]:
        traces.append(1)
        return [g for g, _ in processor(zip(given, made, strict=True))]

    for step in range(5):
        run(tensors(gradients(step, name)))
    assert len(traces) == 1


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_limit_that_is_a_variable_changes_without_a_retrace(jit_compile: bool) -> None:
    limit, w, traces = tf.Variable(1.0), variable(), []
    processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.0), gx.clip_norm(limit)), [w])

    @tf.function(jit_compile=jit_compile)
    def run(gradient: Any) -> Any:
        traces.append(1)
        return processor([(gradient, w)])[0][0]

    assert_ulp(run(tf.constant(W)), W / 5)
    limit.assign(2.0)
    assert_ulp(run(tf.constant(W)), W / 2.5)
    assert len(traces) == 1
    assert not any(own is limit for own in processor.variables)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_decay_that_is_a_variable_changes_without_a_retrace(jit_compile: bool) -> None:
    decay, w, traces = tf.Variable(0.5), variable(), []
    processor = gx.tensorflow.GradientProcessor(gx.trace(decay), [w])

    @tf.function(jit_compile=jit_compile)
    def run(gradient: Any) -> Any:
        traces.append(1)
        return processor([(gradient, w)])[0][0]

    assert run(tf.constant(W)).numpy().tolist() == [3.0, 4.0]
    assert run(tf.constant(W)).numpy().tolist() == [4.5, 6.0]
    decay.assign(0.0)
    assert run(tf.constant(W)).numpy().tolist() == [3.0, 4.0]
    assert len(traces) == 1


def test_a_limit_that_is_an_argument_changes_without_a_retrace() -> None:
    w, traces = variable(), []
    processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])

    @tf.function
    def run(gradient: Any, limit: Any) -> Any:
        traces.append(1)
        return gx.tensorflow.apply(gx.clip_norm(limit), processor([(gradient, w)]))[0][0]

    assert_ulp(run(tf.constant(W), tf.constant(1.0)), W / 5)
    assert_ulp(run(tf.constant(W), tf.constant(3.0)), W / 5 * 3)
    assert processor.state.trace["w"].numpy().tolist() == [4.5, 6.0]
    assert len(traces) == 1


def test_a_limit_that_is_a_placeholder() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w, limit = v1.get_variable("w", (2,)), v1.placeholder(tf.float32, ())
        processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.0), gx.clip_norm(limit)), [w])
        ((gradient, _),) = processor([(tf.constant(W), w)])
        session.run(v1.global_variables_initializer())
        for value in (1.0, 2.0):
            assert_ulp(session.run(gradient, {limit: value}), W / 5 * np.float32(value))


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


@pytest.mark.parametrize("compiled", [False, True])
def test_a_variable_it_was_not_made_for(compiled: bool) -> None:
    processor, stranger = made_for(variable(name="encoder"), variable(name="head")), variable(name="stranger")

    def step() -> Any:
        return processor([(tf.constant(W), stranger)])[0][0]

    with pytest.raises(ValueError, match=r"not made for the variable 'stranger'; its variables are encoder, head"):
        (tf.function(step) if compiled else step)()


def test_a_variable_given_twice() -> None:
    w = variable(name="kernel")
    with pytest.raises(ValueError, match="'kernel' is given twice"):
        made_for(variable(name="other"), w, w)


def test_a_keras_variable_given_twice_by_two_names() -> None:
    w = keras.Variable(W, name="kernel")
    with pytest.raises(ValueError, match=r"kernel.* is given twice"):
        made_for(w, w.value)


def test_two_variables_of_one_name_are_two() -> None:
    a, b = variable(name="w"), variable(name="w")
    processor = made_for(a, b)
    processor([(tf.constant(W), a)])
    assert [g.numpy().tolist() for g, _ in processor([(tf.constant(W), b), (tf.constant(W), a)])] == [
        [3.0, 4.0],
        [4.5, 6.0],
    ]


def test_a_variable_in_two_pairs() -> None:
    w = variable(name="kernel")
    with pytest.raises(ValueError, match="'kernel' is in two pairs"):
        made_for(w)([(tf.constant(W), w), (tf.constant(W), w)])


def test_no_variables() -> None:
    with pytest.raises(ValueError, match="variables must not be empty"):
        made_for()


@pytest.mark.parametrize("shape", [None, [None], [None, 2]], ids=repr)
def test_a_variable_of_unknown_shape(shape: Any) -> None:
    value = np.zeros((1, 2) if shape == [None, 2] else (2,), np.float32)
    w = tf.Variable(value, shape=tf.TensorShape(shape), name="kernel")
    with pytest.raises(ValueError, match="shape of the variable 'kernel' is unknown"):
        made_for(w)


@pytest.mark.parametrize("item", [3.0, "w", W, None], ids=lambda item: type(item).__name__)
def test_an_item_that_is_no_variable(item: Any) -> None:
    with pytest.raises(TypeError, match="item 1 of variables is not a variable"):
        made_for(variable(), item)


def test_a_tensor_is_no_variable() -> None:
    with pytest.raises(TypeError, match="item 0 of variables is not a variable"):
        made_for(tf.constant(W))


def test_no_transformation() -> None:
    with pytest.raises(TypeError, match=r"tensorflow\.GradientProcessor"):
        gx.tensorflow.GradientProcessor(0.5, [variable()])


@pytest.mark.parametrize("tx", [gx.chain(gx.trace(0.5), gx.stop()), gx.freeze("**")], ids=repr)
def test_when_all_is_stopped(tx: Any) -> None:
    made = [variable(name="encoder"), variable(name="head")]
    with pytest.raises(ValueError, match=r"nothing is left.*encoder, head"):
        gx.tensorflow.GradientProcessor(tx, made)([(tf.constant(W), v) for v in made])


@pytest.mark.parametrize("value", [[1.0], [[3.0, 4.0]], 1.0], ids=["length", "rank", "scalar"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_of_another_shape_than_its_variable(value: Any, compiled: bool) -> None:
    w = variable(name="kernel")
    processor = made_for(w)

    def step() -> Any:
        return processor([(tf.constant(value), w)])[0][0]

    with pytest.raises(ValueError, match=r"'kernel'.*shape.*\(2,\)"):
        (tf.function(step) if compiled else step)()
    assert processor.state.trace["kernel"].numpy().tolist() == [0.0, 0.0]


def test_an_integer_gradient() -> None:
    w = variable(name="kernel")
    with pytest.raises(TypeError, match=r"'kernel'.*int32"):
        made_for(w)([(tf.constant([1, 2]), w)])


def test_the_pair_the_wrong_way_round() -> None:
    w = variable(name="kernel")
    with pytest.raises(TypeError, match="'kernel'"):
        made_for(w)([(w, tf.constant(W))])


def test_a_pattern_that_matches_no_variable() -> None:
    with pytest.raises(ValueError, match=r"'decoder/\*\*' matches no path; the paths are 'head'"):
        gx.tensorflow.GradientProcessor(gx.masked(gx.trace(0.5), "decoder/**"), [variable(name="head")])


def test_a_pattern_is_checked_when_the_processor_is_made() -> None:
    with pytest.raises(ValueError, match=r"'decoder/\*\*' matches no path; the paths are 'head'"):
        gx.tensorflow.GradientProcessor(gx.chain(gx.scale(1.0), gx.freeze("decoder/**")), [variable(name="head")])


def test_variables_are_chosen_by_identity() -> None:
    """Variables with equal names are distinguished, and a Keras variable equals the TensorFlow variable inside it."""
    first, second, third = variable(name="w"), variable(name="w"), keras.Variable(W, name="k")
    pairs = [(tf.constant(W), v) for v in (first, second, third)]
    for where in ([second, third], [second, third.value], [second, "k"]):
        tx = gx.freeze(where)
        assert [v is first for _, v in gx.tensorflow.apply(tx, pairs)] == [True]
        assert [v is first for _, v in gx.tensorflow.GradientProcessor(tx, [first, second, third])(pairs)] == [True]
        compiled = tf.function(lambda tx=tx: [g for g, _ in gx.tensorflow.apply(tx, pairs)])
        assert len(compiled()) == 1
    inside = [(tf.constant(W), v) for v in (first, second, third.value)]
    assert len(gx.tensorflow.apply(gx.freeze(third), inside)) == 2
    assert repr(gx.freeze([second, third])) == "freeze(<w, k>)"
    masked = gx.tensorflow.GradientProcessor(gx.masked(gx.trace(0.5), second), [first, second])
    for _ in range(2):
        (one, _), (two, _) = masked(pairs[:2])
    assert (one.numpy().tolist(), two.numpy().tolist()) == ([3.0, 4.0], [4.5, 6.0])


def test_a_variable_that_the_processor_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"belong to none of the variables <b> of where; the paths are 'a'"):
        gx.tensorflow.GradientProcessor(gx.freeze(variable(name="b")), [variable(name="a")])
    with pytest.raises(TypeError, match="choose by path"):
        gx.freeze(variable(name="b"))([tf.constant(W)])
    with pytest.raises(TypeError, match=r"where is a Dense; write its variables, module\.trainable_variables"):
        gx.freeze(keras.layers.Dense(1))


def test_paths_of_variables() -> None:
    first, second = variable(name="a/w"), variable(name="a/b")
    for given in (
        [first, second],
        ((tf.constant(W), first), (None, second)),
        zip([W, W], [first, second], strict=True),
    ):
        assert gx.paths(given) == ["a/w", "a/b"]
    assert gx.paths(gx.tensorflow.GradientProcessor(gx.trace(0.5), [first, second])) == ["a/b", "a/w"]
    assert gx.paths({"x": first, "y": [second]}) == ["x", "y/0"]
    assert gx.paths([tf.constant(W), tf.constant(W)]) == ["0", "1"]
    module = tf.Module()
    module.w = first
    assert gx.paths(module) == ["a/w"]


def test_a_refused_list_leaves_the_state_as_it_is() -> None:
    a, b = variable(name="a"), variable(name="b")
    processor = made_for(a, b)
    processor([(tf.constant(W), a), (tf.constant(W), b)])
    before = bits(list(processor.variables))
    for bad in ([(tf.constant(W), a), (tf.constant(W), a)], [(tf.constant([1, 2]), a)], [(tf.constant("x"), b)]):
        with pytest.raises((TypeError, ValueError)):
            processor(bad)
    assert bits(list(processor.variables)) == before


# --- the order of the variables, and what is no list of them ----------------------------------------------------------


def test_a_state_is_restored_by_paths_and_not_by_places(tmp_path: Any) -> None:
    a, b = tf.Variable([0.0], name="a"), tf.Variable([0.0], name="b")
    one, other = (gx.tensorflow.GradientProcessor(gx.trace(0.5), order) for order in ([a, b], [b, a]))
    one([(tf.constant([1.0]), a), (tf.constant([9.0]), b)])
    tf.train.Checkpoint(processor=one).write(str(tmp_path / "state"))
    tf.train.Checkpoint(processor=other).read(str(tmp_path / "state")).assert_consumed()
    ((first, _), (second, _)) = other([(tf.constant([0.0]), b), (tf.constant([0.0]), a)])
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([4.5], [0.5])


def test_a_state_of_another_chain_is_not_taken_for_this_one(tmp_path: Any) -> None:
    w = tf.Variable([0.0], name="w")
    one = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.5), gx.ema(0.5)), [w])
    other = gx.tensorflow.GradientProcessor(gx.chain(gx.ema(0.5), gx.trace(0.5)), [w])
    tf.train.Checkpoint(processor=one).write(str(tmp_path / "state"))
    with pytest.raises(AssertionError):
        tf.train.Checkpoint(processor=other).read(str(tmp_path / "state")).assert_existing_objects_matched()


def test_params_are_given_in_the_order_of_the_variables() -> None:
    a, b = tf.Variable([0.0], name="a"), tf.Variable([0.0], name="b")
    tx = gx.chain(gx.add_decayed_weights(1.0), gx.trace(0.0))
    processor = gx.tensorflow.GradientProcessor(tx, [b, a])
    pairs = processor(
        [(tf.constant([0.0]), a), (tf.constant([0.0]), b)], params=[tf.constant([2.0]), tf.constant([1.0])]
    )
    assert [(float(g[0]), v.name) for g, v in pairs] == [(1.0, "a:0"), (2.0, "b:0")]


@pytest.mark.parametrize("given", [None, 5], ids=repr)
def test_what_is_no_list_of_variables(given: Any) -> None:
    with pytest.raises(TypeError, match="variables must be a list of variables"):
        gx.tensorflow.GradientProcessor(gx.trace(0.5), given)


def test_a_processor_says_what_it_does_to_what() -> None:
    trace = gx.trace(0.5)
    one, two = [variable()], [variable(), variable(name="b")]
    assert repr(gx.tensorflow.GradientProcessor(trace, one)) == "<tensorflow.GradientProcessor: trace(0.5), 1 variable>"
    assert repr(gx.tensorflow.GradientProcessor(trace, two)).endswith("trace(0.5), 2 variables>")


# --- what people really type -----------------------------------------------------------------------------------------

TYPED = [
    ("gx.tensorflow.apply(pairs, tx)", "write gx.tensorflow.apply(tx, grads_and_vars)"),
    ("gx.tensorflow.GradientProcessor([v], tx)", "write gx.tensorflow.GradientProcessor(tx, variables)"),
    ("gx.chain(tx, old)", "GradientDescentOptimizer is a TensorFlow optimizer", "before optimizer.apply_gradients"),
    ("tx(module)", "this is a TensorFlow module (Module)", "tape.gradient(loss, module.trainable_variables)"),
    ("gx.clip_norm(pairs, 1.0)", "gx.clip_norm(1.0)(gradients)"),
    ("gx.clip_norm([v], 1.0)", "gx.clip_norm(1.0)(gradients)"),
]


@pytest.mark.parametrize(("typed", "words"), [(typed, words) for typed, *words in TYPED], ids=[row[0] for row in TYPED])
def test_one_sentence_says_what_to_write(typed: str, words: list[str]) -> None:
    v = tf.Variable(W)
    names = {"gx": gx, "tx": gx.clip_norm(1.0), "v": v, "pairs": [(tf.constant(W), v)]}
    with pytest.raises(TypeError) as caught:
        eval(typed, {**names, "old": v1.train.GradientDescentOptimizer(0.1), "module": tf.Module()})
    one_sentence(str(caught.value), *words)
