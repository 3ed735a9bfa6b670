"""gradxform under tf.distribute: the limit holds for the sum over the replicas, which the optimizer applies.

Two logical CPUs must be configured before TensorFlow starts. So this file is also a script that runs every case and
prints the results, which the tests read.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conformance
import numpy as np
import pytest
from conformance import Leaves
from drivers import Processor, ProcessorFunction, TensorFlowApply
from support import assert_bits, assert_ulp, python, slow

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.timeout(900),
    slow("starts one process with two logical devices, for all of its cases together"),
]

SAME = np.float32([3.0, 4.0])
BY_REPLICA = [np.float32([3.0, 0.5]), np.float32([-1.0, 4.0])]
UNIT = np.float32([0.6, 0.8])
CHAIN = gx.chain(gx.clip_value(3.5), gx.clip_norm(3.0), gx.clip_global_norm(1.0), gx.scale(0.5))
LARGE = [np.random.default_rng(i).standard_normal(20_001, dtype=np.float32) for i in range(2)]


# --- the suite of all adapters; replicas have other gradients, whose sums are those of a case ------------------------


def replica() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


class OnReplicas:
    """Mixed into the drivers of one device."""

    strategy: Any
    optimizers = ("momentum", "adamw")
    dtypes = ("float32",)

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        with self.strategy.scope():
            super().__init__(tx, params, optimizer, **how)
            if self.optimizer is None:
                self.optimizer = keras.optimizers.SGD(1.0)
                self.optimizer.build(list(self.variables.values()))

    def start(self, tx: Any) -> None:
        super().start(tx)
        self.run = type(self).mode(self.everywhere)

    def everywhere(self, gradients: Leaves, **loss: Any) -> None:
        def step() -> None:
            self.train({path: share(g) for path, g in gradients.items()}, **loss)

        self.strategy.run(step)

    def read(self) -> Leaves:
        return {path: np.array(v) for path, v in self.variables.items()}


def share(gradient: Any) -> Any:
    """A replica's gradient; a row of a sparse one may be in both."""
    if isinstance(gradient, tf.IndexedSlices):
        part = slice(2) if replica() == 0 else slice(2, None)
        return tf.IndexedSlices(gradient.values[part], gradient.indices[part], gradient.dense_shape)
    return None if gradient is None else gradient * tf.cast([2.0, -1.0][replica()], gradient.dtype)


class Apply(OnReplicas, TensorFlowApply):
    name = "apply"


class Eager(OnReplicas, Processor):
    name = "eager"


class Function(OnReplicas, ProcessorFunction):
    name, skips = "function", False
    transforms = ("several", "accumulate", "clip_zscore, per leaf")


DRIVERS = [Apply, Eager, Function]
PAIRS = conformance.pairs(DRIVERS)


# --- what is particular to replicas ----------------------------------------------------------------------------------


def repeated(strategy: Any, compiled: bool, step: Callable[[], Any], times: int = 1) -> None:
    def run() -> Any:
        return strategy.run(step) if strategy else step()

    run = tf.function(run) if compiled else run
    for _ in range(times):
        run()


def mirrored(strategy: Any, *values: Any) -> list[Any]:
    with strategy.scope() if strategy else tf.name_scope(""):
        return [tf.Variable(np.asarray(value, np.float32), name=f"w{i}") for i, value in enumerate(values)]


def shown(values: Any) -> Any:
    return [np.asarray(value).tolist() for value in values]


def moved(strategy: Any, compiled: bool, tx: Any, gradient: Callable[[int], Any], **options: Any) -> Any:
    """A variable after one SGD step from zero."""
    (w,) = mirrored(strategy, np.zeros(gradient(0).shape))
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0, **options)
        optimizer.build([w])

    def step() -> None:
        pairs = [(tf.constant(gradient(replica())), w)]
        optimizer.apply_gradients(pairs if tx is None else gx.tensorflow.apply(tx, pairs))

    repeated(strategy, compiled, step)
    return w.numpy().tolist()


