"""gradxform under tf.distribute: the limit holds for the sum over the replicas, which the optimizer applies.

Two logical CPUs must be configured before TensorFlow starts. So this file is also a script that runs every case and
prints the results, which the tests read.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_bits, assert_ulp, f32, python

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

SAME = np.float32([3.0, 4.0])
BY_REPLICA = [np.float32([3.0, 0.5]), np.float32([-1.0, 4.0])]
UNIT = np.float32([0.6, 0.8])
CHAIN = gx.chain(gx.clip_value(3.5), gx.clip_norm(3.0), gx.clip_global_norm(1.0), gx.scale(0.5))
ROWS = [([1, 1, 4], [[3.0], [1.0], [2.0]]), ([1, 4, 2], [[2.0], [6.0], [3.0]])]
"""Each replica's gradient of a table; the sums are 6 in row 1, 3 in row 2, 8 in row 4."""
TABLE = np.float32([[0.0], [6.0], [3.0], [0.0], [8.0]])
FEWER_ROWS = [([1, 1, 4], [[3.0], [1.0], [2.0]]), ([1], [[2.0]])]
FEWER_TABLE = np.float32([[0.0], [6.0], [0.0], [0.0], [2.0]])
LARGE = [np.random.default_rng(i).standard_normal(20_001, dtype=np.float32) for i in range(2)]
STATEFUL = {
    "trace": gx.chain(gx.clip_norm(5.0), gx.trace(0.9)),
    "accumulate": gx.accumulate(gx.chain(gx.ema(0.9), gx.clip_global_norm(1.0)), 2),
    "clip_zscore": gx.clip_zscore(0.5, 0.9, warmup=2, per_leaf=True),
    "add_noise": gx.chain(gx.add_noise(0.1, seed=3), gx.scale(lambda t: 1.0 / (1.0 + t))),
}
STATEFUL_COMPILED = ["trace", "accumulate", "clip_zscore"]
STEPS = 4
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
}
EMBEDDED: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


# --- the cases, on two logical CPUs ----------------------------------------------------------------------------------


def replica() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def scope(strategy: Any) -> Any:
    return strategy.scope() if strategy else tf.name_scope("")


def repeated(strategy: Any, compiled: bool, step: Callable[[], Any], times: int = 1) -> list[Any]:
    """The results of each replica in each step."""

    def run() -> Any:
        return strategy.run(step) if strategy else step()

    run = tf.function(run) if compiled else run
    return [strategy.experimental_local_results(run()) if strategy else (run(),) for _ in range(times)]


def mirrored(*values: Any) -> list[Any]:
    return [tf.Variable(np.asarray(value, np.float32), name=f"w{i}") for i, value in enumerate(values)]


def shown(values: Any) -> Any:
    return [np.asarray(value).tolist() for value in values]


def moved(strategy: Any, compiled: bool, process: Callable[[Any], Any], gradients: Any, optimizer: Any = None) -> Any:
    """The variables after one SGD step from zero; None gradients belong to a variable of two numbers."""
    with scope(strategy):
        made = mirrored(*[np.zeros(2 if g is None else g.shape) for g in gradients(0)])
        optimizer = (optimizer or (lambda: keras.optimizers.SGD(1.0)))()
        optimizer.build(made)

    def step() -> None:
        given = gradients(replica())
        own = [tf.convert_to_tensor(g) if isinstance(g, np.ndarray) else g for g in given]
        optimizer.apply_gradients(process(list(zip(own, made, strict=True))))

    repeated(strategy, compiled, step)
    return shown(made)


def transformed(tx: Any) -> Callable[[Any], Any]:
    return lambda pairs: gx.tensorflow.apply(tx, pairs)


def by_hand(pairs: Any) -> Any:
    clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    return zip(clipped, [v for _, v in pairs], strict=True)


def large(i: int) -> list[Any]:
    return [LARGE[i]]


def sparse(rows: Any) -> Callable[[int], list[Any]]:
    def gradients(i: int) -> list[Any]:
        index, values = rows[i]
        return [tf.IndexedSlices(tf.constant(values), tf.constant(index), tf.constant([5, 1]))]

    return gradients


