"""gradxform under tf.distribute: the limit holds for the sum over the replicas, which the optimizer applies.

The cases, as a script, and the tests of what it prints.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import conformance
import numpy as np
import pytest
from conformance import Leaves
from drivers import Processor, ProcessorFunction, TensorFlowApply
from support import slow

import gradxform as gx

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
from replicas import main, place, results  # noqa: E402

pytestmark = [
    pytest.mark.timeout(900),
    slow("starts one process with two logical devices, for all of its cases together"),
]

BY_REPLICA = [np.float32([3.0, 0.5]), np.float32([-1.0, 4.0])]


# --- the suite of all adapters; replicas have other gradients, whose sums are those of a case ------------------------


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
        part = slice(2) if place() == 0 else slice(2, None)
        return tf.IndexedSlices(gradient.values[part], gradient.indices[part], gradient.dense_shape)
    return None if gradient is None else gradient * tf.cast([2.0, -1.0][place()], gradient.dtype)


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
                return processor([(tf.constant(BY_REPLICA[place()] if under else sum(BY_REPLICA)), w)])[0][0]

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


def conforms(strategy: Any, driver: str, case: str) -> None:
    OnReplicas.strategy = strategy
    with tempfile.TemporaryDirectory() as folder:
        conformance.check(DRIVERS, driver, case, Path(folder))


CASES = {
    "eager": functools.partial(restored, compiled=False),
    "function": functools.partial(restored, compiled=True),
    **{f"{driver}, {case}": functools.partial(conforms, driver=driver, case=case) for driver, case in PAIRS},
}


# --- what came of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("driver", "case"), PAIRS)
def test_an_adapter_on_two_replicas(driver: str, case: str) -> None:
    found = results(__file__)[f"{driver}, {case}"]
    assert not found, found


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_state_saved_under_a_strategy_goes_on_without_it(mode: str) -> None:
    under, alone = results(__file__)[mode]
    assert under == alone == [[3.5, 7.875]]


if __name__ == "__main__":
    main(CASES)