def restored(strategy: Any, compiled: bool) -> Any:
    """A processor saved under the strategy continues without it, on the sums."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for under in (strategy, None):
            made = mirrored(under, np.zeros(2))
            with under.scope() if under else tf.name_scope(""):
                processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), made)

            def step(under: Any = under, made: Any = made, processor: Any = processor) -> Any:
                own = tf.constant(BY_REPLICA[replica()] if under else sum(BY_REPLICA))
                return [g for g, _ in processor([(own, made[0])])]

            saved = tf.train.Checkpoint(processor=processor)
            if under:
                repeated(under, compiled, step, 2)
                path = saved.save(os.path.join(folder, "run"))
            else:
                saved.restore(path).assert_consumed()
            repeated(under, compiled, step)
            found.append(shown(list(processor.state.trace.values())))
    return found


def traces(strategy: Any) -> list[int]:
    """The number of traces of a replica's step after one step and after three with two limits; the last result."""
    w, limit = mirrored(strategy, np.zeros(2), 1.0)
    with strategy.scope():
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


def particular(strategy: Any, compiled: bool) -> dict[str, Any]:
    one, other = tf.distribute.MirroredStrategy(["CPU:0"]), tf.distribute.OneDeviceStrategy("CPU:1")
    found: dict[str, Any] = {
        "native": moved(strategy, compiled, None, lambda _: SAME, clipnorm=1.0),
        "clip_norm": moved(strategy, compiled, gx.clip_norm(1.0), lambda _: SAME),
        "large": moved(strategy, compiled, gx.clip_norm(1.0), lambda i: LARGE[i]),
        "one replica": moved(one, compiled, CHAIN, lambda _: sum(BY_REPLICA)),
        "one device": moved(other, compiled, CHAIN, lambda _: sum(BY_REPLICA)),
        "restored": restored(strategy, compiled),
    }
    return found


def outside_of_a_replica(strategy: Any) -> Any:
    (w,) = mirrored(strategy, np.zeros(2))
    with strategy.scope():
        return shown([gx.tensorflow.apply(gx.clip_norm(1.0), [(tf.constant(SAME), w)])[0][0]])


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = OnReplicas.strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    found: dict[str, Any] = {mode: particular(strategy, mode == "function") for mode in ("eager", "function")}
    found["traces"], found["outside"] = traces(strategy), outside_of_a_replica(strategy)
    for driver, case in PAIRS:
        found[f"{driver}, {case}"] = ""
        try:
            with tempfile.TemporaryDirectory() as folder:
                conformance.check(DRIVERS, driver, case, Path(folder))
        except Exception:
            found[f"{driver}, {case}"] = traceback.format_exc()
    print(json.dumps(found))


# --- what came of them -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = python(__file__, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.mark.parametrize(("driver", "case"), PAIRS)
def test_an_adapter_on_two_replicas(found: Any, driver: str, case: str) -> None:
    assert not found[f"{driver}, {case}"], found[f"{driver}, {case}"]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_the_limit_holds_for_the_sum(found: Any, mode: str) -> None:
    """Keras clips in each replica and then sums: twice the limit."""
    assert_ulp(np.float32(found[mode]["native"]), -2 * UNIT)
    assert_ulp(np.float32(found[mode]["clip_norm"]), -UNIT)
    (wanted,) = gx.clip_norm(1.0)([sum(LARGE)])  # whose kernel depends on the device
    assert_ulp(np.float32(found[mode]["large"]), -wanted)
    for name in ("one replica", "one device"):
        assert_bits(np.float32(found[mode][name]), -CHAIN([sum(BY_REPLICA)])[0])


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_state_saved_under_a_strategy_goes_on_without_it(found: Any, mode: str) -> None:
    under, alone = found[mode]["restored"]
    assert under == alone == [[3.5, 7.875]]


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