def embedding(strategy: Any, compiled: bool, make: Any) -> Any:
    """A table read by tf.gather and a dense weight; each row of tokens goes to one replica."""
    with scope(strategy):
        table, weight = mirrored(np.linspace(-1.0, 1.0, 12).reshape(6, 2), [0.5, -0.5])
        optimizer = make()
        optimizer.build([table, weight])
    tokens = np.array([[1, 1, 4], [4, 1, 5]])
    kinds = []

    def step() -> None:
        own = tf.constant(tokens[replica()] if strategy else tokens.reshape(-1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, own)) * weight)
        gradients = tape.gradient(loss, [table, weight])
        kinds.append(isinstance(gradients[0], tf.IndexedSlices))
        pairs = gx.tensorflow.apply(gx.clip_global_norm(0.5), zip(gradients, [table, weight], strict=True))
        kinds.append(isinstance(pairs[0][0], tf.IndexedSlices))
        optimizer.apply_gradients(pairs)

    repeated(strategy, compiled, step, 3)
    assert all(kinds)
    return shown([table, weight])


def dataset(strategy: Any, compiled: bool) -> Any:
    """Linear regression on batches that a strategy splits over its replicas."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(16, 3)).astype(np.float32), rng.normal(size=(16, 1)).astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)
    with scope(strategy):
        (w,) = mirrored(np.zeros((3, 1)))
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
        optimizer.build([w])
    tx, norms = gx.chain(gx.clip_value(2.0), gx.clip_global_norm(1.0)), []

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ w - y))
        optimizer.apply_gradients(gx.tensorflow.apply(tx, [(tape.gradient(loss, w), w)]))
        return loss

    def run(batch: Any) -> Any:
        return strategy.run(step, batch) if strategy else step(*batch)

    run = tf.function(run) if compiled else run
    for batch in strategy.experimental_distribute_dataset(batches) if strategy else batches:
        before = w.numpy()
        run(batch)
        norms.append(float(np.linalg.norm(w.numpy() - before)))
    return [*shown([w]), norms]


def frozen(strategy: Any, compiled: bool, optimizer: Any) -> Any:
    with scope(strategy):
        a, b = mirrored([0.1, -0.0], [0.1, 0.2])
        made = optimizer()
        made.build([a, b])
    tx = gx.chain(gx.freeze("w0"), gx.clip_global_norm(1.0))
    back = []

    def step() -> None:
        own = tf.constant(BY_REPLICA[replica()] if strategy else sum(BY_REPLICA))
        pairs = gx.tensorflow.apply(tx, [(own * np.nan, a), (own, b)])
        back.append(len(pairs))
        made.apply_gradients(pairs)

    repeated(strategy, compiled, step, 3)
    return [*shown([a, b]), sorted(set(back))]


def processed(strategy: Any, compiled: bool, name: str) -> Any:
    """A processor's results in each step, multiplied by the number of replicas, and its state."""
    with scope(strategy):
        made = mirrored(np.zeros(2), np.zeros((3, 1)), np.zeros(1))
        processor = gx.tensorflow.GradientProcessor(STATEFUL[name], made)
        (count,) = mirrored(0.0)

    def gradient(i: int) -> list[Any]:
        drawn = np.random.default_rng(i).normal(size=(STEPS, 5)).astype(np.float32)
        own = tf.gather(tf.constant(drawn), tf.cast(count, tf.int32))
        return [own[:2], own[2:, None], None]

    def step() -> Any:
        if strategy:
            own, replicas = gradient(replica()), 2.0
        else:
            own = [None if a is None else a + b for a, b in zip(gradient(0), gradient(1), strict=True)]
            replicas = 1.0
        pairs = processor(zip(own, made, strict=True))
        results = [g * replicas for g, _ in pairs if g is not None]
        with tf.control_dependencies(results):
            if strategy:
                tf.distribute.get_replica_context().merge_call(lambda s: s.extended.update(count, _next))
            else:
                count.assign_add(1.0)
        return results

    found = repeated(strategy, compiled, step, STEPS)
    state = [v for v in tf.nest.flatten(processor.state) if v is not None]
    return {"results": [[shown(own) for own in step] for step in found], "state": shown(state)}


def _next(count: Any) -> Any:
    return count.assign_add(1.0)


def restored(strategy: Any, compiled: bool) -> Any:
    """A processor saved under the strategy continues without it, on the sums."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for under in (strategy, None):
            with scope(under):
                made = mirrored(np.zeros(2))
                processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), made)

            def step(under: Any = under, made: Any = made, processor: Any = processor) -> Any:
                own = tf.constant(BY_REPLICA[replica()] if under else sum(BY_REPLICA))
                return [g for g, _ in processor([(own, made[0])])]

            saved = tf.train.Checkpoint(processor=processor)
            if under:
                repeated(under, compiled, step, 2)
                path = saved.save(os.path.join(folder, "run"))
                repeated(under, compiled, step)
            else:
                saved.restore(path).assert_consumed()
                repeated(under, compiled, step)
            found.append(shown(list(processor.state.trace.values())))
    return found


def traces(strategy: Any) -> list[int]:
    """The number of traces of a replica's step after one step and after three with two limits; the last result."""
    with strategy.scope():
        w, limit = mirrored(np.zeros(2), 1.0)
        processor = gx.tensorflow.GradientProcessor(gx.chain(gx.trace(0.0), gx.clip_norm(limit)), [w])
    seen: list[int] = []

    def step() -> Any:
        seen.append(1)
        return processor([(tf.constant(SAME), w)])[0][0]

    run = tf.function(lambda: strategy.run(step))
    run()
    first = len(seen)
    run()
    limit.assign(2.0)
    last = strategy.experimental_local_results(run())
    return [first, len(seen), *shown(last)]


