"""gradxform under tf.distribute: the limit holds for the sum over the replicas, which the optimizer applies.

Two logical CPUs must be configured before TensorFlow starts. So this file is also a script that runs every case and
prints the results, which the tests read.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

import conformance
import numpy as np
import pytest
from conformance import Leaves
from drivers import Processor, ProcessorFunction, TensorFlowApply
from support import python, slow

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytestmark = [
    pytest.mark.timeout(900),
    slow("starts one process with two logical devices, for all of its cases together"),
]

BY_REPLICA = [np.float32([3.0, 0.5]), np.float32([-1.0, 4.0])]


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


def restored(strategy: Any, compiled: bool) -> list[Any]:
    """A processor saved under the strategy continues without it, on the sums."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for under in (strategy, None):
            with under.scope() if under else contextlib.nullcontext():
                w = tf.Variable([0.0, 0.0])
                processor = gx.tensorflow.GradientProcessor(gx.trace(0.5), [w])

            def step(under: Any = under, w: Any = w, processor: Any = processor) -> Any:
                return processor([(tf.constant(BY_REPLICA[replica()] if under else sum(BY_REPLICA)), w)])[0][0]

            def run(under: Any = under, step: Any = step) -> Any:
                return under.run(step) if under else step()

            run = tf.function(run) if compiled else run
            saved = tf.train.Checkpoint(processor=processor)
            if under:
                run(), run()
                path = saved.save(os.path.join(folder, "run"))
            else:
                saved.restore(path).assert_consumed()
            run()
            found.append([leaf.numpy().tolist() for leaf in processor.state.trace.values()])
    return found


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = OnReplicas.strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    found: dict[str, Any] = {mode: restored(strategy, mode == "function") for mode in ("eager", "function")}
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
def test_a_state_saved_under_a_strategy_goes_on_without_it(found: Any, mode: str) -> None:
    under, alone = found[mode]
    assert under == alone == [[3.5, 7.875]]


if __name__ == "__main__":
    main()