def cases(strategy: Any, compiled: bool) -> dict[str, Any]:
    def same(_: int) -> list[Any]:
        return [SAME]

    def different(i: int) -> list[Any]:
        return [BY_REPLICA[i], BY_REPLICA[1 - i] * 2]

    def with_none(i: int) -> list[Any]:
        return [None, BY_REPLICA[i], None]

    one = tf.distribute.MirroredStrategy(["CPU:0"])
    summed = [sum(BY_REPLICA), sum(BY_REPLICA) * 2]
    found: dict[str, Any] = {
        "native clipnorm": moved(
            strategy, compiled, list, same, optimizer=lambda: keras.optimizers.SGD(1.0, clipnorm=1.0)
        ),
        "native by hand": moved(strategy, compiled, by_hand, same),
        "clip_norm": moved(strategy, compiled, transformed(gx.clip_norm(1.0)), same),
        "clip_global_norm": moved(strategy, compiled, transformed(gx.clip_global_norm(1.0)), same),
        "different": moved(strategy, compiled, transformed(gx.clip_global_norm(1.0)), different),
        "chain": moved(strategy, compiled, transformed(CHAIN), different),
        "clip_value": moved(strategy, compiled, transformed(gx.clip_value(3.0)), different),
        "below the limit": moved(strategy, compiled, transformed(gx.clip_norm(100.0)), different),
        "None": moved(strategy, compiled, transformed(gx.clip_global_norm(1.0)), with_none),
        "large": moved(strategy, compiled, transformed(gx.clip_norm(1.0)), large),
        "sparse": moved(strategy, compiled, transformed(gx.clip_norm(1.0)), sparse(ROWS)),
        "sparse, fewer rows": moved(strategy, compiled, transformed(gx.clip_norm(1.0)), sparse(FEWER_ROWS)),
        "one replica": moved(one, compiled, transformed(CHAIN), lambda _: summed),
        "one device": moved(tf.distribute.OneDeviceStrategy("CPU:1"), compiled, transformed(CHAIN), lambda _: summed),
        "dataset": dataset(strategy, compiled),
        "dataset, alone": dataset(None, compiled),
        "restored": restored(strategy, compiled),
    }
    for name in STATEFUL_COMPILED if compiled else STATEFUL:
        found[name] = processed(strategy, compiled, name)
        found[f"{name}, alone"] = processed(None, compiled, name)
    for name, optimizer in EMBEDDED.items():
        found[f"embedding, {name}"] = embedding(strategy, compiled, optimizer)
        found[f"embedding, {name}, alone"] = embedding(None, compiled, optimizer)
    for name, optimizer in OPTIMIZERS.items():
        found[f"frozen, {name}"] = frozen(strategy, compiled, optimizer)
        found[f"frozen, {name}, alone"] = frozen(None, compiled, optimizer)
    return found


def outside_of_a_replica(strategy: Any) -> Any:
    with strategy.scope():
        (w,) = mirrored(np.zeros(2))
        return shown([gx.tensorflow.apply(gx.clip_norm(1.0), [(tf.constant(SAME), w)])[0][0]])


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    found: dict[str, Any] = {mode: cases(strategy, mode == "function") for mode in ("eager", "function")}
    found["traces"], found["outside"] = traces(strategy), outside_of_a_replica(strategy)
    print(json.dumps(found))


# --- what came of them -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = python(__file__, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.fixture(params=["eager", "function"])
def case(request: pytest.FixtureRequest, found: dict[str, Any]) -> dict[str, Any]:
    mode: dict[str, Any] = found[request.param]
    return mode


@pytest.mark.parametrize("name", ["native clipnorm", "native by hand"])
def test_the_native_trap_each_replica_clips_its_own_and_the_sum_is_two(case: Any, name: str) -> None:
    assert_ulp(np.float32(case[name][0]), -2 * UNIT)
    assert abs(np.linalg.norm(case[name][0]) - 2.0) < 1e-6


@pytest.mark.parametrize("name", ["clip_norm", "clip_global_norm"])
def test_gradxform_moves_the_variable_by_the_limit(case: Any, name: str) -> None:
    assert_ulp(np.float32(case[name][0]), -UNIT)
    assert_ulp(np.float32(np.linalg.norm(np.float32(case[name][0]).astype(np.float64))), 1.0)


SUMS = [sum(BY_REPLICA), sum(BY_REPLICA) * 2]


@pytest.mark.parametrize(
    ("name", "tx"),
    [
        ("different", gx.clip_global_norm(1.0)),
        ("chain", CHAIN),
        ("clip_value", gx.clip_value(3.0)),
        ("below the limit", gx.clip_norm(100.0)),
    ],
)
def test_different_gradients_are_summed_before_they_are_transformed(case: Any, name: str, tx: Any) -> None:
    summed = [sum(BY_REPLICA), BY_REPLICA[1] * 2 + BY_REPLICA[0] * 2]
    assert_bits(list(map(np.float32, case[name])), [-g for g in tx(summed)])


def test_large_gradients_whose_kernel_depends_on_the_device(case: Any) -> None:
    (wanted,) = gx.clip_norm(1.0)([sum(LARGE)])
    assert_ulp(np.float32(case["large"][0]), -wanted)


def test_none_stays_none(case: Any) -> None:
    first, middle, last = case["None"]
    assert first == last == [0.0, 0.0]
    assert_ulp(np.float32(middle), -gx.clip_norm(1.0)([SUMS[0]])[0])


@pytest.mark.parametrize(("name", "table"), [("sparse", TABLE), ("sparse, fewer rows", FEWER_TABLE)])
def test_rows_that_several_replicas_have_are_summed(case: Any, name: str, table: Any) -> None:
    assert_ulp(np.float32(case[name][0]), np.float32(-table / np.linalg.norm(table.astype(np.float64))))


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedding_trains_as_on_one_device(case: Any, name: str) -> None:
    for value, alone in zip(case[f"embedding, {name}"], case[f"embedding, {name}, alone"], strict=True):
        np.testing.assert_allclose(value, alone, rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_variables_stay_bit_by_bit(case: Any, name: str) -> None:
    frozen, free, lengths = case[f"frozen, {name}"]
    assert_bits(f32(*frozen), f32(0.1, -0.0))
    assert lengths == [1]
    assert_ulp(np.float32(free), case[f"frozen, {name}, alone"][1], ulp=4)
    assert np.all(np.float32(free) != np.float32([0.1, 0.2]))


def test_a_distributed_dataset_trains_as_on_one_device(case: Any) -> None:
    weights, norms = case["dataset"]
    alone, wanted = case["dataset, alone"]
    np.testing.assert_allclose(weights, alone, rtol=1e-6)
    np.testing.assert_allclose(norms, wanted, rtol=1e-5)
    assert abs(norms[0] - 0.5) < 1e-6


@pytest.mark.parametrize(
    ("mode", "name"), [*(("eager", name) for name in STATEFUL), *(("function", name) for name in STATEFUL_COMPILED)]
)
def test_a_processor_gives_what_it_gives_on_the_sums_bit_by_bit(found: Any, mode: str, name: str) -> None:
    under, alone = found[mode][name], found[mode][f"{name}, alone"]
    assert len(under["results"]) == len(alone["results"]) == STEPS
    for replicas, (wanted,) in zip(under["results"], alone["results"], strict=True):
        assert len(replicas) == 2
        for own in replicas:
            assert own == wanted
    assert under["state"] == alone["state"]
    assert np.any(np.float32(alone["results"][-1][0][0]) != 0.0)


def test_a_state_saved_under_a_strategy_goes_on_without_it(case: Any) -> None:
    under, alone = case["restored"]
    assert under == alone == [[3.5, 7.875]]


@pytest.mark.parametrize("name", ["one replica", "one device"])
def test_one_replica_is_as_none(case: Any, name: str) -> None:
    assert_bits(list(map(np.float32, case[name])), [-g for g in CHAIN(SUMS)])


def test_steps_and_new_limits_do_not_retrace(found: Any) -> None:
    first, last, *results = found["traces"]
    assert first == last
    assert len(results) == 2
    for result in results:
        assert_ulp(np.float32(result), UNIT)


def test_outside_of_a_replica_nothing_is_summed(found: Any) -> None:
    assert_ulp(np.float32(found["outside"][0]), UNIT)


if __name__ == "__main__":
    main()
